"""export_memory_snapshot.py: memory timelines for PyTorch's visualiser.

The file is what torch.cuda.memory._dump_snapshot() pickles and
https://pytorch.org/memory_viz reads: a dictionary of `segments` (what the
allocator holds, with their blocks) and `device_traces` (a list of events per
device); see torch/cuda/_memory_viz.py. Each rank is a device, and the stack of
an event tells its category and name. Addresses are made up: allocations lie
one behind the other.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runfile import NotARecord, Run, Timeline, read_run
from lockstep.tables import counted

_FIRST_ADDRESS = 0x7F0000000000
_ALIGNMENT = 512


@dataclass
class _Held:
    address: int
    size: int
    category: str
    name: str


def _frames(category: str, name: str) -> list[dict[str, Any]]:
    """The innermost frame first, as in Python's own snapshots."""
    return [{"filename": category, "line": 0, "name": name},
            {"filename": "lockstep", "line": 0, "name": category}]


def _replay(timeline: Timeline) -> tuple[list[dict[str, Any]], list[_Held]]:
    """The timeline's events as the visualiser's, and what is held after."""
    events: list[dict[str, Any]] = []
    held: list[_Held] = []
    address = _FIRST_ADDRESS
    for time_us, delta, category, name in zip(
            timeline.time_us, timeline.delta_bytes, timeline.category,
            timeline.name):
        size = abs(int(delta))
        event = {"size": size, "stream": 0, "time_us": int(time_us),
                 "frames": _frames(category, name), "category": category}
        if delta > 0:
            block = _Held(address, size, category, name)
            held.append(block)
            address += -(-size // _ALIGNMENT) * _ALIGNMENT
            events += [{**event, "action": "segment_alloc",
                        "addr": block.address},
                       {**event, "action": "alloc", "addr": block.address}]
            continue
        at = next(i for i in reversed(range(len(held)))
                  if (held[i].size, held[i].category, held[i].name) ==
                  (size, category, name))
        block = held.pop(at)
        events += [{**event, "action": action, "addr": block.address}
                   for action in ("free_requested", "free_completed",
                                  "segment_free")]
    return events, held


def _end(timeline: Timeline) -> dict[str, Any]:
    """The moment of the snapshot. The viewer needs the category "unknown"
    among the others: some of its versions stop where there is none."""
    return {"action": "snapshot", "addr": 0, "size": 0, "stream": 0,
            "time_us": int(timeline.end_us), "frames": [],
            "category": "unknown"}


def _segment(block: _Held, device: int) -> dict[str, Any]:
    """An allocation of ours is a segment of one block."""
    frames = _frames(block.category, block.name)
    return {
        "device": device, "address": block.address, "total_size": block.size,
        "allocated_size": block.size, "active_size": block.size,
        "requested_size": block.size, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
        "blocks": [{"address": block.address, "size": block.size,
                    "requested_size": block.size, "state": "active_allocated",
                    "frames": frames}]}


def snapshot(run: Run, step: int | None = None) -> dict[str, Any]:
    """A step's timelines of all ranks; the first step's if none is named."""
    steps = sorted({t.step for t in run.timelines})
    if not steps:
        raise NotARecord(f"{run.path}: it has no memory timelines; train with "
                         "--memory-timeline STEPS")
    if step is None:
        step = steps[0]
    if step not in steps:
        raise NotARecord(f"{run.path}: no memory timeline of step {step}; "
                         f"there are {', '.join(map(str, steps))}")
    segments, traces = [], []
    for timeline in (t for t in run.timelines if t.step == step):
        events, held = _replay(timeline)
        traces.append([*events, _end(timeline)])
        segments += [_segment(block, timeline.rank) for block in held]
    return {"segments": segments, "device_traces": traces,
            "allocator_settings": {}}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="export_memory_snapshot.py",
        description="Writes memory timelines of a run (train "
        "--memory-timeline) as a snapshot that https://pytorch.org/memory_viz "
        "shows; every rank is a device there.")
    parser.add_argument("run", type=Path, metavar="RUN.h5")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.pickle",
                        default=Path("snapshot.pickle"),
                        help="default: %(default)s")
    parser.add_argument("--step", type=int, metavar="N",
                        help="default: the first that was recorded")
    a = parser.parse_args(words)
    try:
        data = snapshot(read_run(a.run), a.step)
        a.output.write_bytes(pickle.dumps(data, protocol=4))
    except (NotARecord, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    events = sum(map(len, data["device_traces"]))
    print(f"{a.output}: {counted(events, 'event')} of "
          f"{counted(len(data['device_traces']), 'rank')}")
    return 0
