"""The report's plots and tables of benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from lockstep.benchfile import Benchmark
from lockstep.plots import COLOURS, Plot, bar_layout, bars, plot
from lockstep.tables import Table

_TITLES = {"attention": "Attention", "collectives": "Collectives",
           "kernels": "Kernels", "gemm": "Matrix products",
           "weighted_sum": "Weighted sum"}


def _title(benchmark: Benchmark) -> str:
    return _TITLES.get(benchmark.name, benchmark.name)


def tables(benchmarks: list[Benchmark]) -> list[Table]:
    made = []
    for one in benchmarks:
        columns = [c for c in one.columns
                   if c != "note" or any(one.columns["note"])]
        heads = [f"{c} ({one.units[c]})" if one.units.get(c) else c
                 for c in columns]
        table = Table(f"{_title(one)}: {one.device_name}", heads)
        for row in one.rows:
            table.add(*(row[c].item() if isinstance(row[c], np.generic)
                        else row[c] for c in columns))
        if table.rows:
            made.append(table)
    return made


def _powers_of_two(values: np.ndarray) -> dict[str, Any]:
    """A logarithmic axis with the measured values as its ticks."""
    ticks = sorted(set(int(v) for v in values))
    while len(ticks) > 10:
        ticks = ticks[::-1][::2][::-1]
    return {"type": "log", "tickvals": ticks,
            "ticktext": [_short(t) for t in ticks]}


def _short(count: int) -> str:
    for power, letter in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if count >= power and count % power == 0:
            return f"{count // power}{letter}"
    return str(count)


def _bytes(count: float) -> str:
    for power, letter in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= power:
            size = count / power
            return f"{size:.0f} {letter}" if size >= 100 else \
                f"{size:.3g} {letter}"
    return f"{count:.0f} B"


# --- attention --------------------------------------------------------------

_SHAPE = ("precision", "causal", "batch", "heads", "head_dim")


def _attention_groups(benchmarks: list[Benchmark]) -> dict[
        tuple[str, ...], list[dict[str, Any]]]:
    """Rows by what else than the length sets them apart; the implementation
    first, and of the rest what differs between rows."""
    rows = [row for one in benchmarks for row in one.rows]
    telling = [k for k in _SHAPE if len({str(r[k]) for r in rows}) > 1]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        words = [str(row["attention"])]
        for key in telling:
            words.append(str(row[key]) if key == "precision"
                         else f"{key.replace('_', ' ')} {row[key]}")
        groups.setdefault(tuple(words), []).append(row)
    return {key: sorted(group, key=lambda r: r["tokens"])
            for key, group in groups.items()}


def _against_length(groups: dict[tuple[str, ...], list[dict[str, Any]]],
                    columns: dict[str, str], title: str, caption: str,
                    y: str) -> Plot:
    """columns: what to draw, with the dash of its lines."""
    traces: list[object] = []
    lengths = np.array([r["tokens"] for g in groups.values() for r in g])
    for i, (key, rows) in enumerate(groups.items()):
        colour = COLOURS[i % len(COLOURS)]
        for column, dash in columns.items():
            known = [r for r in rows if np.isfinite(r[column])]
            name = " · ".join(key) + \
                (f", {column}" if len(columns) > 1 else "")
            traces.append(go.Scatter(
                x=[int(r["tokens"]) for r in known],
                y=[float(r[column]) for r in known], name=name,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                hovertemplate="T = %{x}: %{y:.4g}<extra>" + name + "</extra>"))
        # Where memory ran out, a cross above the last length that fitted.
        out = [r for r in rows if "OUT OF MEMORY" in str(r.get("note", ""))]
        heights = [float(r[c]) for r in rows for c in columns
                   if np.isfinite(r[c])]
        if out:
            traces.append(go.Scatter(
                x=[int(r["tokens"]) for r in out],
                y=[2 * max(heights, default=1.0)] * len(out),
                name=" · ".join(key) + ": out of memory", mode="markers",
                marker={"symbol": "x", "size": 12, "color": colour,
                        "line": {"color": "#C00000", "width": 2}},
                text=[str(r["note"]) for r in out],
                hovertemplate="T = %{x}: %{text}<extra></extra>"))
    return plot("Attention", title, caption, traces, "sequence length T "
                "(tokens)", y, xaxis=_powers_of_two(lengths), yaxis_type="log",
                yaxis_exponentformat="power", height=460)


def attention(benchmarks: list[Benchmark]) -> list[Plot]:
    mine = [one for one in benchmarks if one.name == "attention" and one.rows]
    if not mine:
        return []
    groups = _attention_groups(mine)
    return [
        _against_length(
            groups, {"forward": "solid", "backward": "dot"},
            "Attention: time against sequence length", "Median time of one "
            "attention, both axes logarithmic: doubling T makes attention four "
            "times the work, and a cross marks where memory ran out.",
            "time (ms)"),
        _against_length(
            groups, {"memory": "solid"},
            "Attention: memory against sequence length", "Memory held before "
            "the backward pass: naive attention keeps a T × T matrix of scores "
            "per head and grows with T², flash attention with T; a cross marks "
            "where memory ran out.", "memory (MiB)")]


# --- collectives ------------------------------------------------------------

def collectives(benchmarks: list[Benchmark]) -> list[Plot]:
    mine = [one for one in benchmarks
            if one.name == "collectives" and one.rows]
    if not mine:
        return []
    series: dict[str, list[dict[str, Any]]] = {}
    for one in mine:
        for row in one.rows:
            transport = "NCCL" if one.attrs.get("device") == "cuda" else "MPI"
            name = f"{row['op']} · {row['type']} · {one.ranks} ranks · " \
                   f"{transport}"
            series.setdefault(name, []).append(row)
    sizes = np.array([r["size"] for rows in series.values() for r in rows])
    ticks = sorted(set(int(s) for s in sizes))
    axis = {"type": "log", "tickvals": ticks,
            "ticktext": [_bytes(t) for t in ticks]}

    def against_size(column: str, unit: str) -> list[object]:
        return [go.Scatter(
            x=[int(r["size"]) for r in rows],
            y=[float(r[column]) for r in rows], name=name,
            mode="lines+markers",
            line={"color": COLOURS[i % len(COLOURS)], "width": 2},
            text=[_bytes(float(r["size"])) for r in rows],
            hovertemplate=f"%{{text}}: %{{y:.4g}} {unit}"
                          f"<extra>{name}</extra>")
            for i, (name, rows) in enumerate(series.items())]
    plots = [
        plot("Collectives", "Bus bandwidth against size", "Bus bandwidth is "
             "what each link carries, comparable over collectives and numbers "
             "of ranks, and here out of place: small messages are limited by "
             "latency, large ones by the links.", against_size("busbw", "GB/s"), "buffer size",
             "bus bandwidth (GB/s)", xaxis=axis, yaxis_rangemode="tozero"),
        plot("Collectives", "Time against size", "Both axes logarithmic: flat "
             "where latency rules, and a straight slope where bandwidth does.",
             against_size("time", "µs"), "buffer size", "time (µs)",
             xaxis=axis, yaxis_type="log")]
    return plots + _against_ranks(mine)


def _against_ranks(mine: list[Benchmark]) -> list[Plot]:
    """The largest common size on several numbers of ranks."""
    times: dict[str, dict[int, dict[int, float]]] = {}
    for one in mine:
        for row in one.rows:
            times.setdefault(f"{row['op']} · {row['type']}", {}) \
                .setdefault(int(row["size"]), {})[one.ranks] = \
                float(row["time"])
    traces: list[object] = []
    ticks: set[int] = set()
    for i, (name, by_size) in enumerate(times.items()):
        size = max((s for s, t in by_size.items() if len(t) > 1), default=None)
        if size is None:
            continue
        ranks = sorted(by_size[size])
        ticks |= set(ranks)
        traces.append(go.Scatter(
            x=ranks, y=[by_size[size][r] for r in ranks],
            name=f"{name} · {_bytes(size)}", mode="lines+markers",
            line={"color": COLOURS[i % len(COLOURS)], "width": 2},
            hovertemplate="%{x} ranks: %{y:.4g} µs<extra></extra>"))
    if not traces:
        return []
    return [plot("Collectives", "Time against ranks", "The same buffer among "
                 "more and more ranks: ideally the time of an all-reduce "
                 "hardly grows, because each rank sends at most twice the "
                 "buffer.", traces, "ranks", "time (µs)",
                 xaxis={"tickvals": sorted(ticks)}, yaxis_rangemode="tozero")]


# --- other tables of one kind -----------------------------------------------

def _median(benchmark: Benchmark) -> str | None:
    """The column of times, by its unit."""
    timed = [c for c, unit in benchmark.units.items() if unit in ("ms", "us")]
    return next((c for c in ("median", "time", *timed) if c in timed), None)


def others(benchmarks: list[Benchmark]) -> list[Plot]:
    """Bars of the times of benchmarks that have no plot of their own."""
    plots = []
    for one in benchmarks:
        column = _median(one)
        if one.name in ("attention", "collectives") or not one.rows or \
                column is None:
            continue
        texts = [c for c, v in one.columns.items()
                 if isinstance(v, list) and c != "note"]
        whole = [c for c, v in one.columns.items()
                 if isinstance(v, np.ndarray) and v.dtype.kind == "i"
                 and len(set(v.tolist())) > 1]
        names = [" ".join([*(str(row[c]) for c in texts),
                           *(f"{c}={row[c]}" for c in whole)])
                 for row in one.rows]
        plots.append(plot(
            _title(one), f"{_title(one)}: time", "Median time of each, on "
            f"{one.device_name}; shorter is better, and the axis is "
            "logarithmic.",
            [bars(names, one.columns[column], column, COLOURS[0],
                  f" {one.units[column]}")],
            f"time ({one.units[column]})", "",
            **bar_layout(names, showlegend=False, xaxis_type="log")))
    return plots


def plots(benchmarks: list[Benchmark]) -> list[Plot]:
    return attention(benchmarks) + collectives(benchmarks) + others(benchmarks)
