"""The report: what is in it, and that a browser shows it."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import train
from lockstep import benchplots, plots, report
from lockstep.benchfile import read_benchmark
from lockstep.runfile import labels, read_run
from lockstep.tables import Table, latex, markdown, shown

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def make_benchmark(path: Path, name: str, units: list[str],
                   rows: np.ndarray, ranks: int = 1) -> Path:
    """A file as `bench` writes it."""
    with h5py.File(path, "w") as file:
        file.attrs["world_size"] = ranks
        file.attrs["cpu_name"] = "a processor"
        file[name] = rows
        file[name].attrs["units"] = units
    return path


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    """Flash and naive attention, the latter out of memory at the end."""
    rows = []
    for tokens in (128, 256, 512):
        for kind in (b"flash", b"naive"):
            out = kind == b"naive" and tokens == 512
            time = np.nan if out else tokens / 100
            rows.append((kind, b"fp32", 1, 2, 4, 16, tokens, time, 2 * time,
                         3 * time, np.nan if out else tokens / 64,
                         b"OUT OF MEMORY: 9.00 GiB more wanted" if out
                         else b""))
    return make_benchmark(
        tmp_path / "attention.h5", "attention",
        ["", "", "", "", "", "", "", "ms", "ms", "ms", "MiB", ""],
        np.array(rows, dtype=[
            ("attention", "S5"), ("precision", "S4"), ("causal", "i8"),
            ("batch", "i8"), ("heads", "i8"), ("head_dim", "i8"),
            ("tokens", "i8"), ("forward", "f8"), ("backward", "f8"),
            ("both", "f8"), ("memory", "f8"), ("note", "S40")]))


def collectives(path: Path, ranks: int) -> Path:
    rows = [(b"all_reduce", b"float", size, size // 4, size / 100,
             0.1, 0.1 * 2 * (ranks - 1) / ranks, 0, b"")
            for size in (1 << 20, 1 << 22, 1 << 24)]
    return make_benchmark(
        path, "collectives", ["", "", "B", "", "us", "GB/s", "GB/s", "", ""],
        np.array(rows, dtype=[
            ("op", "S12"), ("type", "S8"), ("size", "i8"), ("count", "i8"),
            ("time", "f8"), ("algbw", "f8"), ("busbw", "f8"), ("wrong", "f8"),
            ("note", "S8")]), ranks)


class Browser:
    """Headless Chromium on a page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _run(self, page: Path, *options: str) -> tuple[str, str]:
        done = subprocess.run(
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--enable-logging=stderr",
             f"--user-data-dir={self.folder / 'profile'}",
             "--virtual-time-budget=30000", *options, f"file://{page}"],
            capture_output=True, text=True, timeout=120)
        return done.stdout, done.stderr

    def dom(self, page: Path) -> tuple[str, list[str]]:
        """The page after its scripts ran, and what they logged."""
        out, log = self._run(page, "--dump-dom")
        return out, [line for line in log.splitlines() if ":CONSOLE" in line]

    def screenshot(self, page: Path, width: int) -> Path:
        """As a window of this width shows it. Chromium's own windows are at
        least 500 wide, a frame in one is not."""
        frame = self.folder / f"frame-{width}.html"
        frame.write_text(f"<body style='margin:0'><iframe src='{page.name}' "
                         f"style='border:0;width:{width}px;height:4000px'>")
        picture = self.folder / f"report-{width}.png"
        self._run(frame, f"--window-size={max(width, 500)},4000",
                  f"--screenshot={picture}")
        return picture


