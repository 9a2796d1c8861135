"""Sweeps: that they go on, resume, and record what failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT
from lockstep import sweep
from lockstep.runfile import read_run

COMMON = """
[options]
data = "random"
device = "cpu"
threads = 1
d-model = 32
d-ff = 64
num-layers = 2
num-heads = 2
vocab-size = 64
context-length = 32
progress = "off"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


def outcomes(folder: Path) -> dict[str, str]:
    points = json.loads((folder / "sweep.json").read_text())["points"]
    return {name: point["outcome"] for name, point in points.items()}


def test_every_combination_is_run_and_a_failure_stops_nothing(tmp_path,
                                                              capsys):
    file = write(tmp_path, COMMON + """
steps = 3
[grid]
sync = ["naive", "fsdp"]
ranks = [2]
[[point]]
lr = 1e30
clip = 0
steps = 8
[[point]]
batch-size = 60000000
[[point]]
no-such-option = 1
""")
    folder = tmp_path / "runs"
    assert sweep.main([str(file), "-o", str(folder)]) == 1
    out = capsys.readouterr().out
    assert outcomes(folder / "small") == {
        "sync-naive_ranks-2": "finished", "sync-fsdp_ranks-2": "finished",
        "lr-1e+30_clip-0_steps-8": "failed",
        "batch-size-60000000": "out of memory", "no-such-option-1": "failed"}
    assert " at step " in out and "no such option" in out
    run = read_run(folder / "small/sync-fsdp_ranks-2.h5")
    assert run.ranks == 2 and run.config["sync"] == "fsdp"
    assert len(run.steps["step"]) == 3
    assert "2 finished" in out and "1 out of memory" in out


def test_what_is_done_is_not_done_again(tmp_path, capsys):
    file = write(tmp_path, COMMON + "steps = 2\n[grid]\nseed = [1, 2]\n")
    words = [str(file), "-o", str(tmp_path / "runs")]
    assert sweep.main(words) == 0
    record = tmp_path / "runs/small/seed-1.h5"
    written = record.stat().st_mtime_ns
    capsys.readouterr()
    assert sweep.main(words) == 0
    assert "2 as before" in capsys.readouterr().out
    assert record.stat().st_mtime_ns == written
    assert sweep.main([*words, "--again"]) == 0
    assert record.stat().st_mtime_ns > written
    # Other options make another point of it.
    write(tmp_path, COMMON + "steps = 3\n[grid]\nseed = [1, 2]\n")
    assert sweep.main(words) == 0
    assert len(read_run(record).steps["step"]) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path, how):
    file = write(tmp_path, COMMON + """
[[point]]
steps = 2
[[point]]
steps = 1000000
[[point]]
steps = 3
""")
    folder = tmp_path / "runs/small"
    command = [sys.executable, str(ROOT / "scripts/sweep.py"), str(file), "-o",
               str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "steps-1000000.h5").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child = int(children.read_text().split()[0])
    process.send_signal(how)
    process.wait(timeout=30)
    if how == signal.SIGKILL:  # which leaves its child behind
        os.kill(child, signal.SIGKILL)
    assert outcomes(folder) == {"steps-2": "finished",
                                "steps-1000000": "running"}
    first = (folder / "steps-2.h5").stat().st_mtime_ns
    done = subprocess.run([*command, "--timeout", "3"], capture_output=True,
                          text=True, timeout=60)
    assert outcomes(folder) == {
        "steps-2": "finished", "steps-1000000": "failed",
        "steps-3": "finished"}, done.stdout + done.stderr
    assert (folder / "steps-2.h5").stat().st_mtime_ns == first


def test_a_global_batch_is_shared_among_ranks(tmp_path):
    file = write(tmp_path, COMMON + "global-batch = 8\n[grid]\n"
                 "ranks = [1, 2, 4]\n")
    points = sweep.read_sweep(file).points
    assert [p.options["batch-size"] for p in points] == [8, 4, 2]
    assert all(p.ranks * p.options["batch-size"] == 8 for p in points)


@pytest.mark.parametrize("text, said", [
    ("[grid]\nranks = 2\n", "a list"), ("[grid]\nranks = [0]\n", "above 0"),
    ("nonsense", "small.toml"), ("[stuff]\n", "stuff"),
    ("[[point]]\nlr = [1]\n", "one value"), ("grid = 3\n", "[grid]"),
    ("options = 3\n", "[options]"), ("point = 3\n", "[[point]]"),
    ("point = [3]\n", "[[point]]"),
    ("[options]\nglobal-batch = true\n", "shared"),
    ("[[point]]\nlr = 1\n[[point]]\nlr = 1\n", "twice"),
    ("[options]\nglobal-batch = 3\n[grid]\nranks = [2]\n", "shared")])
def test_a_bad_sweep_is_one_line(tmp_path, capsys, text, said):
    assert sweep.main([str(write(tmp_path, text))]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert sweep.main([str(tmp_path / "none.toml")]) == 1
    (tmp_path / "other.toml").write_bytes(b"\xff\xfe")
    assert sweep.main([str(tmp_path / "other.toml")]) == 1


def test_the_sweeps_that_come_along_are_in_order(capsys):
    files = sorted((ROOT / "inputs/sweeps").glob("*.toml"))
    assert len(files) >= 6
    assert sweep.main(["--list", *map(str, files)]) == 0
    assert "cpu-strategies/ranks-4_sync-fsdp: 4 ranks" in \
        capsys.readouterr().out


def test_a_point_is_printed_for_a_job_array(tmp_path, capsys):
    file = write(tmp_path, "[options]\nshare-gpu = true\n[grid]\n"
                 "ranks = [1, 4]\nlr = [0.1, 0.2]\n")
    assert sweep.main([str(file), "--point", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ranks-4_lr-0.1", "4", "--share-gpu=true", "--lr=0.1"]
    assert sweep.main([str(file), "--point", "4"]) == 1
    assert "points 0 to 3" in capsys.readouterr().err
