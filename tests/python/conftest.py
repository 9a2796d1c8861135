"""Real records for the tests, each made once by `train` itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lockstep.launch import environment, find_program, mpirun  # noqa: E402

SMALL = ["--d-model", "32", "--d-ff", "64", "--num-layers", "2",
         "--num-heads", "2", "--vocab-size", "64", "--context-length", "32",
         "--data", "random", "--device", "cpu", "--threads", "1",
         "--progress", "off"]


def train(ranks: int, output: Path, *options: str,
          expected: int = 0) -> Path:
    """Runs `train` on so many ranks and returns the record's path."""
    command = [*mpirun(ranks), str(find_program("train")), *SMALL, *options,
               "--output", str(output)]
    done = subprocess.run(command, env=environment(), capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == expected, done.stdout + done.stderr
    return output


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A set of runs as studies make them, by name."""
    folder = tmp_path_factory.mktemp("records")
    steps = ["--steps", "6", "--warmup-iterations", "2"]
    watched = ["--memory-timeline", "1,4", "--trace", "4"]
    made = {}
    for name, ranks, options in (
            ("one", 1, ["--batch-size", "8"]),
            ("bucketed", 2, ["--batch-size", "4", "--sync", "bucketed",
                             *watched]),
            ("fsdp", 2, ["--batch-size", "4", "--sync", "fsdp", *watched]),
            ("four", 4, ["--batch-size", "2", "--sync", "bucketed"]),
            ("weak", 4, ["--batch-size", "4", "--sync", "bucketed"]),
            ("forward", 1, ["--batch-size", "8", "--mode", "forward"])):
        made[name] = train(ranks, folder / f"{name}.h5", *steps, *options)
    return made


@pytest.fixture(scope="session")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that did not go well, or hardly ran at all."""
    folder = tmp_path_factory.mktemp("troubled")
    made = {
        "nan": train(2, folder / "nan.h5", "--lr", "1e30", "--clip", "0",
                     "--steps", "8", expected=1),
        "one_step": train(1, folder / "one_step.h5", "--steps", "1"),
        "out_of_memory": train(
            1, folder / "out_of_memory.h5", "--batch-size", "60000000",
            "--steps", "1", expected=1)}
    killed = folder / "killed.h5"
    process = subprocess.Popen(
        [str(find_program("train")), *SMALL, "--steps", "1000000",
         "--output", str(killed)], env=environment(),
        stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
            killed.exists() and killed.stat().st_size > 40000):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made["killed"] = killed
    return made
