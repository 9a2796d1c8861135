"""Run records as Python objects; docs/run-record.md describes the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable

import h5py
import numpy as np

PHASES = ("data", "zero_grad", "forward", "loss", "backward", "grad_sync",
          "optimizer")
CATEGORIES = ("parameters", "gradients", "optimizer", "activations",
              "communication", "workspace")

# The named shapes of `train --model-size`: d_model, d_ff, layers, heads.
MODEL_SIZES = {"test": (16, 24, 2, 2), "small": (768, 3072, 12, 12),
               "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
               "xl": (2560, 10240, 32, 32), "10b": (4608, 12288, 50, 36)}


class NotARecord(Exception):
    """A file that is not what it was taken for; the text is one line."""


@dataclass(frozen=True)
class Timeline:
    """One rank's memory events of a step: arrays of equal length."""
    step: int
    rank: int
    begin_us: float
    end_us: float
    time_us: np.ndarray
    delta_bytes: np.ndarray
    category: list[str]
    name: list[str]

    def held(self) -> dict[str, np.ndarray]:
        """Bytes of each category after every event."""
        categories = np.array(self.category)
        return {c: np.cumsum(np.where(categories == c, self.delta_bytes, 0))
                for c in CATEGORIES if c in self.category}


@dataclass(frozen=True)
class Trace:
    """One rank's spans of work in a step."""
    step: int
    rank: int
    rows: list[dict[str, Any]]  # lane, name, depth, bytes, begin_us, …


@dataclass
class Run:
    """A run record. Arrays of steps are [S], those of ranks [S, R]."""
    path: Path
    attrs: dict[str, Any]
    config: dict[str, str]
    steps: dict[str, np.ndarray]
    timings: dict[str, np.ndarray]
    comm: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    validation: dict[str, np.ndarray]
    timelines: list[Timeline] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return int(self.attrs.get("world_size", 1))

    @property
    def model(self) -> str:
        """Its name, or its shape where that is not the named one's."""
        c = self.config
        shape = tuple(int(c.get(k, 0)) for k in
                      ("d-model", "d-ff", "num-layers", "num-heads"))
        name = c.get("model-size", "")
        if MODEL_SIZES.get(name) == shape:
            return name
        return f"{shape[2]} layers of {shape[0]}"

    @property
    def status(self) -> str:
        """finished, failed, or unfinished: still running, or killed."""
        status = str(self.attrs.get("status", ""))
        return "unfinished" if status in ("running", "") else status

    @property
    def error(self) -> str:
        return str(self.attrs.get("error", ""))

    @property
    def out_of_memory(self) -> bool:
        return "out of memory" in self.error

    @property
    def measured(self) -> slice:
        """The steps that statistics are of: not those of the warm-up, and
        without one not the first if there are more than two."""
        warmup = int(self.config.get("warmup-iterations", 0) or 0)
        count = len(self.steps["step"])
        if warmup > 0:
            return slice(min(warmup, max(count - 1, 0)), count)
        return slice(1 if count > 2 else 0, count)

    @property
    def has_steps(self) -> bool:
        return len(self.steps["step"]) > 0

    def slowest(self, name: str) -> np.ndarray:
        """Milliseconds of the slowest rank in each measured step."""
        return self.timings[name][self.measured].max(axis=1)

    def mean_over_ranks(self, name: str) -> np.ndarray:
        return self.timings[name][self.measured].mean(axis=1)

    @property
    def step_ms(self) -> float:
        return float(np.mean(self.slowest("step"))) if self.has_steps \
            else float("nan")

    @property
    def tokens_per_second(self) -> float:
        if not self.has_steps:
            return float("nan")
        ms = self.slowest("step").sum()
        tokens = self.steps["tokens"][self.measured].sum()
        return float(1e3 * tokens / ms) if ms > 0 else float("nan")

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation; nan where the device's peak isn't known or
        nothing was trained."""
        peak = float(self.attrs.get("peak_flops", 0)) * self.ranks
        if peak <= 0 or self.config.get("mode", "train") == "forward":
            return float("nan")
        flops = float(self.attrs.get("flops_per_token", 0))
        return self.tokens_per_second * flops / peak

    @property
    def peak_bytes(self) -> int:
        """Of the rank that held the most."""
        peak = self.memory["peak"]
        return int(peak[-1].max()) if len(peak) else 0

    @property
    def global_batch(self) -> int:
        """Sequences of a step over all ranks."""
        return self.ranks * int(self.config.get("batch-size", 1)) * \
            int(self.config.get("grad-accumulation", 1))

    @property
    def device_name(self) -> str:
        return str(self.attrs.get("gpu_name") or self.attrs.get("cpu_name")
                   or self.attrs.get("device", ""))


def _text(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def attributes(item: h5py.HLObject) -> dict[str, Any]:
    return {name: _text(value) for name, value in item.attrs.items()}


def _columns(file: h5py.File, group: str) -> dict[str, np.ndarray]:
    return {name: item[()] for name, item in file[group].items()
            if isinstance(item, h5py.Dataset)}


def strings(column: np.ndarray) -> list[str]:
    return [value.decode(errors="replace") for value in column]


def _of_steps(file: h5py.File, group: str) -> Iterable[
        tuple[int, int, h5py.Dataset]]:
    """What lies in group/step_<n>/rank_<r>, in order."""
    if group not in file:
        return
    for step in sorted(file[group], key=lambda n: int(n.split("_")[1])):
        ranks = file[group][step]
        for rank in sorted(ranks, key=lambda n: int(n.split("_")[1])):
            yield int(step.split("_")[1]), int(rank.split("_")[1]), ranks[rank]


def _timeline(step: int, rank: int, table: h5py.Dataset) -> Timeline:
    rows = table[()]
    return Timeline(step, rank, float(table.attrs["begin_us"]),
                    float(table.attrs["end_us"]), rows["time_us"],
                    rows["delta_bytes"], strings(rows["category"]),
                    strings(rows["name"]))


def _trace(step: int, rank: int, table: h5py.Dataset) -> Trace:
    rows = table[()]
    return Trace(step, rank, [
        {name: _text(row[name].item() if hasattr(row[name], "item")
                     else row[name]) for name in rows.dtype.names}
        for row in rows])


def open_record(path: Path) -> h5py.File:
    if not path.is_file():
        raise NotARecord(f"{path}: there is no such file")
    try:
        return h5py.File(path, "r")
    except OSError:
        raise NotARecord(f"{path}: it is not an HDF5 file, or is cut short") \
            from None


def is_checkpoint(path: Path) -> bool:
    """Whether a file holds a run's state rather than its record."""
    with open_record(path) as file:
        return "weights" in file and "steps" not in file


