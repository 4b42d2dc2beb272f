#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: docs/charts.py

Draws the charts of the pages from the tables below them, into docs/pictures. Needs matplotlib. docs/scale.py draws its
charts in the same style."""
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent


def start(size=(7.2, 3), panels=1):
    """A figure and its axes."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "banyan", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot

    return pyplot.subplots(1, panels, figsize=size, sharey=True)


def finish(figure, name, *panels):
    """Writes docs/pictures/NAME."""
    panels[0].legend(frameon=False, fontsize=8)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "pictures" / name, metadata={"Date": None})


def table(page, heading):
    """Heading and rows of a page's table that begins with this heading, as lists of cells."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        if rows[0][:len(heading)] == heading:
            return rows[0], rows[2:]
    raise SystemExit("%s has no table that begins with %s" % (page, heading))


def combine():
    """Bars of one combine by size, next to the forms of Open MPI."""
    heading, rows = table("performance.md", ["cores", "bytes"])
    rows = [row[1:] for row in rows if row[0] == "share a cache"]
    figure, axes = start()
    for i, (name, colour) in enumerate(zip(heading[2:6], ("#1b6ca8", "#b9c6d2", "#d8b98a", "#c98f8f"))):
        at = [k + (i - 1.5) * 0.2 for k in range(len(rows))]
        axes.bar(at, [float(row[1 + i]) for row in rows], 0.19, label=name, color=colour)
    axes.set(yscale="log", ylabel="microseconds (log)")
    axes.set_xticks(range(len(rows)), ["%s B" % row[0] for row in rows])
    axes.set_title("Combine of two processes on one node", fontsize=11)
    finish(figure, "combine.svg", axes)


def paper():
    """Lines of latency over keys, by method: a panel for each number of ranks."""
    heading, rows = table("performance.md", ["keys", "one combine"])
    figure, panels = start((9.6, 3.4), 3)
    for panel, (axes, ranks) in enumerate(zip(panels, ("2", "4", "8"))):
        for name, colour in zip(heading[1:4], ("#0072b2", "#d55e00", "#009e73")):
            times = [float(row[heading.index(name)].split(" / ")[panel].replace(",", "")) for row in rows]
            axes.plot(range(len(rows)), times, "o-", label=name, color=colour, markersize=4)
        axes.set(yscale="log", xlabel="keys")
        axes.set_xticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
        axes.set_title("%s ranks" % ranks, fontsize=11)
        axes.grid(axis="y", color="#dddddd")
    panels[0].set_ylabel("microseconds (log)")
    finish(figure, "paper.svg", *panels)


def certain():
    """Lines of the share of pages that pruning reads, over epsilon."""
    _, rows = table("certain.md", ["tokens", "epsilon"])
    figure, axes = start()
    for tokens, line in (("2,000", "o--"), ("8,000", "o-")):
        own = [row for row in rows if row[0] == tokens and row[1][0].isdigit()]
        axes.plot(range(len(own)), [float(row[2]) for row in own], line, color="#0072b2", label="%s tokens" % tokens)
        axes.set_xticks(range(len(own)), [row[1] for row in own])
    axes.set(xlabel="epsilon", ylabel="share of pages read", ylim=(0, 1.05))
    finish(figure, "certain.svg", axes)


if __name__ == "__main__":
    combine()
    paper()
    certain()
