"""The report's plots of run records. Each function gives a Plot, or None
where the runs have nothing to show in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lockstep.runfile import CATEGORIES, PHASES, Run, Timeline
from lockstep.scaling import Series, strong_scaling, weak_scaling

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
           "#8C6BB1", "#525252", "#B2A300", "#A6761D")
PHASE_COLOURS = dict(zip(PHASES, (
    "#999999", "#D9D9D9", "#56B4E9", "#E69F00", "#0072B2", "#D55E00",
    "#009E73")))
CATEGORY_COLOURS = dict(zip(CATEGORIES, (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#999999")))
MIB = 2**20


@dataclass
class Plot:
    section: str
    title: str
    caption: str
    figure: go.Figure


def plot(section: str, title: str, caption: str, traces: list[object],
         x: str, y: str, **layout: Any) -> Plot:
    """A figure in the report's style. x and y are the axes' titles."""
    figure = go.Figure(traces)
    # A legend takes at most half of the height; two names go in a row.
    rows = -(-len(figure.data) // 2)
    height = int(layout.pop("height", 400 + 24 * max(rows - 3, 0)))
    figure.update_layout(
        template="plotly_white", height=height, hovermode="closest",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 10, "r": 16, "t": 30, "b": 10},
        modebar={"orientation": "h"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0,
                "xanchor": "left", "traceorder": "normal"})
    figure.update_xaxes(title_text=x, automargin=True, zeroline=False)
    figure.update_yaxes(title_text=y, automargin=True, zeroline=False)
    figure.update_layout(**layout)
    return Plot(section, title, caption, figure)


def line(x: Any, y: Any, name: str, index: int = 0, unit: str = "",
         **more: Any) -> go.Scatter:
    more.setdefault("mode", "lines" if np.size(x) > 40 else "lines+markers")
    return go.Scatter(
        x=np.asarray(x).tolist(), y=np.asarray(y).tolist(), name=name,
        line={"color": COLOURS[index % len(COLOURS)], "width": 2},
        hovertemplate=f"%{{x}}: %{{y:.4g}}{unit}<extra>{name}</extra>", **more)


def bars(names: list[str], values: Any, name: str, colour: str,
         unit: str) -> go.Bar:
    """Horizontal, so that long names stay readable on a narrow screen."""
    return go.Bar(
        y=names, x=np.asarray(values).tolist(), name=name, orientation="h",
        marker={"color": colour},
        hovertemplate=f"%{{x:.4g}}{unit}<extra>{name}</extra>")


def bar_layout(names: list[str], **more: Any) -> dict[str, Any]:
    return {"height": 160 + 34 * len(names), "yaxis_autorange": "reversed",
            "bargap": 0.25, "yaxis_ticksuffix": " ", **more}


def with_steps(runs: list[Run], names: list[str]) -> list[tuple[int, Run, str]]:
    return [(i, run, name) for i, (run, name) in enumerate(zip(runs, names))
            if run.has_steps]


# --- training ---------------------------------------------------------------

def loss(runs: list[Run], names: list[str]) -> Plot | None:
    traces = []
    for i, run, name in with_steps(runs, names):
        values = run.steps["loss"]
        traces.append(line(run.steps["step"], values, name, i, " nats/token"))
        if run.validation.get("step") is not None and \
                len(run.validation["step"]):
            traces.append(line(
                run.validation["step"], run.validation["loss"],
                f"{name}, validation", i, " nats/token", mode="markers",
                marker={"symbol": "diamond", "size": 9}))
        bad = ~np.isfinite(values)
        if bad.any():
            at = int(run.steps["step"][bad][0])
            before = values[~bad]
            traces.append(line(
                [at], [before[-1] if len(before) else 0],
                f"{name}: not a number from step {at} on", i, mode="markers",
                marker={"symbol": "x", "size": 12, "color": "#C00000"}))
    if not traces:
        return None
    return plot("Training", "Loss", "The mean loss of each step's global "
                "batch: lower is better, and every strategy with the same "
                "batches should draw the same curve; diamonds are validation "
                "losses.", traces, "step", "loss (nats per token)")


def throughput(runs: list[Run], names: list[str]) -> Plot | None:
    traces = []
    for i, run, name in with_steps(runs, names):
        ms = run.timings["step"].max(axis=1)
        rate = 1e3 * run.steps["tokens"] / np.where(ms > 0, ms, np.nan)
        traces.append(line(run.steps["step"], rate, name, i, " tokens/s"))
    if not traces:
        return None
    return plot("Training", "Tokens per second over the run", "How many tokens "
                "all ranks together trained on per second, step by step; the "
                "first steps are slower because memory and caches are cold.",
                traces, "step", "tokens per second", yaxis_rangemode="tozero")


def utilisation(runs: list[Run], names: list[str]) -> Plot | None:
    known = [(run, name) for run, name in zip(runs, names)
             if math.isfinite(run.mfu)]
    if not known:
        return None
    rows = [name for _, name in known]
    return plot("Training", "Model FLOP utilisation", "The share of the "
                "devices' peak arithmetic rate that the model's own operations "
                "reached (causal attention counted by half, recomputation not "
                "at all).", [bars(rows, [100 * run.mfu for run, _ in known],
                                  "MFU", COLOURS[0], " %")],
                "MFU (% of peak)", "", **bar_layout(rows, showlegend=False))


# --- time -------------------------------------------------------------------

def phases(runs: list[Run], names: list[str]) -> Plot | None:
    known = with_steps(runs, names)
    if not known:
        return None
    rows = [name for _, _, name in known]
    traces = [bars(rows, [float(run.mean_over_ranks(phase).mean())
                          for _, run, _ in known],
                   phase, PHASE_COLOURS[phase], " ms") for phase in PHASES]
    return plot("Where time goes", "Phases of a step", "Time of each phase in "
                "an average step, the mean over ranks; grad_sync is the wait "
                "for gradients that the backward pass did not hide.", traces,
                "time per step (ms)", "", **bar_layout(rows, barmode="stack"))


def shares(runs: list[Run], names: list[str]) -> Plot | None:
    known = with_steps(runs, names)
    if len(known) < 2:
        return None
    rows = [name for _, _, name in known]
    whole = [float(run.mean_over_ranks("step").mean()) or math.nan
             for _, run, _ in known]
    traces = [bars(rows, [100 * float(run.mean_over_ranks(phase).mean()) / w
                          for (_, run, _), w in zip(known, whole)],
                   phase, PHASE_COLOURS[phase], " %") for phase in PHASES]
    return plot("Where time goes", "Phases as shares of the step", "The same "
                "phases as parts of each run's own step, to compare runs of "
                "different lengths.", traces, "share of the step (%)", "",
                **bar_layout(rows, barmode="stack", xaxis_range=[0, 100]))


def spread(runs: list[Run], names: list[str]) -> Plot | None:
    known = with_steps(runs, names)
    if not known:
        return None
    rows = [name for _, _, name in known]
    traces = [go.Box(x=run.slowest("step").tolist(), name=name,
                     marker={"color": COLOURS[i % len(COLOURS)]},
                     boxpoints="all", jitter=0.4, pointpos=0,
                     hovertemplate="%{x:.4g} ms<extra></extra>")
              for i, run, name in known]
    return plot("Where time goes", "Spread of step times", "Every dot is one "
                "measured step of the slowest rank; the box holds the middle "
                "half, its line the median; far dots are hiccups of the "
                "machine.", traces, "step time (ms)", "",
                **bar_layout(rows, showlegend=False,
                             xaxis_rangemode="tozero"))


def _to_look_inside(runs: list[Run], names: list[str]) -> list[
        tuple[Run, str]]:
    """The runs whose ranks are shown one by one: few, and of few ranks."""
    several = [(run, name) for _, run, name in with_steps(runs, names)
               if 1 < run.ranks <= 64]
    return sorted(several, key=lambda each: -each[0].ranks)[:2]


def ranks(runs: list[Run], names: list[str]) -> list[Plot]:
    plots = []
    for run, name in _to_look_inside(runs, names):
        rows = [f"rank {rank}" for rank in range(run.ranks)]
        traces = [bars(rows, run.timings[phase][run.measured].mean(axis=0),
                       phase, PHASE_COLOURS[phase], " ms")
                  for phase in PHASES]
        plots.append(plot(
            "Where time goes", f"Phases by rank: {name}", "An average step of "
            "each rank: a rank that computes longer makes the others wait for "
            "its gradients.", traces, "time per step (ms)", "",
            **bar_layout(rows, barmode="stack")))
    return plots


# --- memory -----------------------------------------------------------------

def _unit(most_bytes: float) -> tuple[float, str]:
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if most_bytes >= size:
            return size, name
    return 1, "bytes"


def memory(runs: list[Run], names: list[str]) -> Plot | None:
    known = with_steps(runs, names)
    if not known:
        return None
    rows = [name for _, _, name in known]
    fullest = [int(run.memory["total"][-1].argmax()) for _, run, _ in known]
    size, unit = _unit(max(run.peak_bytes for _, run, _ in known))
    traces: list[object] = [
        bars(rows, [run.memory[category][-1][rank] / size
                    for (_, run, _), rank in zip(known, fullest)],
             category, CATEGORY_COLOURS[category], f" {unit}")
        for category in CATEGORIES]
    traces.append(go.Scatter(
        y=rows, x=[run.peak_bytes / size for _, run, _ in known], name="peak",
        mode="markers", marker={"symbol": "line-ns-open", "size": 18,
                                "color": "black", "line": {"width": 2}},
        hovertemplate=f"%{{x:.4g}} {unit}<extra>peak</extra>"))
    return plot("Where memory goes", "Memory by category", "What the fullest "
                "rank holds at the end of a step; the black mark is the most "
                "that was held at once.", traces, f"memory per rank ({unit})",
                "", **bar_layout(rows, barmode="stack"))


def memory_by_rank(runs: list[Run], names: list[str]) -> list[Plot]:
    plots = []
    for run, name in _to_look_inside(runs, names):
        size, unit = _unit(run.peak_bytes)
        rows = [f"rank {rank}" for rank in range(run.ranks)]
        traces = [bars(rows, run.memory[category][-1] / size, category,
                       CATEGORY_COLOURS[category], f" {unit}")
                  for category in CATEGORIES]
        plots.append(plot(
            "Where memory goes", f"Memory by rank: {name}", "What every rank "
            "holds at the end of the last step: equal bars mean that the "
            "strategy shares evenly.", traces, f"memory ({unit})", "",
            **bar_layout(rows, barmode="stack")))
    return plots


def timeline(of: Timeline, name: str) -> Plot:
    held = of.held()
    total = np.sum(list(held.values()), axis=0)
    size, unit = _unit(total.max() if len(total) else 0)
    # To the end of the step, where nothing may have happened for long.
    ms = np.append(of.time_us, max(of.end_us, of.time_us[-1])) / 1e3 \
        if len(of.time_us) else np.array([])
    def extended(values: np.ndarray) -> np.ndarray:
        return np.append(values, values[-1]) / size
    traces: list[object] = [go.Scatter(
        x=ms.tolist(), y=extended(values).tolist(), name=category,
        stackgroup="held", mode="lines",
        line={"shape": "hv", "width": 0.5,
              "color": CATEGORY_COLOURS[category]},
        fillcolor=CATEGORY_COLOURS[category],
        hovertemplate=f"%{{y:.4g}} {unit}<extra>{category}</extra>")
        for category, values in held.items()]
    shapes = []
    if len(total):
        top = int(total.argmax())
        traces.append(go.Scatter(
            x=[ms[top]], y=[total[top] / size],
            name=f"peak {total[top] / size:.3g} {unit}", mode="markers",
            marker={"symbol": "star", "size": 13, "color": "black"},
            hovertemplate=f"peak %{{y:.4g}} {unit}<extra></extra>"))
        shapes = [{"type": "rect", "xref": "x", "yref": "paper", "y0": 0,
                   "y1": 1, "x0": of.begin_us / 1e3, "x1": of.end_us / 1e3,
                   "fillcolor": "#000000", "opacity": 0.06, "line_width": 0}]
    return plot("Where memory goes",
                f"Memory over time: {name}, step {of.step}, rank {of.rank}",
                "What this step holds, stacked by category from the moment it "
                "was allocated, with the peak marked; the shaded stretch is "
                "the step itself, flat because steps allocate next to "
                "nothing.",
                traces, "time since the device was opened (ms)",
                f"memory held ({unit})", shapes=shapes)


def timelines(runs: list[Run], names: list[str]) -> list[Plot]:
    """The first of each run, on rank 0; of many runs, of the one that holds the
    most and of the one that holds the least."""
    firsts = [(of, name) for of, name in (
        (next((t for t in run.timelines if t.rank == 0 and len(t.time_us)),
              None), name) for run, name in zip(runs, names))
        if of is not None]
    if len(firsts) > 3:
        firsts.sort(key=lambda each: -int(each[0].delta_bytes.sum()))
        firsts = [firsts[0], firsts[-1]]
    return [timeline(of, name) for of, name in firsts]


# --- communication ----------------------------------------------------------

def communication_volume(runs: list[Run], names: list[str]) -> Plot | None:
    known = [(i, r, n) for i, r, n in with_steps(runs, names) if r.ranks > 1]
    if not known:
        return None
    rows = [name for _, _, name in known]
    sent = [run.comm["bytes"][run.measured].mean(axis=0).max()
            for _, run, _ in known]
    size, unit = _unit(max(sent))
    return plot("Communication", "Bytes communicated", "What one rank puts "
                "into collectives in a step: an all-reduce of n bytes counts "
                "2n, other collectives n.",
                [bars(rows, np.array(sent) / size, "bytes", COLOURS[0],
                      f" {unit}")],
                f"communicated per rank and step ({unit})", "",
                **bar_layout(rows, showlegend=False))


def communication_time(runs: list[Run], names: list[str]) -> Plot | None:
    known = [(i, r, n) for i, r, n in with_steps(runs, names) if r.ranks > 1]
    if not known:
        return None
    rows = [name for _, _, name in known]
    traces = [
        bars(rows, [float(run.mean_over_ranks(what).mean())
                    for _, run, _ in known], name, colour, " ms")
        for what, name, colour in (
            ("comm_busy", "busy: collectives under way", COLOURS[5]),
            ("comm_exposed", "exposed: compute stood still", COLOURS[1]))]
    return plot("Communication", "Communication, busy and exposed", "How long "
                "collectives ran in an average step, and how much of that "
                "delayed the computation; the difference was hidden behind "
                "it.", traces, "time per step (ms)", "",
                **bar_layout(rows, barmode="group",
                             height=150 + 48 * len(rows)))


# --- scaling ----------------------------------------------------------------

def _scaling(series: list[Series], kind: str, explained: str) -> list[Plot]:
    if not series:
        return []
    speed: list[object] = []
    efficiency: list[object] = []
    for i, one in enumerate(series):
        speed.append(line(one.ranks, one.tokens_per_second, one.name, i,
                          " tokens/s", mode="lines+markers"))
        first = one.tokens_per_second[0] / one.ranks[0]
        speed.append(go.Scatter(
            x=one.ranks, y=[first * r for r in one.ranks], mode="lines",
            name="perfect scaling", showlegend=i == 0, hoverinfo="skip",
            line={"dash": "dot", "width": 1.5, "color": "#999999"}))
        efficiency.append(line(one.ranks, [100 * e for e in one.efficiency],
                               one.name, i, " %", mode="lines+markers"))
    ticks = sorted({r for one in series for r in one.ranks})
    axis = {"xaxis_type": "log" if ticks[-1] > 8 else "linear",
            "xaxis_tickvals": ticks,
            "xaxis_ticktext": [str(t) for t in ticks]}
    return [
        plot("Scaling", f"{kind} scaling", f"Tokens per second of all ranks "
             f"together {explained}; the dotted lines are perfect scaling.",
             speed, "ranks", "tokens per second", **axis,
             yaxis_rangemode="tozero"),
        plot("Scaling", f"{kind} scaling efficiency", "Speed per rank as a "
             "share of that on the fewest ranks: 100 % is perfect.",
             efficiency, "ranks", "efficiency (%)", **axis,
             yaxis_rangemode="tozero")]


def scaling(runs: list[Run]) -> list[Plot]:
    return _scaling(strong_scaling(runs), "Strong", "with the same global "
                    "batch on more and more ranks") + \
        _scaling(weak_scaling(runs), "Weak", "where every rank brings its own "
                 "batch of the same size")


def run_plots(runs: list[Run], names: list[str]) -> list[Plot]:
    """All plots of run records, in the report's order."""
    singles = [make(runs, names) for make in (
        loss, throughput, utilisation, phases, shares, spread)]
    plots = [p for p in singles if p is not None] + ranks(runs, names)
    for make in (memory,):
        made = make(runs, names)
        plots += [made] if made else []
    plots += memory_by_rank(runs, names) + timelines(runs, names)
    for make in (communication_volume, communication_time):
        made = make(runs, names)
        plots += [made] if made else []
    return plots + scaling(runs)
