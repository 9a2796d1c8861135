"""findings.py: well-known claims about training, each tried on this machine.

Every claim has a number that is measured by small runs of `train` and `bench`,
and a bound that says whether it held here. The runs stay in a folder, for
report.py.
"""

from __future__ import annotations

import argparse
import math
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np

from lockstep import launch, tables
from lockstep.benchfile import Benchmark, read_benchmark
from lockstep.prediction import BadPlan, fit_link
from lockstep.runfile import NotARecord, Run, read_run
from lockstep.tables import Table


class Failed(Exception):
    """A program that a claim needs failed; the text is one line."""


@dataclass(frozen=True)
class Scale:
    """How large the studies are."""
    model: tuple[int, int, int, int]  # d_model, d_ff, layers, heads
    sizes: tuple[tuple[int, int, int, int], ...]
    sharded: tuple[int, int, int, int]  # whose state ranks share out
    vocab: int
    context: int
    batch: int
    steps: int
    attention: tuple[int, ...]  # sequence lengths
    collectives: tuple[int, int]  # bytes, from and to
    iterations: int


SCALES = {
    "cpu": Scale((256, 1024, 6, 4),
                 ((128, 512, 4, 4), (256, 1024, 4, 4), (256, 1024, 8, 4),
                  (384, 1536, 8, 6)), (256, 1024, 6, 4), 1000, 128, 4, 8,
                 (256, 512, 1024, 2048), (10**6, 10**8), 5),
    "cuda": Scale((1024, 4096, 24, 16),
                  ((768, 3072, 12, 12), (1024, 4096, 24, 16),
                   (1280, 5120, 36, 20)), (768, 3072, 12, 12), 10000, 512, 4,
                  20, (1024, 2048, 4096, 8192), (10**6, 10**9), 20),
    "tiny": Scale((32, 64, 4, 2), ((16, 64, 2, 2), (32, 64, 2, 2)),
                  (32, 64, 4, 2), 64, 32, 2,
                  3, (256, 512, 1024), (10**4, 10**6), 2)}


class Studies:
    """Runs programs, each distinct command once, and reads what they leave."""

    def __init__(self, folder: Path, device: str, scale: Scale) -> None:
        self.folder = folder
        self.device = device
        self.scale = scale
        folder.mkdir(parents=True, exist_ok=True)
        self.made: set[str] = set()
        self.gpus = launch.gpus() if device == "cuda" else 0

    def share_a_gpu(self, ranks: int) -> bool:
        return self.device == "cuda" and ranks > self.gpus

    def _run(self, name: str, program: str, ranks: int, words: list[str]
             ) -> Path:
        output = self.folder / f"{name}.h5"
        if name in self.made:
            return output
        command = [*launch.mpirun(ranks), str(launch.find_program(program)),
                   *words, "--device", self.device, "--output", str(output)]
        if self.share_a_gpu(ranks):
            command.append("--share-gpu")
        print(f"  {shlex.join(command)}", file=sys.stderr, flush=True)
        done = subprocess.run(command, env=launch.environment(),
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines()
                     if "error" in line] or [f"exit code {done.returncode}"]
            raise Failed(lines[0])
        self.made.add(name)
        return output

    def train(self, name: str, ranks: int = 1, shape: tuple[int, int, int, int]
              | None = None, batch: int | None = None, **options: object
              ) -> Run:
        s = self.scale
        d_model, d_ff, layers, heads = shape or s.model
        threads = launch.pinned_threads(ranks)
        words = [f"--{key}={value}" for key, value in {
            "data": "random", "d-model": d_model, "d-ff": d_ff,
            "num-layers": layers, "num-heads": heads, "vocab-size": s.vocab,
            "context-length": s.context, "batch-size": batch or s.batch,
            "steps": s.steps, "warmup-iterations": 2, "threads": threads,
            "progress": "off", **{k.replace("_", "-"): v
                                  for k, v in options.items()}}.items()]
        return read_run(self._run(name, "train", ranks, words))

    def attention(self) -> Benchmark:
        lengths = ",".join(map(str, self.scale.attention))
        return read_benchmark(self._run("attention", "bench", 1, [
            "attention", "--seq-lens", lengths, "--batch", "1", "--heads", "2",
            "--head-dims", "32", "--attention", "flash,naive", "--precisions",
            "fp32", "--warmup-iterations", "1", "--iterations",
            str(self.scale.iterations)]))

    def collectives(self, ranks: int) -> Benchmark:
        least, most = self.scale.collectives
        return read_benchmark(self._run(f"collectives-{ranks}", "bench", ranks, [
            "collectives", "--op", "all_reduce", "--min-bytes", str(least),
            "--max-bytes", str(most), "--factor", "10", "--warmup-iterations",
            "1", "--iterations", str(self.scale.iterations)]))


