"""report.py: one page of plots and tables from run records and benchmarks."""

from __future__ import annotations

import argparse
import html
import sys
from pathlib import Path

import plotly.io
from plotly.offline import get_plotlyjs

from lockstep import benchfile, benchplots, plots, tables
from lockstep.plots import Plot
from lockstep.runfile import (NotARecord, Run, is_checkpoint, labels,
                              read_run)
from lockstep.summary import run_tables
from lockstep.tables import Table, counted

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1d1d1f; margin: 0 auto;
  max-width: 1080px; padding: 0 16px 64px; background: #fff; }
header { padding: 32px 0 8px; border-bottom: 1px solid #ddd; }
h1 { font-size: 1.9rem; margin: 0 0 4px; }
h2 { font-size: 1.35rem; margin: 44px 0 4px; border-bottom: 1px solid #eee;
  padding-bottom: 6px; }
h3 { font-size: 1.05rem; margin: 28px 0 0; }
p.note { color: #555; margin: 4px 0; overflow-wrap: anywhere; }
nav { margin: 12px 0; }
nav a { margin-right: 14px; white-space: nowrap; color: #0072B2;
  text-decoration: none; }
figure { margin: 18px 0 30px; }
figcaption { color: #555; font-size: 0.93rem; margin: 0 0 6px; }
.table { overflow-x: auto; margin: 8px 0 20px; }
table { border-collapse: collapse; font-size: 0.86rem; }
th, td { padding: 4px 10px; border-bottom: 1px solid #e4e4e4;
  text-align: left; white-space: nowrap; vertical-align: top; }
th { border-bottom: 2px solid #999; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
p.bad { color: #b00020; }
footer { margin-top: 48px; color: #777; font-size: 0.85rem; }
"""


def gather_paths(arguments: list[str]) -> list[Path]:
    """Files as they are, folders as the records and benchmark files in
    them and below, without the runs' checkpoints."""
    paths = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            found = [file for file in sorted(path.rglob("*.h5"))
                     if not is_checkpoint(file)]
            if not found:
                raise NotARecord(f"{path}: no record or benchmark file in "
                                 "this folder")
            paths += found
        else:
            paths.append(path)
    return paths


def _machines(runs: list[Run]) -> str:
    facts = dict.fromkeys(
        f"{run.device_name}, "
        f"{counted(len(set(run.attrs.get('hostnames', []))), 'host')}, "
        f"{run.attrs.get('mpi_version', '')}, Lockstep "
        f"{run.attrs.get('version', '')} ({run.attrs.get('git_revision', '')})"
        for run in runs)
    return "; ".join(facts)


def _troubles(runs: list[Run], names: list[str]) -> list[str]:
    lines = []
    for run, name in zip(runs, names):
        if run.status == "failed":
            lines.append(f"{name} failed: {run.error}")
        elif run.status == "unfinished":
            lines.append(f"{name} is not finished: it is still running or was "
                         f"killed; the record has "
                         f"{counted(len(run.steps['step']), 'step')}.")
    return lines


def page(title: str, runs: list[Run], names: list[str], all_plots: list[Plot],
         all_tables: list[Table]) -> str:
    """The whole page, with the plotting library in it."""
    sections = list(dict.fromkeys(p.section for p in all_plots))
    anchors = {s: s.lower().replace(" ", "-") for s in sections}
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<link rel=icon href='data:,'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<script>{get_plotlyjs()}</script></head><body>",
        f"<header><h1>{html.escape(title)}</h1>"]
    if runs:
        dates = sorted(str(run.attrs.get("created", "")) for run in runs)
        when = dates[0] if dates[0] == dates[-1] else \
            f"{dates[0]} to {dates[-1]}"
        parts.append(f"<p class=note>{html.escape(_machines(runs))}</p>"
                     f"<p class=note>Started {html.escape(when)}.</p>")
    for line in _troubles(runs, names):
        parts.append(f"<p class='note bad'>{html.escape(line)}</p>")
    parts.append("<nav>" + " ".join(
        f"<a href='#{anchors[s]}'>{html.escape(s)}</a>" for s in sections) +
        " <a href='#tables'>Tables</a></nav></header>")
    for section in sections:
        parts.append(f"<h2 id='{anchors[section]}'>{html.escape(section)}</h2>")
        for one in (p for p in all_plots if p.section == section):
            figure = plotly.io.to_html(
                one.figure, full_html=False, include_plotlyjs=False,
                config={"responsive": True, "displaylogo": False,
                        "modeBarButtonsToRemove": [
                            "zoom2d", "pan2d", "select2d", "lasso2d",
                            "zoomIn2d", "zoomOut2d", "autoScale2d"]})
            parts.append(f"<figure><h3>{html.escape(one.title)}</h3><figcaption>"
                         f"{html.escape(one.caption)}</figcaption>{figure}"
                         "</figure>")
    parts.append("<h2 id=tables>Tables</h2>")
    for table in all_tables:
        parts.append(f"<h3>{html.escape(table.title)}</h3>" +
                     (f"<p class=note>{html.escape(table.caption)}</p>"
                      if table.caption else "") + tables.as_html(table))
    parts.append("<footer>Averages leave out warm-up iterations (without any, "
                 "the first step). Hover over a plot for values, drag to zoom, "
                 "double-click to zoom out; click a name in a legend to hide "
                 "it.</footer></body></html>")
    return "\n".join(parts)


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="report.py", description="Plots and tables of run records and "
        "benchmark files, as one HTML page that needs nothing else.")
    parser.add_argument("files", nargs="+", metavar="FILE.h5",
                        help="records and benchmark files, or folders of them")
    parser.add_argument("-o", "--output", default="report.html", type=Path,
                        metavar="FILE.html", help="default: %(default)s")
    parser.add_argument("--tables", choices=tables.FORMATS,
                        help="print the tables in this format, and write no "
                        "page")
    parser.add_argument("--title", default="Lockstep report")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    a = parse_arguments(words)
    runs: list[Run] = []
    benchmarks: list[benchfile.Benchmark] = []
    try:
        for path in gather_paths(a.files):
            if benchfile.is_benchmark(path):
                benchmarks.append(benchfile.read_benchmark(path))
            else:
                runs.append(read_run(path))
    except NotARecord as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    names = labels(runs)
    all_tables = run_tables(runs, names) + benchplots.tables(benchmarks)
    if a.tables:
        print(tables.written(all_tables, a.tables), end="")
        return 0
    all_plots = plots.run_plots(runs, names) + benchplots.plots(benchmarks)
    try:
        a.output.write_text(page(a.title, runs, names, all_plots, all_tables),
                            encoding="utf-8")
    except OSError as error:
        print(f"error: cannot write {a.output}: {error.strerror}",
              file=sys.stderr)
        return 1
    of = [counted(len(files), noun) for files, noun in
          ((runs, "run"), (benchmarks, "benchmark")) if files]
    print(f"{a.output}: {counted(len(all_plots), 'plot')} and "
          f"{counted(len(all_tables), 'table')} of {' and '.join(of)}")
    return 0
