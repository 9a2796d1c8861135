"""Records of runs that go on, or that were killed, as readers find them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import pytest

from conftest import SMALL, environment, find_program, mpirun

PER_STEP = ("steps", "timings", "comm", "memory")


@contextmanager
def training(output: Path, *options: str) -> Iterator[subprocess.Popen]:
    """A run of two ranks, from the moment its record is there."""
    run = subprocess.Popen(
        [*mpirun(2), str(find_program("train")), *SMALL, "--output",
         str(output), *options], env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not output.exists():
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        yield run
    finally:
        run.kill()
        run.wait()


def rows(record: h5py.File) -> int:
    """How many steps it has; all its columns agree."""
    lengths = {column.shape[0] for group in PER_STEP
               for column in record[group].values()
               if isinstance(column, h5py.Dataset)}
    assert len(lengths) == 1
    return lengths.pop()


def ranks_of(run: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    return [int(word) for word in children.read_text().split()]


@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "mpirun"])
def test_a_killed_run_leaves_a_record_for_any_reader(tmp_path, victim):
    output = tmp_path / "run.h5"
    with training(output, "--steps", "1000000") as run:
        seen = 0
        while seen == 0:
            with h5py.File(output) as record:
                seen = rows(record)
            time.sleep(0.1)
        os.kill({"mpirun": run.pid}.get(victim)
                or ranks_of(run)[int(victim[-1])], signal.SIGKILL)
        run.wait(60)
    with h5py.File(output, "r") as record:
        assert rows(record) >= seen
        assert record["steps/step"][:].tolist() == list(
            range(1, rows(record) + 1))
        assert record.attrs["status"] == "running"
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith("HDF5")}
    read = ["h5dump", "-d", "/steps/loss", str(output)]
    assert subprocess.run(read, env=plain, stdout=subprocess.DEVNULL).returncode == 0
    mounted = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 99; '
         '! touch "$0/new" 2>/dev/null && exec "$@"', str(tmp_path), *read],
        env=plain, stdout=subprocess.DEVNULL)
    if mounted.returncode == 99 and os.getuid() != 0:
        pytest.skip("mounting takes root rights")
    assert mounted.returncode == 0


def test_readers_of_a_live_record_neither_disturb_nor_are_disturbed(tmp_path):
    output = tmp_path / "run.h5"
    # Steps with tables of their own are new groups in the file.
    with training(output, "--steps", "1000000", "--memory-timeline", "50-55",
                  "--trace", "60") as run:
        held = h5py.File(output, "r")
        at_first = rows(held)
        seen: list[int] = []
        deadline = time.monotonic() + 120
        while len(set(seen)) < 4 or seen[-1] < 60:
            assert run.poll() is None and time.monotonic() < deadline
            with h5py.File(output, "r") as record:
                seen.append(rows(record))
            if seen[-1] > at_first:  # no longer the file that is held here
                with h5py.File(output, "r", libver="latest", swmr=True) as record:
                    seen.append(rows(record))
            time.sleep(0.05)
        run.send_signal(signal.SIGUSR1)
        assert run.wait(60) == 75
        assert "warning" not in run.stderr.read()
        assert rows(held) == at_first
        held.close()
    assert seen == sorted(seen)
    with h5py.File(output, "r") as record:
        assert record["steps/step"][:].tolist() == list(
            range(1, rows(record) + 1))
        assert list(record["memory/timeline"]) == [
            f"step_{step}" for step in range(50, 56)]
        assert list(record["trace"]) == ["step_60"]
