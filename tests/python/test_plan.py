"""The planner: its formulas on known numbers, and its answers."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conftest import train
from lockstep import plan, prediction
from lockstep.benchfile import Benchmark
from lockstep.launch import find_program
from lockstep.runfile import read_run


def benchmark(ranks: int, latency: float, bandwidth: float) -> Benchmark:
    """All-reduces as the model would have them."""
    sizes = np.array([10**4, 10**5, 10**6, 10**7, 10**8])
    times = latency * math.log2(ranks) + \
        2 * (ranks - 1) / ranks * sizes / bandwidth / 1e3
    return Benchmark(Path("b.h5"), "collectives", {"world_size": ranks},
                     {"op": ["all_reduce"] * 5, "size": sizes, "time": times},
                     {})


def test_a_fit_gives_back_latency_and_bandwidth():
    link = prediction.fit_link([benchmark(2, 7, 3.5), benchmark(8, 7, 3.5)])
    assert link.latency_us == pytest.approx(7, rel=1e-6)
    assert link.bandwidth == pytest.approx(3.5, rel=1e-6)
    with pytest.raises(prediction.BadPlan):
        prediction.fit_link([benchmark(1, 7, 3.5)])


def test_collectives_follow_the_textbook():
    fast, slow = prediction.Link(0, 100), prediction.Link(0, 10)
    def us(collective, ranks, node_size=8):
        return prediction.collective_us(collective, 8e6, ranks, node_size,
                                        fast, slow)
    assert us("all-reduce", 1) == 0
    assert us("all-reduce", 8) == pytest.approx(2 * 7 / 8 * 80)
    assert us("all-gather", 4) == pytest.approx(3 / 4 * 80)
    assert us("broadcast", 4) == pytest.approx(80)
    # Two nodes of four: inside as on four, then an eighth... of 1/4 between.
    assert us("all-reduce", 8, 4) == pytest.approx(
        2 * 3 / 4 * 80 + 2 * 1 / 2 * 800 / 4)
    latency = prediction.Link(5, 1e12)
    assert prediction.collective_us("all-reduce", 1, 8, 8, latency, slow) == \
        pytest.approx(15)


def test_only_what_computation_does_not_cover_is_exposed():
    compute = prediction.Compute(forward=10, backward=20, optimizer=1)
    def exposed(sync, calls=10, **busy):
        busy = {k.replace("_", "-"): v for k, v in busy.items()}
        return prediction._exposed(busy, {k: calls for k in busy}, sync,
                                   compute)
    assert exposed("flat", all_reduce=15) == 15
    assert exposed("bucketed", all_reduce=15) == 1.5, "the last bucket"
    assert exposed("bucketed", all_reduce=50) == 30
    assert exposed("zero1", reduce_scatter=10, all_gather=40) == 1 + 30
    assert exposed("fsdp", reduce_scatter=10, all_gather=30) == \
        pytest.approx(5 + 5)


def test_parameters_and_flops_are_those_of_train(records):
    run = read_run(records["one"])
    job = plan.make_job(plan.parse_arguments([]), run)
    assert job.parameters == run.attrs["parameters"]
    assert job.flops_per_token == run.attrs["flops_per_token"]


def test_memory_and_traffic_are_those_of_a_run(records):
    for name in ("bucketed", "fsdp"):
        run = read_run(records[name])
        job = plan.make_job(plan.parse_arguments([]), run)
        dry = prediction.dry_run(job, run.config["sync"], 2,
                                 find_program("train"))
        assert sum(b for b, _ in dry.traffic.values()) == \
            run.comm["bytes"][3].max()
        assert sum(c for _, c in dry.traffic.values()) == \
            run.comm["calls"][3].max()
        scratch = run.memory["workspace"][-1].max()
        assert abs(dry.memory_bytes - run.memory["total"][-1].max()) <= scratch


def test_gradients_in_bf16_take_half_the_memory_and_traffic():
    program = find_program("train")
    full, half = (
        plan.make_job(plan.parse_arguments(
            ["--model-size", "small", "--grad-dtype", dtype]), None)
        for dtype in ("fp32", "bf16"))
    dry = {job: prediction.dry_run(job, "flat", 8, program)
           for job in (full, half)}
    saved = 2 * full.parameters
    assert dry[full].memory_bytes - dry[half].memory_bytes == saved
    # An all-reduce counts twice; a few bytes are not gradients.
    assert dry[full].traffic["all-reduce"][0] - \
        dry[half].traffic["all-reduce"][0] == 2 * saved
    h100 = prediction.HARDWARE["h100"]
    update = {job: prediction.compute_of_hardware(h100, job, 0.4).optimizer
              for job in (full, half)}
    assert update[half] / update[full] == pytest.approx(26 / 28)


def test_a_run_says_in_what_its_gradients_are(records):
    run = read_run(records["one"])
    run.config["grad-dtype"] = "bf16"
    assert "--grad-dtype=bf16" in prediction.job_of_run(run).options()


def test_what_is_asked_for_goes_before_what_the_run_says(records):
    run = read_run(records["four"])
    job = plan.make_job(plan.parse_arguments(
        ["--model-size", "small", "--vocab-size", "100"]), run)
    assert (job.d_model, job.d_ff, job.layers, job.heads) == (768, 3072, 12, 12)
    assert (job.vocab, job.batch, job.context) == (100, 2, 32)
    assert job.precision == "fp32"
    with pytest.raises(prediction.BadPlan, match="fp32.*bf16"):
        plan.make_job(plan.parse_arguments(["--precision", "bf16"]), run)


def test_the_best_strategy_is_the_fastest_that_fits(capsys):
    words = ["--model-size", "10b", "--gpus", "8,64", "--all", "--tables",
             "csv"]
    assert plan.main(words) == 0
    rows = [line.split(",") for line in
            capsys.readouterr().out.splitlines()[2:]]
    for ranks in ("8", "64"):
        mine = [r for r in rows if r[0] == ranks]
        assert {r[1] for r in mine} == set(prediction.STRATEGIES)
        best = [r for r in mine if r[-1] == "best"]
        assert len(best) == 1
        fitting = [r for r in mine if r[-1] != "does not fit"]
        assert float(best[0][2]) == min(float(r[2]) for r in fitting)
        for row in mine:
            fits = float(row[7]) * 2**30 <= 80e9
            assert fits == (row[-1] != "does not fit"), row


def test_a_prediction_is_compared_with_what_was_measured(
        records, tmp_path, capsys):
    four = train(4, tmp_path / "four.h5", "--sync", "flat", "--batch-size",
                 "8", "--steps", "3")
    assert plan.main(["--run", str(records["one"]), "--cores", "2",
                      "--check", str(four), "--tables", "csv"]) == 0
    row = capsys.readouterr().out.splitlines()[2].split(",")
    measured = float(np.median(read_run(four).slowest("step")))
    assert float(row[4]) == pytest.approx(measured)
    assert float(row[5]) == pytest.approx(
        100 * (float(row[3]) / measured - 1))


def test_two_ranks_calibrate_what_two_ranks_take(records, capsys):
    # With the same runs to learn from and to predict, what is exposed is right.
    assert plan.main(["--run", str(records["one"]), "--cores", "2",
                      "--beside", str(records["bucketed"]),
                      str(records["fsdp"]), "--check",
                      str(records["bucketed"]), str(records["fsdp"])]) == 0
    assert "waiting for other ranks" in capsys.readouterr().out
    alone = read_run(records["one"])
    pair = read_run(records["bucketed"])
    program = find_program("train")
    link = prediction.Link(5, 1)
    machine = prediction.with_pairs(
        prediction.Machine(8, link, link, cores=2), alone, [pair], program)
    job = prediction.job_of_run(pair)
    predicted = prediction.predict(prediction.compute_of_run(alone, job),
                             prediction.dry_run(job, "bucketed", 2, program),
                             "bucketed", 2, machine)
    assert predicted.exposed_ms == pytest.approx(
        np.median(pair.slowest("comm_exposed")))


@pytest.mark.parametrize("words, said", [
    (["--model-size", "small", "--beside", "x.h5"], "--run"),
    ([], "--model-size"), (["--check", "x.h5"], "--model-size"),
    (["--model-size", "xl", "--check", "x.h5"], "--run"),
    (["--run", "none.h5"], "no such file"),
    (["--model-size", "small", "--precision", "fp32", "--grad-dtype", "bf16"],
     "error: --grad-dtype bf16 needs")])
def test_what_is_missing_is_one_line(words, said, capsys):
    assert plan.main(words) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("words, said", [
    (["--mfu", "0"], "--mfu: '0' is not above 0"), (["--mfu", "x"], "--mfu"),
    (["--node-size", "0"], "--node-size"), (["--cores", "-1"], "--cores"),
    (["--batch-size", "0"], "--batch-size: invalid count value: '0'")])
def test_numbers_that_make_no_sense_are_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        plan.parse_arguments(["--model-size", "small", *words])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "x", "8..", "16..8", "1,,2"])
def test_numbers_of_devices_that_make_no_sense(text):
    with pytest.raises(SystemExit):
        plan.parse_arguments(["--gpus", text])
    assert plan.rank_counts("8..64") == [8, 16, 32, 64]
    assert plan.rank_counts("8,12") == [8, 12]


def test_the_program_runs_by_itself():
    root = Path(plan.__file__).resolve().parents[1]
    done = subprocess.run([root / "plan.py", "--model-size", "small",
                           "--gpus", "2", "--sync", "fsdp"],
                          capture_output=True, text=True, check=True)
    assert "best" in done.stdout and "NVLink" in done.stdout
