"""Groups of runs that differ in the number of ranks alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Callable

from lockstep.runfile import Run

# What may differ between runs of one series besides the ranks.
_FREE = {"output", "sync", "seed", "steps", "decay-steps", "warmup-iterations",
         "world-size", "threads", "memory-timeline", "trace", "progress",
         "batch-size", "grad-accumulation", "share-gpu", "save-weights",
         "warmup-steps", "checkpoint", "checkpoint-every", "keep", "resume",
         "init", "generate", "timeout", "validation-every"}


@dataclass(frozen=True)
class Series:
    """The same training on rising numbers of ranks."""
    name: str
    ranks: list[int]
    tokens_per_second: list[float]

    @property
    def efficiency(self) -> list[float]:
        first = self.tokens_per_second[0] / self.ranks[0]
        return [t / r / first
                for t, r in zip(self.tokens_per_second, self.ranks)]


def _series(runs: list[Run], batch: Callable[[Run], int]) -> list[Series]:
    """Runs with equal options and equal `batch(run)`, on at least two numbers
    of ranks. A run on one rank without a strategy belongs to every series."""
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        if not run.has_steps or run.status == "failed":
            continue
        same = tuple(sorted((k, v) for k, v in run.config.items()
                            if k not in _FREE))
        groups[same, str(run.attrs.get("device")), batch(run)].append(run)
    series = []
    for members in groups.values():
        alone = [r for r in members if r.config.get("sync") == "none"]
        strategies = sorted({r.config.get("sync", "") for r in members} -
                            {"none"})
        for sync in strategies:
            best: dict[int, float] = {}
            for run in alone + [r for r in members
                                if r.config.get("sync") == sync]:
                best[run.ranks] = max(best.get(run.ranks, 0),
                                      run.tokens_per_second)
            if len(best) > 1:
                name = " · ".join([members[0].model, sync,
                                   members[0].config.get("precision", "")])
                ranks = sorted(best)
                series.append(Series(name, ranks, [best[r] for r in ranks]))
    return series


def strong_scaling(runs: list[Run]) -> list[Series]:
    """Equal global batches."""
    return _series(runs, lambda run: run.global_batch)


def weak_scaling(runs: list[Run]) -> list[Series]:
    """Equal batches per rank."""
    return _series(runs, lambda run: run.global_batch // run.ranks)