def read_run(path: Path) -> Run:
    """A run record, however far the run came."""
    with open_record(path) as file:
        missing = [g for g in ("config", "steps", "timings", "comm", "memory")
                   if g not in file]
        if missing:
            raise NotARecord(f"{path}: no run record, it has no group "
                             f"{', '.join(missing)}")
        run = Run(
            path=path, attrs=attributes(file),
            config={k: str(v) for k, v in attributes(file["config"]).items()},
            steps=_columns(file, "steps"), timings=_columns(file, "timings"),
            comm=_columns(file, "comm"), memory=_columns(file, "memory"),
            validation=_columns(file, "validation")
            if "validation" in file else {},
            timelines=[_timeline(*at)
                       for at in _of_steps(file, "memory/timeline")],
            traces=[_trace(*at) for at in _of_steps(file, "trace")])
    if "step" not in run.steps or "step" not in run.timings:
        raise NotARecord(f"{path}: no run record, it has no steps")
    return run


# Facts that tell runs apart, and how a label shows their values. Those of the
# first group are shown wherever they differ, the others where a label would
# not be the only one without them.
_MAIN_FACTS = {"model": "{}", "mode": "{}", "sync": "{}", "precision": "{}",
               "ranks": "{} ranks"}
_OTHER_FACTS = {
    "context-length": "T = {}", "batch-size": "batch {}",
    "grad-accumulation": "{} micro-steps", "recompute": "recompute {}",
    "attention": "{} attention", "bucket-mb": "buckets of {} MiB",
    "grad-dtype": "gradients in {}", "reduce-dtype": "reduced in {}",
    "fsdp-prefetch": "prefetch {}",
    "warmup-iterations": "warm-up {}", "timing": "timing {}",
    "threads": "{} threads", "graph": "graph {}", "lr": "lr {}",
    "seed": "seed {}", "steps": "{} steps"}


def labels(runs: list[Run]) -> list[str]:
    """Short names that say in what the runs differ, all of them distinct."""
    facts = [{**run.config, "model": run.model, "ranks": str(run.ranks)}
             for run in runs]
    shapes = {**_MAIN_FACTS, **_OTHER_FACTS}

    def split(keys: list[str], among: list[int]) -> int:
        return len({tuple(facts[i].get(k) for k in keys) for i in among})

    def named(fact: dict[str, str], keys: list[str]) -> str:
        return " · ".join(
            "1 rank" if (key, fact[key]) == ("ranks", "1")
            else shapes[key].format(fact[key])
            for key in keys if fact.get(key))

    everyone = list(range(len(runs)))
    main = [key for key in _MAIN_FACTS
            if split([key], everyone) > 1 or len(runs) == 1 and key != "mode"]
    names = [named(fact, main) for fact in facts]
    for name in set(names):
        # Runs of one name get what else they differ in.
        alike = [i for i in everyone if names[i] == name]
        keys = list(main)
        for key in _OTHER_FACTS:
            if split(keys + [key], alike) > split(keys, alike):
                keys.append(key)
        for i in alike:
            names[i] = named(facts[i], keys)
    for name in set(names):
        same = [i for i in everyone if names[i] == name]
        if len(same) < 2:
            continue
        stems = {runs[i].path.stem for i in same}
        for i in same:
            path = runs[i].path
            file = path.stem if len(stems) == len(same) else str(path)
            names[i] = f"{name} ({file})" if name else file
    return [name or run.path.stem for name, run in zip(names, runs)]