def write_report(files: list[Path], output: Path, *more: str) -> Path:
    assert report.main([*map(str, files), "-o", str(output), *more]) == 0
    return output


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_every_plot_of_the_report_has_marks_in_a_browser(
        records, troubled, attention, tmp_path):
    files = [*records.values(), troubled["nan"], troubled["killed"],
             troubled["out_of_memory"], attention,
             collectives(tmp_path / "two.h5", 2),
             collectives(tmp_path / "four.h5", 4)]
    page = write_report(files, tmp_path / "report.html")
    browser = Browser(tmp_path)
    dom, log = browser.dom(page)
    assert not log, "\n".join(log)

    figures = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    titles = [re.search("<h3>(.*?)</h3>", f).group(1) for f in figures]
    for wanted in ("Loss", "Tokens per second over the run",
                   "Phases of a step", "Memory by category",
                   "Bytes communicated", "Communication, busy and exposed",
                   "Strong scaling", "Weak scaling",
                   "Attention: time against sequence length",
                   "Attention: memory against sequence length",
                   "Bus bandwidth against size", "Time against ranks"):
        assert wanted in titles, titles
    assert any(t.startswith("Memory over time") for t in titles)
    assert any(t.startswith("Memory by rank") for t in titles)
    for title, figure in zip(titles, figures):
        assert re.search("<figcaption>.{40,}?</figcaption>", figure), title
        # Bars and points are paths inside traces; a mark has an outline.
        marks = re.findall(
            r'<path[^>]*class="(?:point|js-line|js-fill|box|vis)[^"]*"[^>]*'
            r'd="M[^"]+"|<g class="point[^>]*><path[^>]*d="M[^"]+"'
            r'|<path[^>]*d="M[^"]+"[^>]*class="(?:point|js-line|js-fill|box)',
            figure)
        assert marks, f"no marks in '{title}'"
        axes = re.findall(r'class="[xy]title"[^>]*>([^<]+)', figure)
        assert axes, f"no axis is named in '{title}'"
        assert any("(" in a or a in ("ranks", "step", "buffer size")
                   or "per second" in a for a in axes), axes
    for width in (1280, 400):
        picture = browser.screenshot(page, width)
        assert picture.stat().st_size > 30000


def test_every_plot_has_a_title_a_sentence_and_axes_with_units(
        records, troubled, attention, tmp_path):
    runs = [read_run(path) for path in
            (*records.values(), *troubled.values())]
    benchmarks = [read_benchmark(path) for path in (
        attention, collectives(tmp_path / "two.h5", 2),
        collectives(tmp_path / "four.h5", 4))]
    made = plots.run_plots(runs, labels(runs)) + benchplots.plots(benchmarks)
    assert len(made) > 15
    assert len({one.title for one in made}) == len(made)
    counted = {"step", "ranks", "tokens per second"}
    for one in made:
        assert one.title and one.section
        assert one.caption.endswith(".") and ". " not in one.caption
        x, y = (axis.title.text for axis in
                (one.figure.layout.xaxis, one.figure.layout.yaxis))
        # Bars and boxes lie on their side, with names at the other axis; sizes
        # of buffers have their units at the ticks.
        if any(trace.type in ("bar", "box") for trace in one.figure.data):
            y = "step"
        if x == "buffer size":
            assert one.figure.layout.xaxis.ticktext[0].endswith("iB")
            x = "step"
        for title in (x, y):
            assert title in counted or re.search(r"\(.+\)$", title), one.title


def test_the_page_needs_nothing_from_elsewhere(records, tmp_path):
    page = write_report([records["one"]], tmp_path / "r.html").read_text()
    outside = page[:page.index("<script>")] + \
        page[page.index("</script>"):]
    assert not re.search(r'(src|href)=["\']?https?:', outside)
    assert "Plotly.newPlot" in page


def test_what_the_page_is_of_is_counted(records, attention, tmp_path, capsys):
    page = tmp_path / "page.html"
    for files, what in (
            ([records["one"]], " of 1 run\n"),
            ([records["one"], records["fsdp"], attention],
             " of 2 runs and 1 benchmark\n")):
        assert report.main([*map(str, files), "-o", str(page)]) == 0
        assert capsys.readouterr().out.endswith(what)


def test_failures_are_told_at_the_top(troubled, tmp_path):
    page = write_report(list(troubled.values()), tmp_path / "r.html")
    text = page.read_text()
    top = text[text.index("<header>"):text.index("</header>")]
    assert "failed: the " in top
    assert "failed: out of memory" in top
    assert "is not finished" in top


def test_tables_hold_what_the_files_do(records, troubled, capsys):
    assert report.main([str(records["bucketed"]), str(troubled["one_step"]),
                        "--tables", "csv"]) == 0
    parts = capsys.readouterr().out.split("\n# ")
    assert parts[0].startswith("# Runs")
    rows = list(csv.DictReader(io.StringIO(parts[0].split("\n", 1)[1])))
    run = read_run(records["bucketed"])
    assert float(rows[0]["step (ms)"]) == pytest.approx(run.step_ms)
    assert float(rows[0]["± (ms)"]) == pytest.approx(
        run.slowest("step").std(ddof=1))
    assert float(rows[0]["tokens/s"]) == pytest.approx(run.tokens_per_second)
    assert rows[1]["steps"] == "1" and rows[1]["± (ms)"] == "nan"


