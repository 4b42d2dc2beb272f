#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison of the Tree Attention paper (arXiv 2408.04093): one combine, Ring Attention and three allreduces, over ranks of
one machine, with what each sends and holds beside the paper's formulae.

usage: tests/tools/paper.py [--decode PROGRAM] [--ranks 2,4,8] [--keys 8192,32768,...] [--repeat N] [--rounds N]

Prints the figures of the table in docs/performance.md; times are medians over rounds. docs/charts.py draws them.
tests/tools/tools_checks.py compares small sizes with exact(), the bytes of banyan's own layout, and with paper(), which
leaves out padding."""
import argparse
import json
import math
import statistics
import subprocess
import sys

METHODS = ("tree", "ring", "allreduce3")
TITLES = {"tree": "one combine", "ring": "Ring Attention", "allreduce3": "three allreduces"}


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
    """Returns the cells of a row: latency; bytes and memory of each method, next to those of the paper."""
    cells = [f"{ranks}", f"{keys // 1024} K"]
    cells += [f"{times[method]:,.0f}" for method in METHODS]
    for what in (0, 1):
        for method in METHODS:
            result = found[method]
            measured = (result["bytes_sent_per_rank"], result["peak_extra_bytes_per_rank"] - result["arena_bytes_per_rank"])[what]
            formula = paper(method, ranks, *shape, keys // ranks, 2)[what]
            cells.append(f"{in_bytes(measured)}, {measured / formula:.2f}")
    return cells


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", default="build/banyan-decode")
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    parser.add_argument("--keys", type=numbers, default=[8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    shape = 1, 8, 32
    head = ["ranks", "keys"] + [f"{TITLES[m]}, {what}" for what in ("us", "sent", "held") for m in METHODS]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for ranks in arguments.ranks:
        for keys in arguments.keys:
            runs = [decode(arguments.decode, ranks, keys, *shape, "f16", arguments.repeat) for _ in range(arguments.rounds)]
            times = {method: statistics.median(run[method]["latency_us"]["p50"] for run in runs) for method in METHODS}
            print("| " + " | ".join(line(ranks, keys, runs[0], times, shape)) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
