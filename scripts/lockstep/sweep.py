"""sweep.py: the same training with every combination of some options.

A sweep is a TOML file:

    description = "Strategies on two ranks"
    [options]             # of train, for every point
    data = "random"
    steps = 10
    [grid]                # every combination of these
    sync = ["naive", "fsdp"]
    ranks = [2, 4]        # of mpirun
    [[point]]             # and these points besides, with options of their own
    ranks = 1

Every point leaves RUNS/NAME.h5, and the sweep its state in RUNS/sweep.json,
which is written after each point, so that a sweep that was stopped goes on
where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep import launch, tables
from lockstep.runfile import NotARecord, Run, labels, read_run
from lockstep.summary import cost_table, overview

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib  # type: ignore[no-redef]


class BadSweep(Exception):
    """A sweep that cannot be read; the text is one line."""


@dataclass(frozen=True)
class Point:
    """One run: what sets it apart in `chosen`, all its options in `options`."""
    name: str
    ranks: int
    options: dict[str, Any]
    chosen: dict[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        return [f"--{key}={_text(value)}"
                for key, value in self.options.items()]


@dataclass(frozen=True)
class Sweep:
    name: str
    description: str
    points: list[Point]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _point(common: dict[str, Any], chosen: dict[str, Any],
           where: Path) -> Point:
    options = {**common, **chosen}
    ranks = options.pop("ranks", 1)
    if type(ranks) is not int or ranks < 1:
        raise BadSweep(f"{where}: ranks must be whole numbers above 0, not "
                       f"{ranks!r}")
    # "global-batch" is shared out among the ranks, for strong scaling.
    total = options.pop("global-batch", None)
    if total is not None:
        if type(total) is not int or total % ranks != 0:
            raise BadSweep(f"{where}: global-batch {total} cannot be shared "
                           f"among {tables.counted(ranks, 'rank')}")
        options["batch-size"] = total // ranks
    for key, value in options.items():
        if not isinstance(value, (str, int, float)):
            raise BadSweep(f"{where}: {key} must be one value, not {value!r}")
    name = "_".join(f"{key}-{_text(value)}".replace("/", "-").replace(" ", "")
                    for key, value in chosen.items()) or "run"
    return Point(name, ranks, options, chosen)


def read_sweep(path: Path) -> Sweep:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise BadSweep(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSweep(f"{path}: {error}") from None
    unknown = set(data) - {"description", "options", "grid", "point"}
    if unknown:
        raise BadSweep(f"{path}: no such entry: {', '.join(sorted(unknown))}; "
                       "there are description, options, grid and point")
    common = data.get("options", {})
    grid = data.get("grid", {})
    single = data.get("point", [])
    for name, table in [("options", common), ("grid", grid)]:
        if not isinstance(table, dict):
            raise BadSweep(f"{path}: {name} must be a table, [{name}]")
    if not isinstance(single, list) or \
            not all(isinstance(point, dict) for point in single):
        raise BadSweep(f"{path}: points must be tables, [[point]]")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise BadSweep(f"{path}: grid.{key} must be a list of values")
    chosen = [dict(zip(grid, values))
              for values in itertools.product(*grid.values())] if grid else []
    chosen += single
    points = [_point(common, each, path) for each in chosen or [{}]]
    names = [point.name for point in points]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadSweep(f"{path}: the same point twice: "
                       f"{', '.join(sorted(twice))}")
    return Sweep(path.stem, data.get("description", ""), points)


def numbered_point(sweeps: list[Sweep], index: int) -> Point:
    points = [point for sweep in sweeps for point in sweep.points]
    if not 0 <= index < len(points):
        raise BadSweep(f"there is no point {index}: the sweep has points 0 to "
                       f"{len(points) - 1}")
    return points[index]


# --- state ------------------------------------------------------------------

class State:
    """What became of each point, kept in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sweep.json"
        self.points: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            try:
                self.points = json.loads(self.path.read_text())["points"]
            except (ValueError, KeyError):
                raise BadSweep(f"{self.path}: it is damaged; delete it to "
                               "start anew") from None

    def is_done(self, point: Point, command: str) -> bool:
        """Whether it ended by itself, with the same command."""
        known = self.points.get(point.name, {})
        return known.get("outcome") in ("finished", "failed",
                                        "out of memory") and \
            known.get("command") == command

    def put(self, point: Point, **facts: object) -> None:
        self.points[point.name] = {"chosen": point.chosen, **facts}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"points": self.points}, indent=1))
        os.replace(partial, self.path)


# --- running ----------------------------------------------------------------

