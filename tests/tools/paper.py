#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the Tree Attention paper (arXiv 2408.04093): one combine, Ring Attention and three allreduces, over ranks of
one machine, with what each sends and holds beside the paper's formulae.

usage: tests/tools/paper.py [--decode PROGRAM] [--ranks 2,4,8] [--keys 8192,32768,...] [--repeat N] [--rounds N] [--svg FILE]

Prints a table, whose times are medians over rounds, and with --svg draws its latencies. tests/tools/tools_checks.py compares small sizes with exact(), the bytes of
banyan's own layout, and with paper(), which leaves out padding."""
import argparse
import json
import math
import statistics
import subprocess
import sys

METHODS = ("tree", "ring", "allreduce3")
TITLES = {"tree": "one combine", "ring": "Ring Attention", "allreduce3": "three allreduces"}
COLOURS = {"tree": "#0072b2", "ring": "#d55e00", "allreduce3": "#009e73"}


# ---- formulae ----------------------------------------------------------------------------------------------------------


def paper(method, ranks, batch, heads, dim, keys, element):
    """(bytes sent by a rank, bytes held beyond inputs and output). `keys` are those of a rank, of `element` bytes; partials
    are f32. The paper counts p steps of the ring, of which the last brings back what the rank had: p - 1 send something.
    Its Tree Attention is three allreduces, and one combine is counted alike."""
    hidden = heads * dim
    if method == "ring":
        return 2 * batch * keys * hidden * element * (ranks - 1), 2 * batch * keys * hidden * element
    partial = 4 * (batch * hidden + 2 * batch * heads)
    return 2 * (ranks - 1) / ranks * partial, partial


def memory_ratio(method, ranks, batch, heads, dim, keys, element):
    """The least and the most that banyan holds, in units of what the paper counts. The ring has two buffers from three ranks
    on, and two partials and a list of lengths; three allreduces have a second partial and five more statistics of a row."""
    ring, partial = paper("ring", ranks, batch, heads, dim, keys, element)[1], paper("tree", ranks, batch, heads, dim, keys, element)[1]
    if method == "ring":
        return min(2, ranks - 1), min(2, ranks - 1) + (2 * partial + 4 * ranks * batch) / ring
    ratio = 1 if method == "tree" else 2 + 5 / (dim + 2)
    return ratio, ratio


def box(rows, dim):
    """A message: two statistics and the values of each row, in lines of 64 bytes."""
    return 64 * (math.ceil(8 * rows / 64) + math.ceil(4 * rows * dim / 64)) if rows else 0


