"""plan.py: step time, communication and memory on more devices than there are,
and which strategy would be best, as prediction.py has them."""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep import launch, tables
from lockstep.benchfile import read_benchmark
from lockstep.prediction import (
    HARDWARE, STRATEGIES, BadPlan, Compute, Job, Machine, compute_of_hardware,
    compute_of_run, dry_run, fit_link, job_of_run, predict, with_pairs)
from lockstep.runfile import MODEL_SIZES, NotARecord, Run, read_run
from lockstep.tables import Table


def rank_counts(text: str) -> list[int]:
    """"8", "8,12", or "8..1024", which doubles."""
    match = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if match:
        first, last = int(match[1]), int(match[2])
        counts = []
        while 0 < first <= last:
            counts.append(first)
            first *= 2
    else:
        counts = [int(part) for part in text.split(",") if part.isdigit()] \
            if re.fullmatch(r"\d+(,\d+)*", text) else []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no number of devices: 8, 8,12 or 8..1024")
    return counts


def share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0 and at most "
                                         "1")
    return number


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="plan.py", description="Predicts step time, exposed "
        "communication and memory on more devices than there are, and the "
        "strategy that is fastest among those that fit. Constants come from "
        "measurements where they are given, and from data sheets otherwise.")
    model = parser.add_argument_group("training")
    model.add_argument("--model-size", choices=list(MODEL_SIZES))
    model.add_argument("--batch-size", dest="batch", type=launch.count,
                       metavar="N", help="sequences per device and micro-step (default: 4, "
                       "or the run's)")
    for name, field in (("grad-accumulation", "accumulation"),
                        ("context-length", "context"),
                        ("vocab-size", "vocab")):
        model.add_argument(f"--{name}", dest=field, type=launch.count,
                           metavar="N")
    model.add_argument("--precision", choices=["fp32", "tf32", "bf16"])
    model.add_argument("--grad-dtype", choices=["fp32", "bf16"],
                       help="of the gradients that are kept and sent (default: "
                       "fp32, or the run's)")
    model.add_argument("--sync", nargs="+", choices=STRATEGIES,
                       default=list(STRATEGIES), metavar="NAME",
                       help="strategies to consider (default: all)")
    where = parser.add_argument_group("machine")
    where.add_argument("--gpus", "--ranks", type=rank_counts, default=[8],
                       metavar="N", help="8, 8,12 or 8..1024 (default: 8)")
    where.add_argument("--node-size", type=launch.count, default=8, metavar="N",
                       help="devices of a node (default: %(default)s)")
    where.add_argument("--hardware", choices=list(HARDWARE), default="h100",
                       help="data sheet to take what is not measured from "
                       "(default: %(default)s)")
    where.add_argument("--mfu", type=share, default=0.4, metavar="X",
                       help="share of the peak that a step is assumed to reach "
                       "where no run says it (default: %(default)s)")
    where.add_argument("--cores", type=launch.count, default=0, metavar="N",
                       help="ranks are CPU ranks that share this many cores of "
                       "a node, and nothing hides communication")
    known = parser.add_argument_group("measurements")
    known.add_argument("--run", type=Path, metavar="RUN.h5",
                       help="of one rank: its model, batch and compute times")
    known.add_argument("--beside", type=Path, nargs="+", default=[],
                       metavar="RUN.h5", help="the same on two ranks of a "
                       "node, in one strategy or several, for how much CPU "
                       "ranks slow each other down")
    known.add_argument("--collectives", type=Path, nargs="+", default=[],
                       metavar="BENCH.h5", help="bench collectives in a node")
    known.add_argument("--network", type=Path, nargs="+", default=[],
                       metavar="BENCH.h5", help="bench collectives with one "
                       "device a node")
    known.add_argument("--check", type=Path, nargs="+", default=[],
                       metavar="RUN.h5", help="runs to predict, and to compare "
                       "with what was measured")
    parser.add_argument("--all", action="store_true",
                        help="show every strategy, not the best alone")
    parser.add_argument("--tables", choices=tables.FORMATS,
                        help="print the table in this format")
    return parser.parse_args(words)


def make_job(a: argparse.Namespace, run: Run | None) -> Job:
    """The run's, where nothing else is asked for."""
    shape = MODEL_SIZES.get(a.model_size)
    if run:
        job = job_of_run(run)
        if shape:
            d_model, d_ff, layers, heads = shape
            job = replace(job, d_model=d_model, d_ff=d_ff, layers=layers,
                          heads=heads)
    elif shape:
        job = Job(*shape)
    else:
        raise BadPlan("give --model-size, or a --run to take the model from")
    given = {name: getattr(a, name) for name in (
        "vocab", "context", "batch", "accumulation", "precision",
        "grad_dtype")}
    job = replace(job, **{name: value for name, value in given.items()
                          if value is not None})
    if run and job.precision != run.config["precision"]:
        raise BadPlan(f"--run is of {run.config['precision']}, which says "
                      f"nothing about {job.precision}")
    return job