class Progress:
    """A line that redraws itself on a terminal; lines elsewhere."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.started = time.monotonic()
        self.ran = 0
        self.terminal = sys.stdout.isatty()

    def show(self, done: int, text: str, last: bool = False) -> None:
        if self.terminal:
            width = 24
            filled = width * done // max(self.count, 1)
            print(f"\r\033[K[{'=' * filled}{' ' * (width - filled)}] "
                  f"{done}/{self.count} {self._left(done)}{text}"[:200],
                  end="\n" if last else "", flush=True)

    def result(self, done: int, text: str) -> None:
        start = "\r\033[K" if self.terminal else ""
        print(f"{start}{done:>{len(str(self.count))}}/{self.count}  {text}",
              flush=True)

    def _left(self, done: int) -> str:
        if self.ran == 0:
            return ""
        seconds = (time.monotonic() - self.started) / self.ran * \
            (self.count - done)
        return f"{seconds / 60:.0f} min left  " if seconds >= 90 else \
            f"{seconds:.0f} s left  "


def outcome_of(code: int | None, record: Path) -> tuple[str, str]:
    """How a point ended, and why if it did not go well."""
    try:
        run: Run | None = read_run(record)
    except NotARecord:
        run = None
    if run is not None and run.out_of_memory:
        return "out of memory", run.error
    if code is None:
        return "failed", "it took longer than --timeout"
    if code == 0 and run is not None:
        return "finished", ""
    if code in (137, -9):
        return "out of memory", "the system killed it, which it does where " \
            "memory runs out"
    if run is not None and run.error:
        return "failed", run.error
    return "failed", f"exit code {code}"


def run_point(point: Point, command: list[str], record: Path,
              timeout: float) -> tuple[str, str, float]:
    """Outcome, reason and seconds. What it printed goes to NAME.log."""
    record.unlink(missing_ok=True)
    begin = time.monotonic()
    with open(record.with_suffix(".log"), "w", encoding="utf-8") as log:
        log.write(shlex.join(command) + "\n")
        log.flush()
        process = subprocess.Popen(command, env=launch.environment(),
                                   stdout=log, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            code: int | None = process.wait(timeout or None)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    outcome, reason = outcome_of(code, record)
    if outcome == "failed" and reason.startswith("exit code"):
        lines = [line for line in record.with_suffix(".log").read_text(
            errors="replace").splitlines() if line.startswith("error")]
        reason = lines[0] if lines else reason
    return outcome, reason, time.monotonic() - begin


def run_sweep(sweep: Sweep, folder: Path, program: Path, launcher: str,
              timeout: float, again: bool) -> dict[str, int]:
    """All points that are not done yet; how many ended how."""
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder)
    progress = Progress(len(sweep.points))
    counts: dict[str, int] = {}
    for index, point in enumerate(sweep.points):
        record = folder / f"{point.name}.h5"
        command = [*launch.mpirun(point.ranks, launcher), str(program),
                   *point.words(), "--output", str(record)]
        line = shlex.join(command)
        if not again and state.is_done(point, line):
            counts["as before"] = counts.get("as before", 0) + 1
            continue
        progress.show(index, point.name)
        state.put(point, outcome="running", command=line)
        outcome, reason, seconds = run_point(point, command, record, timeout)
        state.put(point, outcome=outcome, reason=reason, command=line,
                  seconds=round(seconds, 3))
        counts[outcome] = counts.get(outcome, 0) + 1
        progress.ran += 1
        progress.result(index + 1, f"{point.name}: {outcome}, {seconds:.1f} s" +
                        (f" ({reason})" if reason else ""))
    progress.show(len(sweep.points), "", last=True)
    return counts


def summary(folder: Path, sweep: Sweep) -> list[tables.Table]:
    runs = []
    for point in sweep.points:
        try:
            runs.append(read_run(folder / f"{point.name}.h5"))
        except NotARecord:
            continue
    if not runs:
        return []
    whole = overview(runs, labels(runs))
    whole.title = sweep.description or whole.title
    costs = cost_table(runs)
    return [whole, costs] if costs else [whole]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="sweep.py", description="Runs train with every combination of "
        "some options, as a TOML file lists them (inputs/sweeps/*.toml), one "
        "run after the other. A point that fails or runs out of memory is "
        "recorded as such and the sweep goes on; a sweep that was stopped "
        "resumes where it was when the same command is given again.")
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP.toml")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs"),
                        metavar="FOLDER", help="each sweep has a folder of its "
                        "name in it (default: %(default)s)")
    parser.add_argument("--program", type=Path, help="default: train of the "
                        "newest build")
    parser.add_argument("--launcher", default="", metavar="WORDS",
                        help="instead of mpirun and its options, with {ranks} "
                        "for the number of ranks: 'srun -n {ranks} --mpi=pmix'")
    parser.add_argument("--timeout", type=float, default=0, metavar="SECONDS",
                        help="after which a point counts as failed; 0: never")
    parser.add_argument("--again", action="store_true",
                        help="run points that are done once more")
    parser.add_argument("--list", action="store_true",
                        help="print the points and run nothing")
    parser.add_argument("--point", type=int, metavar="I",
                        help="print name, ranks and options of the I-th point "
                        "from 0, one a line, for job arrays, and run nothing")
    a = parser.parse_args(words)
    try:
        sweeps = [read_sweep(path) for path in a.sweeps]
        if a.point is not None:
            point = numbered_point(sweeps, a.point)
            print("\n".join([point.name, str(point.ranks), *point.words()]))
            return 0
        if a.list:
            for sweep in sweeps:
                for point in sweep.points:
                    print(f"{sweep.name}/{point.name}: "
                          f"{tables.counted(point.ranks, 'rank')}, "
                          f"{' '.join(point.words())}")
            return 0
        program = launch.find_program("train", a.program)
        failed = 0
        for sweep in sweeps:
            folder = a.output / sweep.name
            print(f"{sweep.name}: {tables.counted(len(sweep.points), 'point')}, "
                  f"in {folder}")
            counts = run_sweep(sweep, folder, program, a.launcher, a.timeout,
                               a.again)
            failed += counts.get("failed", 0)
            for table in summary(folder, sweep):
                print("\n" + tables.plain(table))
            print(", ".join(f"{n} {what}" for what, n in counts.items()))
            print(f"report: scripts/report.py {folder} -o {folder}.html")
    except (BadSweep, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here",
              file=sys.stderr)
        return 130
    return 1 if failed else 0
