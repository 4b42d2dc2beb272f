#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench: banyan and its rivals in turns, round after round, and a table of medians for each view.

usage: tests/bench/bench.py VIEW [--rounds N] [--json] [OPTION]...

Attention of one rank:
attention  next to a loop of reads and to torch's scaled_dot_product_attention, over types: with enable_gqa (on repeated KV
           heads before torch 2.5), and with the query heads of a KV head folded into queries
prefill    prompts: causal attention of many queries next to loops of FMA and of dot products of bf16 and to torch, over numbers
           of queries and keys
shares     prompts over ranks: the work of the slowest rank over the mean, by ownership of keys; counted pairs of a query and a
           key that it sees, and the time of one thread, rank after rank
shapes     attention over types, groups, head_dim and batch, 128 MiB of keys and values each, next to a loop of reads and to
           the limit that the loops of reads and of FMA set
mla        128 heads on one KV head, over 8,192 keys, and over 2,048 of 65,536 in random order; shares of a loop of FMA
prune      the keys of a real model with pages left out: what is read, errors, certificates and time, by epsilon. --text has the
           text, by default LICENSE, README.md and docs/python.md; --cache keeps keys, since 8,000 tokens take minutes
peaked     the same of random keys, of which one run of 64 in 64 has larger logits
paper      the comparison of the Tree Attention paper (arXiv 2408.04093): one combine, Ring Attention, three allreduces, with
           what a rank sends and holds next to the paper's formulae; docs/charts.py draws it

Calls from Python; the first figure of a form is the round that a tenth of the rounds beat:
calls      a combine in C, from numpy and from torch, and by gloo: one rank, and two ranks as processes; by mpirun -n 2 also
           by mpi4py
select     the 2,048 best of 131,072 scores, here and of all ranks
layer      a layer of a decoder with a number of tokens that was not seen before
jax        jax_ops.combine over devices of one process (--ranks) next to a pmax and two psums
first-token  the time to the first token of a small Qwen3 of random weights in f32 (--tokens of the prompts): stock attention
           in one process, and a ShardedCache on one rank and on two; the best round of each

Messages:
record     a combine of two processes without the flight recorder, with it, and with a trace as well
latency    two nodes of one rank: a combine in a row of combines (banyan-perf --in-a-row) against ucx_perftest one way, UCX
           both ways at once (tests/bench/bench_exchange), and Open MPI over its own TCP and over UCX
sums       a sum of f32 by banyan, Open MPI, and of those that Python has: Communicator.allreduce in place, vLLM's shared memory
           and gloo through torch; 2, 4 and 8 ranks on this node, two nodes of one and of two ranks; the best of all rounds.
           "both ways" is UCX moving as many bytes in both directions at once between two nodes of one rank
levels     1 Gbit/s and 0.1 ms between nodes: levels against recursive doubling, and bytes that a rank sends
overlap    attention and combine between nodes, in one piece and in slices (banyan-decode --method overlap)
passes     1 Gbit/s and 0.1 ms between two nodes: prompts that combine partials, that gather keys, and that choose by price
           (BANYAN_PASS)

Nodes are network namespaces (tests/hosts/hosts). Their ranks, and the process that is the switch of slow networks, have
real-time priority if that is allowed, so that others on the machine do not count. BANYAN_BUILD names the folder of the
build. Exit status: 0, or 77 if the view cannot run here."""
import argparse
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from frame import DTYPES, Skipped  # noqa: E402
from views import attention, calls, nodes, paper, prune  # noqa: E402

# Each view with its rounds and numbers of ranks.
VIEWS = {"attention": (attention.attention, 9, ()), "prefill": (attention.prefill, 5, ()),
         "shares": (attention.shares, 2, (2, 4, 8)),
         "shapes": (attention.shapes, 3, ()), "mla": (attention.mla, 3, ()), "prune": (prune.prune, 9, ()),
         "peaked": (prune.peaked, 9, ()), "paper": (paper.paper, 3, (2, 4, 8)),
         "calls": (calls.calls, 31, (1, 2)), "select": (calls.calls, 31, (1, 2)), "layer": (calls.layer, 5, (2,)),
         "jax": (calls.jax, 60, (4,)), "first-token": (calls.first_token, 1, ()),
         "record": (nodes.record, 12, ()), "latency": (nodes.latency, 5, ()), "sums": (nodes.sums, 3, ()),
         "levels": (nodes.levels, 5, ()), "overlap": (nodes.overlap, 3, ()), "passes": (nodes.passes, 1, ())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("view", choices=VIEWS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", action="store_true", help="print a list of rows as objects")
    parser.add_argument("--ranks", type=int, nargs="+", help="of " + ", ".join(name for name, view in VIEWS.items() if view[2]))
    parser.add_argument("--tokens", type=int, nargs="+", help="of prune, peaked and first-token")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", help="of prune: files")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("."), help="of prune: a folder")
    parser.add_argument("--layouts", nargs="+", default=["1x2", "1x4", "1x8", "2x1", "2x2"], help="of sums: nodes x ranks")
    parser.add_argument("--delay", help="of sums, between nodes: 0.1ms")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="of attention, prefill and shapes")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256], help="of shapes")
    for name, value in ("threads", 1), ("keys", 32768), ("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-dim", 128):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    view, rounds, ranks = VIEWS[options.view]
    options.rounds = options.rounds or rounds
    options.ranks = options.ranks or ranks
    options.dtypes = options.dtypes or (list(DTYPES) if options.view == "shapes" else ["f32", "f16", "bf16"])
    try:
        view(options)
    except Skipped as why:
        print(f"skipped: {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
