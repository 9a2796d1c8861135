"""Exports against what their viewers require."""

import gzip
import json
import pickle
import pickletools

import pytest

from lockstep import snapshot, trace
from lockstep.runfile import read_run

# What the unpickler of PyTorch's MemoryViz.js knows.
VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT",
    "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "PROTO",
    "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE",
    "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT",
    "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"}


@pytest.fixture
def exported(records, tmp_path):
    path = tmp_path / "snapshot.pickle"
    assert snapshot.main([str(records["fsdp"]), "-o", str(path)]) == 0
    return path.read_bytes()


def test_the_viewer_can_unpickle_a_snapshot(exported):
    opcodes = {op.name for op, _, _ in pickletools.genops(exported)}
    assert opcodes <= VIEWER_OPCODES, opcodes - VIEWER_OPCODES
    assert 2 <= exported[1] <= 4, "protocols that it reads"


def test_a_snapshot_has_every_event_of_every_rank(exported, records):
    data = pickle.loads(exported)
    run = read_run(records["fsdp"])
    assert len(data["device_traces"]) == 2
    for rank, events in enumerate(data["device_traces"]):
        timeline = next(t for t in run.timelines
                        if (t.step, t.rank) == (1, rank))
        for event in events:
            assert {"action", "addr", "size", "stream", "frames"} <= \
                event.keys()
        allocated = sum(e["size"] for e in events if e["action"] == "alloc")
        freed = sum(e["size"] for e in events
                    if e["action"] == "free_completed")
        assert allocated - freed == timeline.delta_bytes.sum()
        assert allocated == timeline.delta_bytes[timeline.delta_bytes > 0].sum()
        held = sum(b["requested_size"] for s in data["segments"]
                   if s["device"] == rank for b in s["blocks"])
        assert held == allocated - freed
    # The viewer stops where there are categories, but not this one.
    assert "unknown" in {e["category"] for t in data["device_traces"]
                         for e in t}


def test_a_snapshot_can_be_walked_back_as_the_viewer_does(exported):
    data = pickle.loads(exported)
    for rank, events in enumerate(data["device_traces"]):
        segments = {s["address"]: s["total_size"] for s in data["segments"]
                    if s["device"] == rank}
        blocks = {b["address"]: b["size"] for s in data["segments"]
                  if s["device"] == rank for b in s["blocks"]}
        for event in reversed(events):
            action, address = event["action"], event["addr"]
            if action == "alloc":
                assert blocks.pop(address) == event["size"]
            elif action == "segment_alloc":
                assert segments.pop(address) == event["size"]
            elif action == "free_completed":
                blocks[address] = event["size"]
            elif action == "segment_free":
                segments[address] = event["size"]
            for block in blocks:
                assert block in segments
        assert not segments and not blocks


def test_a_snapshot_of_a_step_without_timeline_is_refused(records, tmp_path,
                                                          capsys):
    output = str(tmp_path / "x")
    assert snapshot.main([str(records["fsdp"]), "--step", "3",
                          "-o", output]) == 1
    assert "there are 1, 4" in capsys.readouterr().err
    assert snapshot.main([str(records["one"]), "-o", output]) == 1
    assert "--memory-timeline" in capsys.readouterr().err


def test_a_trace_has_all_ranks_and_steps_on_their_lanes(records, tmp_path):
    path = tmp_path / "trace.json"
    assert trace.main([str(records["bucketed"]), "-o", str(path)]) == 0
    data = json.loads(path.read_text())
    events = data["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    for event in spans:
        assert {"name", "cat", "pid", "tid", "ts", "dur"} <= event.keys()
        assert event["ts"] >= 0 and event["dur"] >= 0
    assert {e["pid"] for e in spans} == {0, 1}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events
             if e["name"] == "thread_name"}
    assert set(names.values()) == {"steps", "compute", "communication",
                                   "exposed"}
    run = read_run(records["bucketed"])
    for rank in (0, 1):
        mine = [e for e in spans if e["pid"] == rank]
        assert [e["args"]["step"] for e in mine if e["cat"] == "step"] == \
            list(range(1, 9))
        # Of the recorded step: phases as in the record, and inside them units
        # and groups of kernels, and the collectives one by one.
        recorded = [e for e in mine if e["args"]["step"] == 4 and
                    e["cat"] != "step"]
        phases = {e["name"]: e for e in recorded if e["cat"] == "phase"}
        for phase in ("forward", "backward", "optimizer"):
            expected = 1e3 * run.timings[phase][3][rank]
            assert phases[phase]["dur"] == pytest.approx(
                expected, rel=0.1, abs=30), phase
        units = [e for e in recorded if e["cat"] == "unit"]
        assert {e["name"] for e in units} == {"layers.0", "layers.1"}
        for unit in units:
            assert any(p["ts"] <= unit["ts"] and unit["ts"] + unit["dur"] <=
                       p["ts"] + p["dur"] + 0.01 for p in phases.values())
        assert any(e["name"] == "attention" for e in recorded
                   if e["cat"] == "kernels")
        collectives = [e for e in recorded if e["cat"] == "communication"]
        assert len(collectives) == run.comm["calls"][3][rank]
        assert {e["name"] for e in collectives} == {"all-reduce"}


def test_a_lane_of_a_trace_is_properly_nested(records, tmp_path):
    path = tmp_path / "trace.json.gz"
    assert trace.main([str(records["fsdp"]), "-o", str(path)]) == 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    lanes = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for spans in lanes.values():
        open_ends = []
        for span in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= span["ts"] + 0.01:
                open_ends.pop()
            if open_ends:
                assert span["ts"] + span["dur"] <= open_ends[-1] + 0.01
            open_ends.append(span["ts"] + span["dur"])


def test_traces_of_runs_that_did_not_go_well(troubled, tmp_path, capsys):
    path = tmp_path / "trace.json"
    for name in ("nan", "killed", "one_step"):
        assert trace.main([str(troubled[name]), "-o", str(path)]) == 0
        assert json.loads(path.read_text())["traceEvents"]
    assert trace.main([str(troubled["out_of_memory"]), "-o", str(path)]) == 1
    assert "no steps" in capsys.readouterr().err