def test_runs_of_several_seeds_are_one_row_of_costs(records, tmp_path, capsys):
    pair = [train(2, tmp_path / f"{seed}.h5", "--sync", "zero1", "--steps", "4",
                  "--seed", str(seed)) for seed in (1, 2)]
    files = [records["one"], *pair, records["fsdp"]]
    assert report.main([*map(str, files), "--tables", "csv"]) == 0
    part = next(p for p in capsys.readouterr().out.split("# ")
                if p.startswith("Communication and memory"))
    rows = list(csv.DictReader(io.StringIO(part.split("\n", 1)[1])))
    assert [row["seeds"] for row in rows] == ["2", "1"]
    runs = [read_run(path) for path in pair]
    for column, name in (("step (ms)", "step"), ("busy (ms)", "comm_busy"),
                         ("exposed (ms)", "comm_exposed")):
        assert float(rows[0][column]) == pytest.approx(np.median(
            np.concatenate([run.slowest(name) for run in runs])))
    # Weights, gradients and half of both moments.
    parameters = runs[0].attrs["parameters"]
    assert float(rows[0]["state (MiB)"]) * 2**20 == pytest.approx(
        parameters * (4 + 4 + 4), rel=0.05)
    assert int(rows[0]["collectives"]) == runs[0].comm["calls"][-1].max()
    assert float(rows[0]["sent (MiB)"]) * 2**20 == pytest.approx(
        runs[0].comm["bytes"][-1].max())


@pytest.mark.parametrize("how", ["markdown", "latex", "csv"])
def test_tables_are_written_in_each_format(records, attention, how, capsys):
    assert report.main([str(records["one"]), str(attention),
                        "--tables", how]) == 0
    out = capsys.readouterr().out
    sign = {"markdown": "| --- |", "latex": r"\begin{tabular}",
            "csv": "# Runs"}[how]
    assert sign in out and "OUT OF MEMORY" in out


def test_special_characters_survive_in_tables():
    table = Table("50 % of a_b & c", ["a|b", "n"], [["x_y|z", 1234567.0]])
    assert r"x_y\|z" in markdown(table)
    assert r"50 \% of a\_b \& c" in latex(table)
    assert shown(float("nan")) == "" and shown(0.01234) == "0.0123"
    assert shown(1234567) == "1 234 567" and shown(12.0) == "12"


def test_a_folder_stands_for_its_files(records, tmp_path, capsys):
    folder = records["one"].parent
    write_report([folder], tmp_path / "r.html")
    assert f"of {len(records)} runs" in capsys.readouterr().out


def test_a_job_s_folder_stands_for_its_record_not_its_checkpoints(
        tmp_path, capsys):
    job = tmp_path / "train-7"
    job.mkdir()
    train(1, job / "run.h5", "--steps", "2",
          "--checkpoint", str(job / "checkpoints"))
    assert list((job / "checkpoints").glob("*.h5"))
    write_report([job], tmp_path / "r.html")
    assert "of 1 run\n" in capsys.readouterr().out
    assert report.main([str(job / "checkpoints")]) == 1
    assert "no record or benchmark file" in capsys.readouterr().err


def test_wrong_files_are_one_line(tmp_path, capsys):
    bad = tmp_path / "bad.h5"
    bad.write_text("nothing")
    for words in ([str(bad)], [str(tmp_path / "none.h5")], [str(tmp_path)]):
        if words == [str(tmp_path)]:
            bad.unlink()
        assert report.main(words) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def python_programs() -> list[Path]:
    """Of scripts/, those that do without PyTorch."""
    texts = {path: path.read_text() for path in
             Path(report.__file__).resolve().parents[1].iterdir()
             if path.is_file()}
    return sorted(path for path, text in texts.items()
                  if text.startswith("#!/usr/bin/env python3")
                  and "import torch" not in text)


@pytest.mark.parametrize("program", python_programs(), ids=lambda p: p.name)
def test_programs_explain_themselves(program):
    done = subprocess.run([program, "--help"], capture_output=True, text=True,
                          timeout=60)
    if "lacks safetensors" in done.stderr:
        pytest.skip("there is no safetensors here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: " + program.name)
    wrong = subprocess.run([program, "--no-such-option"], capture_output=True,
                           text=True, timeout=60)
    assert wrong.returncode == 2
    assert "error: " in wrong.stderr.splitlines()[-1]
    assert "Traceback" not in wrong.stderr