def make_machine(a: argparse.Namespace, run: Run | None,
                 program: Path) -> Machine:
    hardware = HARDWARE[a.hardware]
    node = fit_link([read_benchmark(p) for p in a.collectives]) \
        if a.collectives else hardware.node
    network = fit_link([read_benchmark(p) for p in a.network]) \
        if a.network else hardware.network
    machine = Machine(a.node_size, node, network, a.cores)
    if not a.beside:
        return machine
    if run is None:
        raise BadPlan("--beside is to be compared with a --run")
    pairs = [read_run(path) for path in a.beside]
    for pair in pairs:
        if pair.ranks < 2 or not pair.has_steps:
            raise BadPlan(f"{pair.path}: a run on two ranks is needed")
    return with_pairs(machine, run, pairs, program)


def sources(a: argparse.Namespace, machine: Machine) -> list[str]:
    """Where the constants are from."""
    hardware = HARDWARE[a.hardware]
    lines = [
        f"compute: {a.run}" if a.run else
        f"compute: {hardware.name}, {hardware.peak_flops / 1e12:.0f} TFLOP/s "
        f"at {a.mfu:.0%}",
        f"in a node: {machine.node.latency_us:.3g} µs · log2(ranks), "
        f"{machine.node.bandwidth:.3g} GB/s; " +
        (f"{', '.join(map(str, a.collectives))}" if a.collectives
         else hardware.source)]
    if not a.check and max(a.gpus) > a.node_size:
        lines.append(
            f"between nodes: {machine.network.latency_us:.3g} µs · "
            f"log2(nodes), {machine.network.bandwidth:.3g} GB/s per device; " +
            (f"{', '.join(map(str, a.network))}" if a.network
             else hardware.source))
    if a.cores:
        lines.append(f"on CPUs: {tables.counted(a.cores, 'core')} a node; "
                     "ranks beside each other compute "
                     f"{machine.contention:.2f} times as long")
    if machine.waiting:
        lines.append("waiting for other ranks, as a share of computing: " +
                     ", ".join(f"{sync} {share:.1%}" for sync, share in
                               machine.waiting.items()))
    return lines


def plan_table(a: argparse.Namespace, job: Job, compute: Compute,
               machine: Machine, program: Path) -> Table:
    hardware = HARDWARE[a.hardware]
    limit = math.inf if a.cores else hardware.memory_bytes
    table = Table(
        f"{job.parameters / 1e6:.0f} M parameters, {job.batch} × "
        f"{job.context} tokens a device, {job.precision}",
        ["devices", "strategy", "step (ms)", "compute (ms)", "exposed (ms)",
         "tokens/s", "MFU (%)", "memory (GiB)", ""])
    for ranks in a.gpus:
        found = [predict(compute, dry_run(job, sync, ranks, program), sync,
                         ranks, machine) for sync in a.sync]
        fitting = [p for p in found if p.memory_bytes <= limit]
        best = min(fitting, key=lambda p: p.step_ms) if fitting else None
        for p in sorted(found, key=lambda p: p.step_ms):
            if p is not best and not a.all and best is not None:
                continue
            rate = 1e3 * job.tokens * ranks / p.step_ms
            mfu = 100 * rate * job.flops_per_token / ranks / \
                hardware.peak_flops if not a.cores else math.nan
            mark = "best" if p is best else \
                "" if p.memory_bytes <= limit else "does not fit"
            table.add(ranks, p.sync, p.step_ms, p.compute_ms, p.exposed_ms,
                      rate, mfu, p.memory_bytes / 2**30, mark)
    return table


def check_table(a: argparse.Namespace, run: Run, machine: Machine,
                program: Path) -> Table:
    table = Table("Predicted and measured (median steps)",
                  ["run", "ranks", "strategy", "predicted (ms)",
                   "measured (ms)", "error (%)"])
    for path in a.check:
        measured = read_run(path)
        if not measured.has_steps:
            raise BadPlan(f"{path}: it has no steps to compare with")
        job = job_of_run(measured)
        sync = measured.config["sync"]
        compute = compute_of_run(run, job)
        p = predict(compute, dry_run(job, sync, measured.ranks, program), sync,
                    measured.ranks, replace(machine, node_size=max(
                        a.node_size, 1)))
        truth = float(np.median(measured.slowest("step")))
        table.add(path.stem, measured.ranks, sync, p.step_ms, truth,
                  100 * (p.step_ms / truth - 1))
    return table


def main(words: list[str] | None = None) -> int:
    a = parse_arguments(words)
    try:
        program = launch.find_program("train")
        run = read_run(a.run) if a.run else None
        job = make_job(a, run)
        machine = make_machine(a, run, program)
        compute = compute_of_run(run, job) if run else \
            compute_of_hardware(HARDWARE[a.hardware], job, a.mfu)
        if a.check:
            if run is None:
                raise BadPlan("--check needs a --run to predict from")
            table = check_table(a, run, machine, program)
            worst = max(abs(float(row[-1])) for row in table.rows)
        else:
            table = plan_table(a, job, compute, machine, program)
    except (BadPlan, NotARecord, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(tables.written([table], a.tables) if a.tables
          else tables.plain(table))
    if not a.tables:
        for line in sources(a, machine):
            print(line)
        if a.check:
            print(f"largest error: {worst:.1f} %")
    return 0
