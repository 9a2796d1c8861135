"""Training on several hosts, over a network that is good, slow, or cut."""

from __future__ import annotations

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
from lockstep import plan

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
    for sync in plan.STRATEGIES:
        train(network, {"host1": 2, "host2": 1, "host3": 1}, *options,
              "--batch-size", "1", "--sync", sync, "--output", "four.h5")
        with h5py.File(network.folder / "four.h5") as run:
            assert run.attrs["sync"] == sync
            assert list(run.attrs["hostnames"]) == ["host1", "host1", "host2",
                                                    "host3"]
            np.testing.assert_allclose(run["steps/loss"][:], expected,
                                       rtol=1e-6, err_msg=sync)


def test_a_slow_link_takes_the_time_that_the_planner_knows_of(network):
    """At least that: no more than this can be held on a busy machine."""
    options = ["--steps", "3", "--sync", "flat", "--vocab-size", "4096"]
    train(network, {"host1": 1, "host2": 1}, *options, "--output", "fast.h5")
    network.limit("host2", "tbf", "rate", "10mbit", "burst", "16kb",
                  "latency", "1s")
    try:
        train(network, {"host1": 1, "host2": 1}, *options, "--output",
              "slow.h5")
    finally:
        network.unlimit("host2")
    bytes_of_gradients = column(network.folder / "slow.h5",
                                "memory/gradients")[0, 0]
    link = plan.Link(latency_us=0, bandwidth=10e6 / 8 / 1e9)
    predicted_ms = plan.collective_us("all-reduce", bytes_of_gradients, 2, 1,
                                      link, link) / 1e3
    fast, slow = (column(network.folder / f"{name}.h5", "timings/comm_busy")
                  for name in ("fast", "slow"))
    assert predicted_ms > 100
    # The first bytes of a burst are free.
    assert slow.max(axis=1).min() > 0.9 * predicted_ms
    assert fast.max(axis=1).min() < predicted_ms, "the link was slow anyway"
    np.testing.assert_array_equal(
        column(network.folder / "fast.h5", "steps/loss"),
        column(network.folder / "slow.h5", "steps/loss"))


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
