#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: docs/charts.py

Draws the charts of the pages from the tables below them, into docs/pictures. Needs matplotlib."""
import pathlib
import re

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "banyan", "svg.fonttype": "none", "font.family": "sans-serif"})
from matplotlib import pyplot  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parent


def tables(page):
    """The tables of a page: for each a heading and rows, as lists of cells."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        yield rows[0], rows[2:]


def combine():
    """Bars of one combine by size, next to the forms of Open MPI."""
    heading, rows = next(table for table in tables("performance.md") if table[0][:2] == ["bytes", "banyan"])
    figure, axes = pyplot.subplots(figsize=(7.2, 3))
    series = heading[1:5]
    for i, name in enumerate(series):
        at = [k + (i - 1.5) * 0.2 for k in range(len(rows))]
        axes.bar(at, [float(row[1 + i]) for row in rows], 0.19, label=name, color=("#1b6ca8", "#b9c6d2", "#d8b98a", "#c98f8f")[i])
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), ["%s B" % row[0] for row in rows])
    axes.set_ylabel("microseconds (log)")
    axes.set_title("Combine of two processes on one node", fontsize=11)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "pictures" / "combine.svg", metadata={"Date": None})


if __name__ == "__main__":
    combine()
