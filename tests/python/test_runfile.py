import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from lockstep.launch import find_program
from lockstep.runfile import (MODEL_SIZES, NotARecord, labels, read_run)


def test_statistics_are_of_the_measured_steps_of_the_slowest_rank(records):
    run = read_run(records["bucketed"])
    with h5py.File(records["bucketed"]) as file:
        slowest = file["timings/step"][2:].max(axis=1)
        tokens = file["steps/tokens"][2:].sum()
    assert len(run.steps["step"]) == 8
    assert run.step_ms == pytest.approx(slowest.mean())
    assert run.tokens_per_second == pytest.approx(1e3 * tokens / slowest.sum())
    assert run.global_batch == 8
    assert run.status == "finished"


def test_model_flop_utilisation_is_of_the_peak_of_all_ranks(records, tmp_path):
    path = tmp_path / "run.h5"
    path.write_bytes(records["fsdp"].read_bytes())
    assert np.isnan(read_run(path).mfu), "a CPU's peak is not known"
    run = read_run(path)
    rate = run.tokens_per_second * run.attrs["flops_per_token"]
    with h5py.File(path, "r+") as file:
        file.attrs["peak_flops"] = rate / 2  # as if two devices just reached it
    assert read_run(path).mfu == pytest.approx(1)


def test_phases_add_up_to_the_step(records):
    run = read_run(records["fsdp"])
    phases = sum(run.mean_over_ranks(p).mean()
                 for p in ("data", "zero_grad", "forward", "loss", "backward",
                           "grad_sync", "optimizer"))
    assert phases == pytest.approx(run.mean_over_ranks("step").mean(), rel=0.05)


def test_runs_that_did_not_go_well_say_so(troubled):
    nan = read_run(troubled["nan"])
    assert nan.status == "failed" and " at step " in nan.error
    assert not np.isfinite(nan.steps["loss"][-1]
                           + nan.steps["gradient_norm"][-1])
    oom = read_run(troubled["out_of_memory"])
    assert oom.out_of_memory and not oom.has_steps
    assert np.isnan(oom.step_ms) and oom.peak_bytes == 0
    killed = read_run(troubled["killed"])
    assert killed.status == "unfinished" and killed.has_steps
    one = read_run(troubled["one_step"])
    assert len(one.slowest("step")) == 1 and np.isfinite(one.step_ms)


def test_a_timeline_adds_up_to_what_the_step_held(records):
    run = read_run(records["fsdp"])
    assert [(t.step, t.rank) for t in run.timelines] == [
        (1, 0), (1, 1), (4, 0), (4, 1)]
    for timeline in run.timelines:
        held = {c: v[-1] for c, v in timeline.held().items()}
        for category, held_bytes in held.items():
            assert held_bytes == run.memory[category][timeline.step - 1][
                timeline.rank], (category, timeline.step)
        assert timeline.end_us >= timeline.begin_us


def test_labels_say_in_what_runs_differ(records):
    names = ["one", "bucketed", "fsdp", "four", "weak"]
    made = dict(zip(names, labels([read_run(records[n]) for n in names])))
    assert made == {
        "one": "none · 1 rank", "bucketed": "bucketed · 2 ranks",
        "fsdp": "fsdp · 2 ranks",
        "four": "bucketed · 4 ranks · batch 2",
        "weak": "bucketed · 4 ranks · batch 4"}
    assert labels([read_run(records[n]) for n in ("bucketed", "fsdp")]) == [
        "bucketed", "fsdp"]


def test_equal_runs_are_told_apart_by_their_files(records, tmp_path):
    copy = tmp_path / "again.h5"
    copy.write_bytes(records["one"].read_bytes())
    assert labels([read_run(records["one"]), read_run(copy)]) == [
        "one", "again"]


def test_named_sizes_are_those_of_train(tmp_path):
    for name, (d_model, d_ff, layers, heads) in MODEL_SIZES.items():
        counts = [subprocess.run(
            [find_program("train"), "--dry-run", *shape], check=True,
            capture_output=True, text=True).stdout.split(" parameters")[0]
            for shape in (["--model-size", name],
                          ["--d-model", str(d_model), "--d-ff", str(d_ff),
                           "--num-layers", str(layers),
                           "--num-heads", str(heads)])]
        assert counts[0] == counts[1], name


@pytest.mark.parametrize("content", [b"", b"no HDF5", b"\x89HDF\r\n\x1a\n"])
def test_a_file_that_is_no_record_is_one_line(tmp_path: Path, content):
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    with pytest.raises(NotARecord) as error:
        read_run(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(NotARecord):
        read_run(tmp_path / "nowhere.h5")
    with h5py.File(path, "w") as file:
        file["other"] = [1]
    with pytest.raises(NotARecord):
        read_run(path)