# --- claims -----------------------------------------------------------------

@dataclass(frozen=True)
class Finding:
    measured: str
    held: bool | None  # None: it says nothing about this machine


def needs_links(ranks: int, study: Callable[[Studies], Finding]
                ) -> Callable[[Studies], Finding]:
    """A study of how fast ranks talk, which those on one GPU do not show: what
    they send each other goes through the host's network."""
    def run(s: Studies) -> Finding:
        if s.share_a_gpu(ranks):
            return Finding(f"{ranks} ranks would share {s.gpus} GPU", None)
        return study(s)
    return run


@dataclass(frozen=True)
class Claim:
    text: str
    bound: str
    study: Callable[[Studies], Finding]


def _ms(run: Run, *phases: str) -> float:
    return sum(float(np.median(run.slowest(p))) for p in phases)


def backward_twice_forward(s: Studies) -> Finding:
    run = s.train("one", timing="sync")
    ratio = _ms(run, "backward") / _ms(run, "forward")
    return Finding(f"{ratio:.2f} × ({_ms(run, 'backward'):.3g} and "
                   f"{_ms(run, 'forward'):.3g} ms)", 1.5 <= ratio <= 2.5)


def data_and_loss_negligible(s: Studies) -> Finding:
    run = s.train("one", timing="sync")
    step = _ms(run, "step")
    data, loss = _ms(run, "data") / step, _ms(run, "loss") / step
    return Finding(f"data {data:.2%}, loss with head {loss:.1%} of a step",
                   data < 0.01 and loss < 0.15)


def time_linear_in_size(s: Studies) -> Finding:
    work, times = [], []
    for shape in s.scale.sizes:
        run = s.train(f"size-{shape[2]}x{shape[0]}", shape=shape)
        work.append(float(run.attrs["flops_per_token"]))
        times.append(_ms(run, "step"))
    correlation = float(np.corrcoef(work, times)[0, 1])
    return Finding(
        f"correlation {correlation:.3f}; {times[-1] / times[0]:.1f} × the time "
        f"for {work[-1] / work[0]:.1f} × the FLOPs", correlation >= 0.98)


def _exponent(benchmark: Benchmark, kind: str) -> float:
    """Of T, between the two longest that fitted."""
    rows = sorted((r for r in benchmark.rows if r["attention"] == kind and
                   math.isfinite(float(r["memory"]))),
                  key=lambda r: int(r["tokens"]))[-2:]
    if len(rows) < 2:
        raise Failed(f"{kind} attention fitted at less than two lengths")
    return math.log(float(rows[1]["memory"]) / float(rows[0]["memory"])) / \
        math.log(int(rows[1]["tokens"]) / int(rows[0]["tokens"]))


def attention_memory(s: Studies) -> Finding:
    benchmark = s.attention()
    naive, flash = (_exponent(benchmark, k) for k in ("naive", "flash"))
    return Finding(f"naive T^{naive:.2f}, flash T^{flash:.2f}",
                   naive >= 1.7 and 0.9 <= flash <= 1.1)


def mixed_precision(s: Studies) -> Finding:
    fp32 = s.train("one-fp32", precision="fp32")
    bf16 = s.train("one-bf16", precision="bf16")
    gain = _ms(fp32, "step") / _ms(bf16, "step")
    text = f"{gain:.2f} × faster"
    if s.device != "cuda":
        return Finding(text + "; CPUs compute bf16 in fp32", None)
    return Finding(text, gain >= 1.5)


def overlap_beats_naive(s: Studies) -> Finding:
    ms = {sync: _ms(s.train(f"two-{sync}", 2, sync=sync), "step")
          for sync in ("naive", "overlap", "bucketed")}
    return Finding(", ".join(f"{k} {v:.3g} ms" for k, v in ms.items()),
                   max(ms["overlap"], ms["bucketed"]) < ms["naive"])


_STATE = ("parameters", "gradients", "optimizer")


def _state(run: Run) -> dict[str, float]:
    return {c: float(run.memory[c][-1].max()) for c in _STATE}


def _states(s: Studies, ranks: int, layers: int, *syncs: str
            ) -> list[dict[str, float]]:
    """After a step of the model to share out, with so many layers."""
    d_model, d_ff, _, heads = s.scale.sharded
    return [_state(s.train(f"state-{ranks}-{sync}", ranks,
                           shape=(d_model, d_ff, layers, heads), batch=1,
                           sync=sync, steps=1, warmup_iterations=0))
            for sync in syncs]


