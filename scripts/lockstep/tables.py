"""Tables that can be written as Markdown, LaTeX, CSV, HTML or plain text."""

from __future__ import annotations

import csv
import html
import io
import math
from dataclasses import dataclass, field
from typing import Any

FORMATS = ("markdown", "latex", "csv")


@dataclass
class Table:
    """Rows of texts and numbers. Numbers are shown to three or four digits,
    nan as an empty cell."""
    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    caption: str = ""

    def add(self, *cells: object) -> None:
        assert len(cells) == len(self.columns), (self.title, cells)
        self.rows.append(list(cells))

    def cells(self) -> list[list[str]]:
        return [[shown(cell) for cell in row] for row in self.rows]

    def numeric(self, column: int) -> bool:
        """Whether a column is of numbers, and so aligned to the right."""
        return all(isinstance(row[column], (int, float)) for row in self.rows)


def shown(value: object) -> str:
    """A number as a person reads it: 1234, 12.3, 0.0123, 1.2e-05."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "" if math.isnan(value) else str(value)
    if isinstance(value, int) or float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}".replace(",", " ") if abs(value) >= 1e5 \
            else str(int(value))
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """1 run, 2 runs"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
    rule = ["---:" if table.numeric(i) else "---"
            for i in range(len(table.columns))]
    rows = [table.columns, rule, *table.cells()]
    title = f"**{table.title}**\n\n" if table.title else ""
    return title + "\n".join(map(line, rows)) + "\n"


_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$",
          "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
          "^": r"\textasciicircum{}", "·": r"$\cdot$", "×": r"$\times$",
          "²": r"$^2$", "≥": r"$\geq$", "≤": r"$\leq$", "≈": r"$\approx$",
          "–": "--", "…": r"\dots{}"}


def latex(table: Table) -> str:
    """A booktabs table."""
    def line(cells: list[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell)
                          for cell in cells) + r" \\"
    how = "".join("r" if table.numeric(i) else "l"
                  for i in range(len(table.columns)))
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{how}}}",
        r"\toprule", line(table.columns), r"\midrule",
        *map(line, table.cells()), r"\bottomrule", r"\end{tabular}",
        r"\caption{" + "".join(_LATEX.get(c, c) for c in table.title) + "}",
        r"\end{table}", ""])


def comma_separated(table: Table) -> str:
    """Values with all their digits, under a comment with the title."""
    out = io.StringIO()
    out.write(f"# {table.title}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return out.getvalue()


def as_html(table: Table) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(
            f'<{tag}{" class=n" if table.rows and table.numeric(i) else ""}>'
            f"{html.escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)) + "</tr>"
    return ("<div class=table><table><thead>" + row(table.columns, "th") +
            "</thead><tbody>" + "".join(row(r, "td") for r in table.cells()) +
            "</tbody></table></div>")


def plain(table: Table) -> str:
    """Aligned columns for a terminal."""
    rows = [table.columns, *table.cells()]
    widths = [max(len(row[i]) for row in rows)
              for i in range(len(table.columns))]
    def line(cells: list[str]) -> str:
        return "  ".join(
            cell.rjust(width) if table.numeric(i) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths))).rstrip()
    title = table.title + "\n" if table.title else ""
    return title + "\n".join(map(line, rows)) + "\n"


def written(tables: list[Table], how: str) -> str:
    write = {"markdown": markdown, "latex": latex, "csv": comma_separated}[how]
    return "\n".join(write(table) for table in tables)
