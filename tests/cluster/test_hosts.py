"""Training on several hosts, over a network that is good, slow, or cut."""

from __future__ import annotations

import math
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import hosts
import numpy as np
import pytest
from hosts import Hosts, launch
from lockstep import prediction

TINY = ["--model-size", "test", "--vocab-size", "64", "--context-length", "16",
        "--data", "random", "--device", "cpu", "--threads", "1",
        "--progress", "plain"]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    if obstacle := hosts.obstacle():
        pytest.skip(f"no hosts of our own: {obstacle}")
    with hosts.running(tmp_path_factory.mktemp("hosts"),
                       ["host1", "host2", "host3"]) as made:
        yield made


def command(network: Hosts, where: dict[str, int], *options: str,
            mpirun=()) -> list[str]:
    """train on so many ranks of each host, from the first of them."""
    slots = ",".join(f"{host}:{ranks}" for host, ranks in where.items())
    return network.command(
        next(iter(where)), "mpirun", "--host", slots, "--bind-to", "none",
        "--mca", "plm_rsh_agent", str(network.agent()), *mpirun,
        str(launch.find_program("train")), *TINY, *options)


def train(network: Hosts, where: dict[str, int], *options: str) -> str:
    done = subprocess.run(command(network, where, *options), text=True,
                          env=launch.environment(), cwd=network.folder,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def column(record: Path, name: str) -> np.ndarray:
    with h5py.File(record) as run:
        return run[name][:]


def test_each_rank_knows_its_host_and_its_place_there(network):
    table = train(network, {"host1": 2, "host2": 1, "host3": 2},
                  "--print-world")
    rows = [line.split()[:3] for line in table.splitlines()[1:] if line.strip()]
    assert rows == [["0", "host1", "0"], ["1", "host1", "1"],
                    ["2", "host2", "0"], ["3", "host3", "0"],
                    ["4", "host3", "1"]]


def test_every_strategy_computes_over_the_network_what_one_rank_does(network):
    options = ["--steps", "4", "--lr", "1e-2"]
    train(network, {"host1": 1}, *options, "--batch-size", "4", "--sync",
          "none", "--output", "one.h5")
    expected = column(network.folder / "one.h5", "steps/loss")
    for sync in prediction.STRATEGIES:
        train(network, {"host1": 2, "host2": 1, "host3": 1}, *options,
              "--batch-size", "1", "--sync", sync, "--output", "four.h5")
        with h5py.File(network.folder / "four.h5") as run:
            assert run.attrs["sync"] == sync
            assert list(run.attrs["hostnames"]) == ["host1", "host1", "host2",
                                                    "host3"]
            np.testing.assert_allclose(run["steps/loss"][:], expected,
                                       rtol=1e-6, err_msg=sync)


def test_a_slow_link_takes_the_time_that_the_planner_knows_of(network):
    options = ["--steps", "6", "--sync", "flat", "--vocab-size", "4096"]
    fast = slowed(network, [], *options)
    slow = slowed(network, ["tbf", "rate", "10mbit", "burst", "16kb",
                            "latency", "1s"], *options)
    link = prediction.Link(latency_us=0, bandwidth=10e6 / 8 / 1e9)
    predicted_ms = prediction.collective_us(
        "all-reduce", column(network.folder / "slow.h5",
                             "memory/gradients")[0, 0], 2, 1, link, link) / 1e3
    assert predicted_ms > 100
    assert fast.min() < predicted_ms / 10, "the link was slow anyway"
    # The first bytes of a burst are free. The planner's link sends both ways at
    # once; where a rank's answers wait behind its own data, the two take turns,
    # which is twice the time.
    assert slow.min() > 0.9 * predicted_ms
    assert slow.min() < 2.2 * predicted_ms


def test_a_far_host_takes_the_latency_that_the_planner_knows_of(network):
    """Every all-reduce is a message each way, at once or one after the
    other."""
    if obstacle := network.cannot_limit("host2", "netem", "delay",
                                         "50ms"):
        pytest.skip(f"no delays: {obstacle}")
    options = ["--steps", "3", "--sync", "naive"]
    near = slowed(network, [], *options)
    far = slowed(network, ["netem", "delay", "50ms"], *options)
    calls = column(network.folder / "slow.h5", "comm/calls").max()
    link = prediction.Link(latency_us=50e3, bandwidth=math.inf)
    predicted_ms = calls * prediction.collective_us("all-reduce", 0, 2, 1, link,
                                              link) / 1e3
    assert near.min() < predicted_ms / 10, "the link was slow anyway"
    assert far.min() > 0.9 * predicted_ms
    assert far.min() < 2.5 * predicted_ms


def slowed(network: Hosts, discipline: list[str], *options: str) -> np.ndarray:
    """How long the slower of two ranks communicated in each step, in ms, over
    such a link; the losses are those of any other link."""
    output = network.folder / ("slow.h5" if discipline else "fast.h5")
    if discipline:
        network.limit("host2", *discipline)
    try:
        train(network, {"host1": 1, "host2": 1}, *options, "--output",
              output.name)
    finally:
        if discipline:
            network.unlimit("host2")
    np.testing.assert_array_equal(
        column(network.folder / "fast.h5", "steps/loss"),
        column(output, "steps/loss"))
    return column(output, "timings/comm_busy").max(axis=1)


ENDLESS = ["--steps", "1000000", "--sync", "bucketed"]


@contextmanager
def running(network: Hosts, log: Path, *options: str, mpirun=()):
    """Training on two hosts, to be cut off once it has begun."""
    words = command(network, {"host1": 1, "host2": 1}, *ENDLESS, *options,
                    mpirun=mpirun)
    with open(log, "w") as output:
        run = subprocess.Popen(words, stdout=output, stderr=output,
                               env=launch.environment(), cwd=network.folder)
    try:
        wait_until(lambda: "\nstep " in log.read_text(), 60, log)
        yield run
    finally:
        network.plug("host2")
        # mpirun waits for a host it has lost; a second signal is obeyed.
        while run.poll() is None:
            run.terminate()
            time.sleep(0.5)


def test_a_host_that_is_cut_off_is_said_in_time_and_the_rest_goes_on(network):
    log = network.folder / "cut.log"
    keep = ["--checkpoint", "checkpoints", "--checkpoint-every", "20",
            "--resume", "auto", "--output", "cut.h5"]
    latest = network.folder / "checkpoints/latest"
    with running(network, log, *keep, "--timeout", "4") as run:
        wait_until(latest.exists, 60, log)
        network.unplug("host2")
        wait_until(lambda: "error on rank 0" in log.read_text(), 20, log)
    assert run.returncode != 0
    assert re.search(r"error on rank 0 \(host1\): .* within 4 s", log.read_text())
    step = int(re.search(r"step-0*(\d+)", latest.resolve().name)[1])
    said = train(network, {"host1": 1}, *keep, "--steps", str(step + 5))
    assert f"after step {step}" in said
    # The record of two ranks is kept under another name.
    steps = column(network.folder / "cut.h5", "steps/step")
    assert steps.tolist() == list(range(step + 1, step + 6))
    assert list(network.folder.glob("cut.until-step-*.h5"))


def test_mpirun_ends_by_itself_if_told_to_look_whether_hosts_are_there(network):
    log = network.folder / "alive.log"
    alive = [word for name, value in (("time", "2"), ("intvl", "1"),
                                      ("probes", "3"))
             for word in ("--mca", f"oob_tcp_keepalive_{name}", value)]
    with running(network, log, "--output", "alive.h5", mpirun=alive) as run:
        network.unplug("host2")
        assert run.wait(60) != 0
    assert "host2" in log.read_text()


def wait_until(ready, seconds: float, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