def sharded_state(s: Studies) -> Finding:
    syncs = {"sharded-optimizer": ("optimizer",), "zero1": ("optimizer",),
             "zero2": ("gradients", "optimizer")}
    whole, *states = _states(s, 4, s.scale.sharded[2], "flat", *syncs)
    parts = []
    held = True
    for (sync, sharded), state in zip(syncs.items(), states):
        got = sum(state.values()) / sum(whole.values())
        theory = sum(v / 4 if c in sharded else v
                     for c, v in whole.items()) / sum(whole.values())
        parts.append(f"{sync} {got:.0%} (theory {theory:.0%})")
        held &= got <= theory + 0.15
    return Finding("of the replicated state: " + ", ".join(parts), held)


def fsdp_saving(s: Studies) -> Finding:
    # Theory is 1 - 1/8 without what is gathered, a smaller part of a deep
    # model.
    flat, fsdp = _states(s, 8, 4 * s.scale.sharded[2], "flat", "fsdp")
    saving = 1 - sum(fsdp.values()) / sum(flat.values())
    return Finding(f"{saving:.0%} of parameters, gradients and optimizer "
                   f"(theory {1 - 1 / 8:.0%}, without what is gathered)",
                   saving >= 0.65)


def all_reduce_sub_linear(s: Studies) -> Finding:
    two, four = (float(s.collectives(ranks).columns["time"][-1])
                 for ranks in (2, 4))
    return Finding(f"{four / two:.2f} × the time on 2 × the ranks, "
                   f"{s.scale.collectives[1] / 1e6:.3g} MB", four / two < 2)


def bandwidth_dominates(s: Studies) -> Finding:
    benchmark = s.collectives(2)
    link = fit_link([benchmark])
    size = min(10**8, s.scale.collectives[1])
    carried = size / link.bandwidth / 1e3
    share = link.latency_us / (link.latency_us + carried)
    return Finding(f"latency is {share:.1%} of an all-reduce of "
                   f"{size / 1e6:.3g} MB ({link.latency_us:.3g} µs, "
                   f"{link.bandwidth:.3g} GB/s)", share < 0.05)


CLAIMS = (
    Claim("Backward takes twice as long as forward", "1.5 to 2.5 ×",
          backward_twice_forward),
    Claim("Data and loss are negligible", "data < 1 %, loss < 15 %",
          data_and_loss_negligible),
    Claim("Step time is linear in the model's size", "correlation ≥ 0.98",
          time_linear_in_size),
    Claim("Attention's memory grows with T², flash attention's with T",
          "exponents ≥ 1.7 and 1 ± 0.1", attention_memory),
    Claim("Mixed precision is 1.5 × faster (GPUs)", "≥ 1.5 ×",
          mixed_precision),
    Claim("Overlap and buckets beat naive all-reduces (2 ranks)",
          "both faster", needs_links(2, overlap_beats_naive)),
    Claim("Sharded state is as small as theory says (4 ranks)",
          "within 15 points", sharded_state),
    Claim("FSDP saves 65 % of the state (8 ranks)", "≥ 65 %", fsdp_saving),
    Claim("All-reduce time is sub-linear in ranks (2 to 4)", "< 2 ×",
          needs_links(4, all_reduce_sub_linear)),
    Claim("Gradients above 100 MB are dominated by bandwidth",
          "latency < 5 %", needs_links(2, bandwidth_dominates)))


def find(studies: Studies, claims: tuple[Claim, ...] = CLAIMS) -> Table:
    table = Table("Findings", ["claim", "bound", "measured here", "held"])
    for claim in claims:
        print(claim.text, file=sys.stderr, flush=True)
        try:
            finding = claim.study(studies)
            held = {True: "yes", False: "no", None: "not claimed"}[finding.held]
            table.add(claim.text, claim.bound, finding.measured, held)
        except (Failed, BadPlan, NotARecord) as error:
            table.add(claim.text, claim.bound, str(error), "could not tell")
    return table


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="findings.py", description="Tries well-known claims about "
        "training on this machine with small runs (minutes), and says what was "
        "measured and whether each held.")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER",
                        default=Path("runs/findings"),
                        help="where the runs go (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--scale", choices=list(SCALES),
                        help="of the studies (default: the device's)")
    parser.add_argument("--tables", choices=tables.FORMATS,
                        help="print the table in this format")
    a = parser.parse_args(words)
    try:
        studies = Studies(a.output, a.device, SCALES[a.scale or a.device])
        table = find(studies)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(tables.written([table], a.tables) if a.tables
          else tables.plain(table))
    return 1 if any(row[-1] == "could not tell" for row in table.rows) else 0
