# SPDX-License-Identifier: Apache-2.0
"""The comparison of the Tree Attention paper (arXiv 2408.04093), and its formulae."""
import math
import statistics

from frame import DECODE, cell, json_of, table

METHODS = {"tree": "one combine", "ring": "Ring Attention", "allreduce3": "three allreduces"}


def formula(method, ranks, batch, heads, dim, keys, element):
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
    ring, partial = (formula(one, ranks, batch, heads, dim, keys, element)[1] for one in ("ring", "tree"))
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


def methods(program, ranks, keys, batch, heads, dim, dtype, repeat):
    """The results of all methods, by name. tests/tools/tools_checks.py compares them with both formulae."""
    found = json_of([program, "--ranks", ranks, "--batch", batch, "--tokens", keys, "--heads", heads, "--kv-heads", heads,
                     "--head-dim", dim, "--dtype", dtype, "--repeat", repeat, "--algorithm", "twoshot", "--method", "all",
                     "--timeout", 300])
    return {result["method"]: result for result in found["results"]}


def in_bytes(number):
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if number >= size), ("B", 1))
    return f"{number / size:.3g} {unit}"


def paper(options):
    def rows():
        for ranks in options.ranks:
            for keys in (8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20):
                runs = [methods(DECODE, ranks, keys, *shape, "f16", 3) for _ in range(options.rounds)]
                row = [f"{ranks}", f"{keys >> 10} K"]
                row += [cell(statistics.median(one[name]["latency_us"]["p50"] for one in runs), 0) for name in METHODS]
                for what in (0, 1):
                    for name, one in runs[0].items():
                        bytes_of = (one["bytes_sent_per_rank"], one["peak_extra_bytes_per_rank"] - one["arena_bytes_per_rank"])[what]
                        row.append(f"{in_bytes(bytes_of)}, {bytes_of / formula(name, ranks, *shape, keys // ranks, 2)[what]:.2f}")
                yield row

    shape = 1, 8, 32
    table(options, ["ranks", "keys"] + [f"{title}, {what}" for what in ("us", "sent", "held") for title in METHODS.values()], rows())
