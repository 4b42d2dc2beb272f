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
    heading, rows = next(table for table in tables("performance.md") if table[0][:2] == ["cores", "bytes"])
    heading, rows = heading[1:], [row[1:] for row in rows if row[0] == "share a cache"]
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


def paper():
    """Lines of latency over keys, by method: a panel for each number of ranks."""
    heading, rows = next(table for table in tables("performance.md") if table[0][:2] == ["keys", "one combine"])
    figure, panels = pyplot.subplots(1, 3, figsize=(9.6, 3.4), sharey=True)
    for panel, (axes, ranks) in enumerate(zip(panels, ("2", "4", "8"))):
        for name, colour in zip(heading[1:4], ("#0072b2", "#d55e00", "#009e73")):
            times = [float(row[heading.index(name)].split(" / ")[panel].replace(",", "")) for row in rows]
            axes.plot(range(len(rows)), times, "o-", label=name, color=colour, markersize=4)
        axes.set_yscale("log")
        axes.set_xticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
        axes.set_title("%s ranks" % ranks, fontsize=11)
        axes.set_xlabel("keys")
        axes.grid(axis="y", color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("microseconds (log)")
    panels[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / "pictures" / "paper.svg", metadata={"Date": None})


def certain():
    """Lines of the share of pages that pruning reads, over epsilon."""
    _, rows = next(table for table in tables("certain.md") if table[0][:2] == ["tokens", "epsilon"])
    figure, axes = pyplot.subplots(figsize=(7.2, 3))
    for bounds, column, colour in (("codes", 4, "#0072b2"), ("boxes", 2, "#d55e00")):
        for tokens, line in (("2,000", "o--"), ("8,000", "o-")):
            own = [row for row in rows if row[0] == tokens and row[1][0].isdigit()]
            axes.plot(range(len(own)), [float(row[column]) for row in own], line, color=colour,
                      label="%s, %s tokens" % (bounds, tokens))
            axes.set_xticks(range(len(own)), [row[1] for row in own])
    axes.set(xlabel="epsilon", ylabel="share of pages read", ylim=(0, 1.05))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "pictures" / "certain.svg", metadata={"Date": None})


if __name__ == "__main__":
    combine()
    paper()
    certain()
