"""What a training step would take on more devices than there are.

Per step of one rank (docs/studies.md tells how far it was off):

    step     = compute + exposed
    compute  = forward + loss + backward + optimizer, of a one-rank run scaled
               by the FLOPs of the model and batch, or the device's peak times
               an assumed utilisation
    exposed  = communication that cannot hide: collectives that the strategy
               issues during the backward (or forward) pass hide behind it, all
               but the last of them

Memory and traffic are those of `train --dry-run`, which issues a real step on
devices that only count. A collective of n bytes on W ranks takes

    latency · log2(W) + f(W) · n / bandwidth

with f = 2(W-1)/W for an all-reduce, (W-1)/W for a reduce-scatter or all-gather,
1 for a broadcast (Thakur et al. 2005; nccl-tests' doc/PERFORMANCE.md). Across
nodes it is done inside the nodes first, so that each device carries 1/g of it
over the network, g being the devices of a node.

Ranks on CPUs share cores: they take turns computing, and stand still for longer
than the collectives alone would take, since none ends before the last rank has
come. How much longer, as a share of what a rank computes, is taken from runs on
two ranks, strategy by strategy.
"""

from __future__ import annotations

import csv
import math
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lockstep.benchfile import Benchmark
from lockstep.runfile import Run

STRATEGIES = ("naive", "flat", "overlap", "bucketed", "sharded-optimizer",
              "zero1", "zero2", "fsdp")


class BadPlan(Exception):
    """What was asked for makes no sense; the text is one line."""


# --- links ------------------------------------------------------------------

@dataclass(frozen=True)
class Link:
    """Latency in µs per doubling of the ranks, bandwidth in GB/s."""
    latency_us: float
    bandwidth: float


@dataclass(frozen=True)
class Hardware:
    name: str
    peak_flops: float  # dense bf16, FLOP/s
    memory_bytes: float
    memory_bandwidth: float  # GB/s
    node: Link
    network: Link  # per device
    source: str


# Bandwidths are 80 % of the links' nominal ones, latencies round numbers of the
# size that nccl-tests shows for small messages: assumptions, to be replaced by
# measurements (--collectives).
_NVLINK4 = Link(5.0, 0.8 * 450)
_NDR = Link(8.0, 0.8 * 50)
_HOPPER = "NVLink 4 with 450 GB/s and InfiniBand NDR with 400 Gbit/s per GPU " \
    "and direction, both at 80 % (NVIDIA's data sheets of H100 and H200, and " \
    "the DGX user guide)"
HARDWARE = {
    "h100": Hardware("H100 SXM", 989e12, 80e9, 3350, _NVLINK4, _NDR, _HOPPER),
    "h200": Hardware("H200 SXM", 989e12, 141e9, 4800, _NVLINK4, _NDR, _HOPPER)}

_COLLECTIVES = {"all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter",
                "all-gather": "all_gather", "broadcast": "broadcast"}


def factor(collective: str, ranks: int) -> float:
    """What a link carries of each byte of the buffer."""
    share = (ranks - 1) / ranks
    return {"all-reduce": 2 * share, "reduce-scatter": share,
            "all-gather": share, "broadcast": 1.0 if ranks > 1 else 0.0}[
                collective]


def fit_link(benchmarks: list[Benchmark]) -> Link:
    """Latency and bandwidth that come closest to measured all-reduces (of other
    collectives where there are none), every size counting the same."""
    rows = [(one.ranks, row) for one in benchmarks for row in one.rows
            if one.ranks > 1 and float(row["time"]) > 0]
    preferred = [r for r in rows if r[1]["op"] == "all_reduce"] or rows
    if len(preferred) < 2:
        raise BadPlan("a collectives file needs two sizes or more on several "
                      "ranks")
    names = {v: k for k, v in _COLLECTIVES.items()}
    unknown, wanted = [], []
    for ranks, row in preferred:
        us = float(row["time"])
        carried = factor(names[str(row["op"])], ranks) * float(row["size"])
        unknown.append([math.log2(ranks) / us, carried / us])
        wanted.append(1.0)
    latency, us_per_byte = np.linalg.lstsq(np.array(unknown),
                                           np.array(wanted), rcond=None)[0]
    if latency < 0:  # all of it is bandwidth
        latency = 0.0
        us_per_byte = float(np.mean([w / u[1] for u, w in
                                     zip(unknown, wanted)]))
    return Link(float(latency), 1e-3 / float(us_per_byte))


