"""export_trace.py: a run as a trace for Perfetto and chrome://tracing.

The format is the "Trace Event Format" in its JSON object form: complete events
(ph X) with microseconds, one process per rank, one thread per lane. Steps that
were recorded with --trace show phases, units, groups of kernels and
collectives where they were; of other steps the record has durations alone, and
their phases are laid one behind the other, with the time on the communication
lane beside them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from lockstep.runfile import PHASES, NotARecord, Run, Trace, read_run
from lockstep.tables import counted

# Threads of a rank, from the top.
_LANES = ("steps", "compute", "communication", "exposed")

Event = dict[str, Any]


def _complete(name: str, category: str, rank: int, lane: str, begin_us: float,
              duration_us: float, **arguments: object) -> Event:
    return {"name": name, "cat": category, "ph": "X", "pid": rank,
            "tid": _LANES.index(lane), "ts": round(begin_us, 3),
            "dur": round(duration_us, 3), "args": arguments}


def _names(rank: int, host: str) -> list[Event]:
    events: list[Event] = [
        {"name": "process_name", "ph": "M", "pid": rank, "tid": 0,
         "args": {"name": f"rank {rank}" + (f" on {host}" if host else "")}},
        {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0,
         "args": {"sort_index": rank}}]
    for index, lane in enumerate(_LANES):
        events += [
            {"name": "thread_name", "ph": "M", "pid": rank, "tid": index,
             "args": {"name": lane}},
            {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": index,
             "args": {"sort_index": index}}]
    return events


def _recorded(trace: Trace, begin_us: float) -> list[Event]:
    kinds = ("phase", "unit", "kernels")
    events = []
    for row in trace.rows:
        lane = str(row["lane"])
        category = kinds[min(int(row["depth"]), 2)] if lane == "compute" \
            else lane
        more = {"bytes": row["bytes"]} if row["bytes"] else {}
        events.append(_complete(
            str(row["name"]), category, trace.rank, lane,
            begin_us + float(row["begin_us"]), float(row["duration_us"]),
            step=trace.step, **more))
    return events


def _reconstructed(run: Run, row: int, rank: int, begin_us: float) -> list[
        Event]:
    step = int(run.steps["step"][row])
    events = []
    at = begin_us
    for phase in PHASES:
        duration = 1e3 * float(run.timings[phase][row][rank])
        if duration > 0:
            events.append(_complete(phase, "phase", rank, "compute", at,
                                    duration, step=step, laid_out=True))
        at += duration
    busy = 1e3 * float(run.timings["comm_busy"][row][rank])
    if busy > 0:
        # It ends at the latest where the wait for gradients does.
        after = 1e3 * float(run.timings["optimizer"][row][rank])
        events.append(_complete(
            "collectives (total)", "communication", rank, "communication",
            max(begin_us, at - after - busy), busy, step=step, laid_out=True,
            calls=int(run.comm["calls"][row][rank]),
            bytes=int(run.comm["bytes"][row][rank])))
    return events


def trace_events(run: Run) -> list[Event]:
    """All steps of all ranks. A step begins on every rank where the slowest
    one's before it ended, since the record has no common clock."""
    if not run.has_steps:
        raise NotARecord(f"{run.path}: it has no steps to show")
    hosts = [str(h.decode() if isinstance(h, bytes) else h)
             for h in run.attrs.get("hostnames", [])]
    events: list[Event] = []
    for rank in range(run.ranks):
        events += _names(rank, hosts[rank] if rank < len(hosts) else "")
    recorded = {(t.step, t.rank): t for t in run.traces}
    begin_us = 0.0
    for row, step in enumerate(run.steps["step"]):
        whole = 1e3 * run.timings["step"][row]
        for rank in range(run.ranks):
            events.append(_complete(
                f"step {step}", "step", rank, "steps", begin_us,
                float(whole[rank]), step=int(step),
                loss=float(run.steps["loss"][row])))
            trace = recorded.get((int(step), rank))
            events += _recorded(trace, begin_us) if trace else \
                _reconstructed(run, row, rank, begin_us)
        begin_us += float(whole.max())
    return events


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="export_trace.py", description="Writes a run as a trace for "
        "https://ui.perfetto.dev or chrome://tracing: all ranks, with their "
        "phases and collectives. Steps recorded with train --trace STEPS show "
        "units and single collectives, too.")
    parser.add_argument("run", type=Path, metavar="RUN.h5")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json[.gz]",
                        default=Path("trace.json"), help="default: %(default)s")
    a = parser.parse_args(words)
    try:
        run = read_run(a.run)
        events = trace_events(run)
        # Not every viewer reads NaN, which JSON does not know.
        for event in events:
            loss = event.get("args", {}).get("loss")
            if loss is not None and loss - loss != 0:
                event["args"]["loss"] = str(loss)
        text = json.dumps({
            "traceEvents": events, "displayTimeUnit": "ms",
            "otherData": {"command_line": run.attrs.get("command_line", ""),
                          "version": run.attrs.get("version", "")}},
            allow_nan=False)
        data = text.encode()
        a.output.write_bytes(gzip.compress(data) if a.output.suffix == ".gz"
                             else data)
    except (NotARecord, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{a.output}: {counted(len(events), 'event')} of "
          f"{counted(run.ranks, 'rank')} and "
          f"{counted(len(run.steps['step']), 'step')}")
    return 0
