"""Tables of run records."""

from __future__ import annotations

import math

import numpy as np

from lockstep import tables
from lockstep.runfile import CATEGORIES, PHASES, Run, labels
from lockstep.tables import Table


def overview(runs: list[Run], names: list[str]) -> Table:
    table = Table("Runs", ["run", "model", "parameters (M)", "ranks", "sync",
                           "precision", "steps", "step (ms)", "± (ms)",
                           "tokens/s", "MFU (%)", "peak memory (MiB)",
                           "loss", "ended"])
    for run, name in zip(runs, names):
        steps = len(run.steps["step"][run.measured])
        step = run.slowest("step") if run.has_steps else np.array([])
        how = "out of memory" if run.out_of_memory else run.status
        table.add(
            name, run.model,
            int(run.attrs.get("parameters", 0)) / 1e6, run.ranks,
            run.config.get("sync", ""), run.config.get("precision", ""), steps,
            run.step_ms, float(step.std(ddof=1)) if len(step) > 1 else math.nan,
            run.tokens_per_second, 100 * run.mfu, run.peak_bytes / 2**20,
            float(run.steps["loss"][-1]) if run.has_steps else math.nan, how)
    return table


def phase_table(runs: list[Run], names: list[str]) -> Table:
    table = Table("Phases of the slowest rank in ms: mean ± standard deviation "
                  "over the measured steps",
                  ["run", *PHASES, "step", "busy", "exposed"])
    for run, name in zip(runs, names):
        if not run.has_steps:
            continue
        cells: list[object] = [name]
        for column in (*PHASES, "step", "comm_busy", "comm_exposed"):
            values = run.slowest(column)
            spread = f" ± {tables.shown(float(values.std(ddof=1)))}" \
                if len(values) > 1 else ""
            cells.append(tables.shown(float(values.mean())) + spread)
        table.add(*cells)
    return table


def _repeated(runs: list[Run]) -> list[list[Run]]:
    """Runs of several ranks, those together that differ in the seed alone."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        if run.has_steps and run.ranks > 1:
            same = tuple(sorted((key, value) for key, value in
                                run.config.items()
                                if key not in ("seed", "output")))
            groups.setdefault((run.ranks, same), []).append(run)
    return list(groups.values())


def cost_table(runs: list[Run]) -> Table | None:
    """What strategies cost and save; None without runs of several ranks."""
    groups = _repeated(runs)
    table = Table("Communication and memory: medians of the slowest rank over "
                  "the measured steps of all seeds",
                  ["run", "seeds", "step (ms)", "busy (ms)", "exposed (ms)",
                   "collectives", "sent (MiB)", "state (MiB)", "peak (MiB)"],
                  caption="State is parameters, gradients and optimizer; sent, "
                  "state and peak are of the rank with the most, in the last "
                  "step.")
    for name, group in zip(labels([group[0] for group in groups]), groups):
        last = group[-1]
        state = sum(last.memory[c][-1] for c in
                    ("parameters", "gradients", "optimizer"))
        table.add(name, len(group), *(
            float(np.median(np.concatenate([run.slowest(c) for run in group])))
            for c in ("step", "comm_busy", "comm_exposed")),
            int(last.comm["calls"][-1].max()),
            float(last.comm["bytes"][-1].max()) / 2**20,
            float(state.max()) / 2**20, last.peak_bytes / 2**20)
    return table if table.rows else None


def memory_table(runs: list[Run], names: list[str]) -> Table:
    table = Table("Memory of the fullest rank in MiB",
                  ["run", *CATEGORIES, "total", "peak"])
    for run, name in zip(runs, names):
        if not run.has_steps:
            continue
        rank = int(run.memory["total"][-1].argmax())
        table.add(name, *(float(run.memory[c][-1][rank]) / 2**20
                          for c in (*CATEGORIES, "total", "peak")))
    return table


def differences(runs: list[Run], names: list[str]) -> Table | None:
    """The options in which the runs differ."""
    table = Table("Options that differ", ["option", *names])
    keys = dict.fromkeys(key for run in runs for key in run.config)
    for key in keys:
        values = [run.config.get(key, "") for run in runs]
        if len(set(values)) > 1 and key not in ("output", "world-size"):
            table.add(key, *values)
    return table if table.rows and 1 < len(runs) <= 8 else None


def run_tables(runs: list[Run], names: list[str]) -> list[Table]:
    if not runs:
        return []
    made = [overview(runs, names), phase_table(runs, names),
            cost_table(runs), memory_table(runs, names),
            differences(runs, names)]
    return [table for table in made if table is not None and table.rows]
