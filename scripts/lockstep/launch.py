"""Starting `train` and `bench`, alone and under mpirun."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from lockstep import ROOT


def find_program(name: str, given: Path | None = None) -> Path:
    """The one that was given, LOCKSTEP_BUILD/name, or the newest of the
    presets' and the one of the installation this is a part of.
    FileNotFoundError where there is none."""
    if given is not None:
        if not given.is_file():
            raise FileNotFoundError(f"there is no program {given}")
        return given.resolve()
    chosen = os.environ.get("LOCKSTEP_BUILD")
    folders = [Path(chosen)] if chosen else [
        *(ROOT / "build" / preset for preset in ("release", "cpu", "debug")),
        ROOT / "../../bin"]
    found = [folder / name for folder in folders if (folder / name).is_file()]
    if not found:
        raise FileNotFoundError(
            f"no program '{name}' in {', '.join(map(str, folders))}; build it "
            "with scripts/build, or name its folder in LOCKSTEP_BUILD")
    return max(found, key=lambda path: path.stat().st_mtime)


def environment() -> dict[str, str]:
    """This process's, with which mpirun lets root start ranks."""
    if os.getuid() != 0:
        return dict(os.environ)
    return os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun(ranks: int, launcher: str = "") -> list[str]:
    """The beginning of a command for so many ranks. `launcher` replaces
    mpirun and its options, with {ranks} for their number."""
    if launcher:
        return shlex.split(launcher.replace("{ranks}", str(ranks)))
    if ranks == 1:
        return []
    cores = len(os.sched_getaffinity(0))
    more = ["--oversubscribe"] if ranks > cores else []
    return ["mpirun", "-np", str(ranks), "--bind-to", "none", *more]


def gpus() -> int:
    """Those of this machine that the driver lists."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True,
                                text=True, check=False).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def count(text: str) -> int:
    """A whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def pinned_threads(ranks: int) -> int:
    """A rank's share of the cores, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