def twoshot(ranks, batch, heads, dim):
    """The bytes that the rank with most sends: each piece to its owner, and its own merged piece to all."""
    pieces = [box(batch * (heads // ranks + (rank < heads % ranks)), dim) for rank in range(ranks)]
    return max(sum(pieces) - own + (ranks - 1) * own for own in pieces)


def exact(method, ranks, batch, heads, dim, keys, element):
    """The same of banyan-decode with --algorithm twoshot, whose heads are at least as many as ranks. Memory is without arena."""
    rows, shard = batch * heads, 2 * batch * keys * heads * dim * element
    if method == "tree":
        return twoshot(ranks, batch, heads, dim), 4 * rows * (dim + 2)
    if method == "allreduce3":
        return 2 * twoshot(ranks, batch, heads, 0) + twoshot(ranks, batch, heads, dim), 4 * rows * (2 * dim + 9)
    return (ranks - 1) * shard, min(2, ranks - 1) * shard + 2 * 4 * rows * (dim + 2) + 4 * ranks * batch


# ---- runs --------------------------------------------------------------------------------------------------------------


def decode(program, ranks, keys, batch, heads, dim, dtype, repeat):
    """The JSON object of a run of all methods."""
    done = subprocess.run([program, "--ranks", str(ranks), "--batch", str(batch), "--tokens", str(keys), "--heads", str(heads),
                           "--kv-heads", str(heads), "--head-dim", str(dim), "--dtype", dtype, "--repeat", str(repeat), "--json",
                           "--algorithm", "twoshot", "--method", "all", "--timeout", "300"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, text=True)
    return {result["method"]: result for result in json.loads(done.stdout)["results"]}


def in_bytes(number):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def line(ranks, keys, found, times, shape):
    """Cells of a row: latency; bytes and memory of each method, beside the paper's."""
    cells = [f"{ranks}", f"{keys // 1024} K"]
    cells += [f"{times[method]:,.0f}" for method in METHODS]
    for what in (0, 1):
        for method in METHODS:
            result = found[method]
            measured = (result["bytes_sent_per_rank"], result["peak_extra_bytes_per_rank"] - result["arena_bytes_per_rank"])[what]
            formula = paper(method, ranks, *shape, keys // ranks, 2)[what]
            cells.append(f"{in_bytes(measured)}, {measured / formula:.2f}")
    return cells


# ---- the picture -------------------------------------------------------------------------------------------------------


def picture(points):
    """An SVG of latencies over keys, both logarithmic: a panel for each number of ranks."""
    ranks = sorted({r for r, _ in points})
    keys = sorted({k for _, k in points})
    times = [us for row in points.values() for us in row.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    panel, left, top, height = 230, 60, 40, 240
    width = left + len(ranks) * (panel + 20)

    def x(index, key):
        return left + index * (panel + 20) + panel * (math.log(key / keys[0]) / math.log(keys[-1] / keys[0]) if len(keys) > 1 else 0.5)

    def y(us):
        return top + height * (high - math.log10(us)) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height + 70}" '
           f'viewBox="0 0 {width} {top + height + 70}" role="img" font-family="sans-serif" font-size="12">',
           "<title>Latency of a layer's attention over sharded keys, by method</title>",
           '<rect width="100%" height="100%" fill="#ffffff"/>']
    for index, number in enumerate(ranks):
        begin = left + index * (panel + 20)
        out.append(f'<rect x="{begin}" y="{top}" width="{panel}" height="{height}" fill="none" stroke="#999999"/>')
        out.append(f'<text x="{begin + panel / 2:.0f}" y="{top - 10}" text-anchor="middle">{number} ranks</text>')
        for power in range(low, high + 1):
            at = y(10.0 ** power)
            out.append(f'<line x1="{begin}" y1="{at:.1f}" x2="{begin + panel}" y2="{at:.1f}" stroke="#dddddd"/>')
            if index == 0:
                name = f"{10 ** power} us" if power < 3 else f"{10 ** (power - 3)} ms" if power < 6 else f"{10 ** (power - 6)} s"
                out.append(f'<text x="{begin - 6}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
        for key in keys[::2] if len(keys) > 5 else keys:
            name = f"{key // 1024} K" if key < 1 << 20 else f"{key >> 20} M"
            out.append(f'<text x="{x(index, key):.1f}" y="{top + height + 16}" text-anchor="middle">{name}</text>')
        for method in METHODS:
            path = " ".join(f"{x(index, key):.1f},{y(points[number, key][method]):.1f}" for key in keys if (number, key) in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[method]}" stroke-width="2"/>')
            for point in path.split():
                at = point.split(",")
                out.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{COLOURS[method]}"/>')
    for index, method in enumerate(METHODS):
        at = left + 150 * index
        out.append(f'<line x1="{at}" y1="{top + height + 48}" x2="{at + 24}" y2="{top + height + 48}" stroke="{COLOURS[method]}" '
                   'stroke-width="2"/>')
        out.append(f'<text x="{at + 30}" y="{top + height + 52}">{TITLES[method]}</text>')
    out.append(f'<text x="{width - 20}" y="{top + height + 34}" text-anchor="end">keys</text>')
    return "\n".join(out + ["</svg>", ""])


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", default="build/banyan-decode")
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    parser.add_argument("--keys", type=numbers, default=[8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg")
    arguments = parser.parse_args()
    shape = 1, 8, 32
    head = ["ranks", "keys"] + [f"{TITLES[m]}, {what}" for what in ("us", "sent", "held") for m in METHODS]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    points = {}
    for ranks in arguments.ranks:
        for keys in arguments.keys:
            runs = [decode(arguments.decode, ranks, keys, *shape, "f16", arguments.repeat) for _ in range(arguments.rounds)]
            times = {method: statistics.median(run[method]["latency_us"]["p50"] for run in runs) for method in METHODS}
            points[ranks, keys] = times
            print("| " + " | ".join(line(ranks, keys, runs[0], times, shape)) + " |", flush=True)
    if arguments.svg:
        with open(arguments.svg, "w", encoding="utf-8") as stream:
            stream.write(picture(points))


if __name__ == "__main__":
    sys.exit(main())
