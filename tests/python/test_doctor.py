"""scripts/doctor, on this machine and on poorer ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import ROOT


def doctor(prefix: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{prefix} exec scripts/doctor"], cwd=ROOT, text=True,
        env=os.environ | changes, capture_output=True, timeout=120)


def findings(text: str) -> dict[str, str]:
    """The mark of each line by what it is about, the worst if there are two."""
    order = {"info": 0, "ok": 1, "warn": 2, "BAD": 3}
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if line[:1].strip() and words and words[0] in order:
            mark, what = words[0], line[6:18].strip()
            if order[mark] >= order[found.get(what, "info")]:
                found[what] = mark
    return found


def test_a_machine_that_can_build_and_run_has_no_problems():
    done = doctor()
    assert done.returncode == 0, done.stdout
    found = findings(done.stdout)
    assert found["MPI"] == "ok" and found["HDF5"] == "ok"
    assert {"Cores", "/dev/shm", "Python", "BLAS"} <= set(found)
    assert "BAD" not in found.values()


def test_a_missing_mpirun_is_a_problem_with_advice(tmp_path: Path):
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            link = tmp_path / program.name
            if program.name not in ("mpirun", "ompi_info") and \
                    not link.is_symlink():
                link.symlink_to(program)
    done = doctor(PATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert findings(done.stdout)["MPI"] == "BAD"
    assert "module load openmpi" in done.stdout
    assert "1 problem" in done.stdout


def test_few_open_files_are_a_warning():
    assert findings(doctor("ulimit -n 256;").stdout)["Open files"] == "warn"


def test_programs_that_lack_a_library_are_a_problem(tmp_path: Path):
    source = tmp_path / "lacking.c"
    source.write_text("int lacking(void) { return 0; }\n")
    library = tmp_path / "liblacking.so"
    subprocess.run(["cc", "-shared", "-o", library, source], check=True)
    main = tmp_path / "main.c"
    main.write_text("int lacking(void); int main(void) { return lacking(); }\n")
    subprocess.run(["cc", "-o", tmp_path / "train", main, library], check=True)
    library.unlink()
    done = doctor(LOCKSTEP_BUILD=str(tmp_path))
    assert done.returncode == 1
    assert "lacks" in done.stdout and "liblacking.so" in done.stdout