def collective_us(collective: str, bytes_of_buffer: float, ranks: int,
                  node_size: int, node: Link, network: Link) -> float:
    """Of one collective over `ranks`, node_size of them in each node."""
    if ranks == 1:
        return 0.0
    inside = min(ranks, node_size)
    nodes = -(-ranks // node_size)
    us = 0.0
    if inside > 1:
        us += node.latency_us * math.log2(inside) + \
            factor(collective, inside) * bytes_of_buffer / node.bandwidth / 1e3
    if nodes > 1:
        us += network.latency_us * math.log2(nodes) + \
            factor(collective, nodes) * bytes_of_buffer / inside / \
            network.bandwidth / 1e3
    return us


# --- what a step computes and sends -----------------------------------------

@dataclass(frozen=True)
class Job:
    """A training as it would run on every rank."""
    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocab: int = 10000
    context: int = 1024
    batch: int = 4  # sequences per rank and micro-step
    accumulation: int = 1
    precision: str = "bf16"
    grad_dtype: str = "fp32"

    @property
    def parameters(self) -> int:
        block = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + \
            2 * self.d_model
        return 2 * self.vocab * self.d_model + self.layers * block + \
            self.d_model

    @property
    def flops_per_token(self) -> float:
        """Without the lookup, causal attention by half (docs/run-record.md)."""
        return 6.0 * (self.parameters - self.vocab * self.d_model) + \
            6.0 * self.layers * self.d_model * self.context

    @property
    def tokens(self) -> int:
        return self.batch * self.accumulation * self.context

    def options(self) -> list[str]:
        return [f"--{name}={value}" for name, value in (
            ("d-model", self.d_model), ("d-ff", self.d_ff),
            ("num-layers", self.layers), ("num-heads", self.heads),
            ("vocab-size", self.vocab), ("context-length", self.context),
            ("batch-size", self.batch),
            ("grad-accumulation", self.accumulation),
            ("precision", self.precision),
            ("grad-dtype", self.grad_dtype))]


def job_of_run(run: Run) -> Job:
    c = run.config
    return Job(int(c["d-model"]), int(c["d-ff"]), int(c["num-layers"]),
               int(c["num-heads"]), int(c["vocab-size"]),
               int(c["context-length"]), int(c["batch-size"]),
               int(c["grad-accumulation"]), c["precision"],
               c.get("grad-dtype", "fp32"))


@dataclass(frozen=True)
class DryRun:
    memory_bytes: int
    traffic: dict[str, tuple[int, int]]  # bytes and calls, by collective


def dry_run(job: Job, sync: str, ranks: int, program: Path) -> DryRun:
    done = subprocess.run(
        [str(program), "--dry-run=csv", f"--world-size={ranks}",
         f"--sync={sync}", *job.options()], capture_output=True, text=True,
        check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1]
        raise BadPlan(last.removeprefix("error: "))
    rows = {(row["what"], row["name"]): row
            for row in csv.DictReader(done.stdout.splitlines())}
    return DryRun(int(rows["memory", "total"]["bytes"]), {
        name: (int(row["bytes"]), int(row["calls"]))
        for (what, name), row in rows.items()
        if what == "sent" and row["calls"] != "0"})


@dataclass(frozen=True)
class Compute:
    """Milliseconds of one rank's step without communication."""
    forward: float  # with the loss
    backward: float
    optimizer: float  # of all parameters

    @property
    def whole(self) -> float:
        return self.forward + self.backward + self.optimizer


def compute_of_run(run: Run, job: Job) -> Compute:
    """Measured on one rank, scaled to the job's FLOPs and parameters."""
    if run.ranks != 1 or not run.has_steps:
        raise BadPlan(f"{run.path}: a one-rank run with steps is needed")
    c = run.config
    flops = float(run.attrs["flops_per_token"]) * \
        int(c["batch-size"]) * int(c["grad-accumulation"]) * \
        int(c["context-length"])
    work = job.flops_per_token * job.tokens / flops
    size = job.parameters / int(run.attrs["parameters"])

    def ms(*phases: str) -> float:
        return sum(float(np.median(run.slowest(p))) for p in phases)
    return Compute(work * ms("data", "zero_grad", "forward", "loss"),
                   work * ms("backward"), size * ms("optimizer"))


def compute_of_hardware(hardware: Hardware, job: Job, mfu: float) -> Compute:
    peak = hardware.peak_flops if job.precision == "bf16" else \
        hardware.peak_flops / (2 if job.precision == "tf32" else 15)
    ms = 1e3 * job.flops_per_token * job.tokens / (peak * mfu)
    # AdamW reads the gradient, and reads and writes weight and both moments, 4
    # bytes each.
    touched = 2 * 3 * 4 + (2 if job.grad_dtype == "bf16" else 4)
    optimizer = job.parameters * touched / hardware.memory_bandwidth / 1e6
    return Compute(ms / 3, 2 * ms / 3, optimizer)


# --- strategies -------------------------------------------------------------

@dataclass(frozen=True)
class Machine:
    node_size: int
    node: Link
    network: Link
    # Of CPUs: how many ranks' threads run at once in a node, and how much
    # slower a rank computes beside others that do.
    cores: int = 0
    contention: float = 1.0
    # By strategy, how much longer than for the collectives alone compute stands
    # still, as a share of its own time.
    waiting: dict[str, float] = field(default_factory=dict)

    def crowding(self, ranks: int) -> float:
        """How often the ranks of a node take turns on its cores."""
        here = min(ranks, self.node_size)
        return max(1.0, here / self.cores) if self.cores else 1.0


@dataclass(frozen=True)
class Prediction:
    sync: str
    ranks: int
    compute_ms: float
    busy_ms: float
    exposed_ms: float
    memory_bytes: int

    @property
    def step_ms(self) -> float:
        return self.compute_ms + self.exposed_ms


def _exposed(busy: dict[str, float], calls: dict[str, int], sync: str,
             compute: Compute) -> float:
    """Milliseconds of communication that nothing hides."""
    def last(collective: str) -> float:
        return busy.get(collective, 0) / max(calls.get(collective, 1), 1)
    reduce = busy.get("all-reduce", 0) + busy.get("reduce-scatter", 0)
    gather = busy.get("all-gather", 0) + busy.get("broadcast", 0)
    if sync in ("naive", "flat"):
        return reduce + gather
    tail = max(last("all-reduce"), last("reduce-scatter"))
    if sync == "fsdp":
        # Half of the gathers come in each pass; one cannot be prefetched.
        forward = max(gather / 2 - compute.forward, last("all-gather"))
        backward = max(gather / 2 + reduce - compute.backward, tail)
        return forward + backward
    hidden = max(reduce - compute.backward, tail)
    # Updated parameters come during the next forward pass.
    return hidden + (max(gather - compute.forward,
                         max(last("all-gather"), last("broadcast")))
                     if gather else 0.0)


def predict(compute: Compute, plan: DryRun, sync: str, ranks: int,
            machine: Machine) -> Prediction:
    crowding = machine.crowding(ranks)
    slower = crowding * (machine.contention if ranks > 1 else 1.0)
    shared_update = ranks if sync in ("sharded-optimizer", "zero1", "zero2",
                                      "fsdp") else 1
    mine = Compute(compute.forward * slower, compute.backward * slower,
                   compute.optimizer * slower / shared_update)
    busy, calls = {}, {}
    for collective, (traffic, count) in plan.traffic.items():
        # An all-reduce counts twice its buffer.
        buffer = traffic / (2 if collective == "all-reduce" else 1)
        busy[collective] = crowding * count * collective_us(
            collective, buffer / max(count, 1), ranks, machine.node_size,
            machine.node, machine.network) / 1e3
        calls[collective] = count
    if machine.cores:
        known = machine.waiting
        usual = float(np.mean(list(known.values()))) if known else 0.0
        exposed = max(0.0, sum(busy.values()) +
                      known.get(sync, usual) * mine.whole)
    else:
        exposed = _exposed(busy, calls, sync, mine)
    return Prediction(sync, ranks, mine.whole, sum(busy.values()), exposed,
                      plan.memory_bytes)


def with_pairs(machine: Machine, alone: Run, pairs: list[Run],
               program: Path) -> Machine:
    """The machine as runs on two ranks show it to be."""
    contention = float(np.median([contention_of(alone, run, machine.cores)
                                  for run in pairs]))
    machine = replace(machine, contention=contention)
    waiting = {}
    for run in pairs:
        sync = run.config["sync"]
        job = job_of_run(run)
        bare = predict(compute_of_run(alone, job),
                       dry_run(job, sync, run.ranks, program), sync, run.ranks,
                       machine)
        exposed = float(np.median(run.slowest("comm_exposed")))
        waiting[sync] = (exposed - bare.busy_ms) / bare.compute_ms
    return replace(machine, waiting=waiting)


def contention_of(alone: Run, together: Run, cores: int) -> float:
    """How much slower a rank of `together` computes than the one of `alone`,
    batch for batch, beyond taking turns on the cores."""
    def per_sequence(run: Run) -> float:
        ms = sum(float(np.median(run.slowest(p)))
                 for p in ("forward", "loss", "backward"))
        return ms / (run.global_batch / run.ranks)
    turns = max(1.0, together.ranks / cores) if cores else 1.0
    return max(1.0, per_sequence(together) / per_sequence(alone) / turns)
