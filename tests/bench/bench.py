#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench: banyan and its rivals in turns, round after round, and a table of medians for each view.

usage: tests/bench/bench.py VIEW [--rounds N] [--json] [OPTION]...

attention  one rank's attention next to a loop of reads and to torch's scaled_dot_product_attention, over types: with
           enable_gqa (on repeated KV heads before torch 2.5), and with the query heads of a KV head folded into queries
prefill    prompts: causal attention of many queries next to loops of FMA and of dot products of bf16 and to torch, over numbers
           of queries and keys
shares     prompts over ranks: the work of the slowest rank over the mean, by ownership of keys; counted pairs of a query and a
           key that it sees, and the time of one thread, rank after rank
shapes     attention over types, groups, head_dim and batch, 128 MiB of keys and values each, next to a loop of reads and to
           the limit that the loops of reads and of FMA set
mla        128 heads on one KV head, over 8,192 keys, and over 2,048 of 65,536 in random order; shares of a loop of FMA
paper      the comparison of the Tree Attention paper (arXiv 2408.04093): one combine, Ring Attention, three allreduces, with
           what a rank sends and holds next to the paper's formulae; docs/charts.py draws it
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
import contextlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BANYAN_BUILD") or os.environ.get("top_builddir") or os.path.join(TOP, "build"))
PERF, DECODE, TOPO = (os.path.join(BUILD, "banyan-" + name) for name in ("perf", "decode", "topo"))
EXCHANGE = os.path.join(BUILD, "tests", "bench", "bench_exchange")
EXCHANGE_MOST = 61440  # one active message
CPUS = sorted(os.sched_getaffinity(0))

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(TOP, "tests", "hosts"))
import bed  # noqa: E402


class Skipped(Exception):
    pass


def run(command, env=None):
    """Standard output of a program."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              env={**os.environ, **(env or {})})
    except FileNotFoundError as why:
        raise Skipped(why) from why
    if done.returncode != 0:
        raise Skipped(f"{' '.join(map(str, command[-8:]))}: {done.stderr.strip()[-400:] or done.stdout.strip()[-400:]}")
    return done.stdout


def json_of(command, env=None):
    text = run([*command, "--json"], env)
    return json.loads(text[text.index("{"):])


class Times:
    """Figures of all rounds, by key and name."""

    def __init__(self):
        self.found = {}

    def add(self, key, name, value):
        self.found.setdefault((key, name), []).append(value)

    def __call__(self, key, name):
        """The median; None if it was not measured."""
        return statistics.median(self.found[key, name]) if (key, name) in self.found else None

    def ratio(self, key, over, under):
        """The median of the ratios within rounds."""
        pairs = zip(self.found.get((key, over), []), self.found.get((key, under), []))
        ratios = [a / b for a, b in pairs]
        return statistics.median(ratios) if ratios else None


def cell(value, digits=2):
    return "" if value is None else value if isinstance(value, str) else f"{value:,.{digits}f}"


def table(options, head, rows):
    """Prints each row as soon as it is there, as Markdown, or all as JSON objects."""
    if options.json:
        print(json.dumps([dict(zip(head, row)) for row in rows], indent=2))
        return
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(cell(value) for value in row) + " |", flush=True)


# ---- attention of one rank -------------------------------------------------------------------------------------------

DTYPES = {"f16": 2, "bf16": 2, "f32": 4, "e4m3": 1, "e5m2": 1, "int8": 1}


def alone(options, dtype, **shape):
    """A round of attention and of the loops beside it."""
    words = [word for name, value in shape.items() for word in (f"--{name.replace('_', '-')}", value)]
    return json_of([DECODE, "--kernel-only", "--dtype", dtype, "--threads", options.threads, "--repeat", 3, *words])


def torch_forms(options, dtype):
    """Both forms of torch, which must agree, over random values of the shape; none without torch."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages, as in the tools
    try:
        import torch
    except ImportError:
        return {}
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(dtype)
    if kind is None:
        return {}
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.set_num_threads(options.threads)
    group = options.heads // options.kv_heads
    q = torch.randn(options.batch, options.heads, 1, options.head_dim, dtype=kind)
    k = torch.randn(options.batch, options.kv_heads, options.keys, options.head_dim, dtype=kind)
    v = k[..., :512] if options.head_dim == 576 else torch.randn_like(k)
    folded_q = q.view(options.batch, options.kv_heads, group, options.head_dim)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5):
        plain = lambda: attend(q, k, v, enable_gqa=True)  # noqa: E731
    else:
        plain = lambda: attend(q, *(x.repeat_interleave(group, 1) for x in (k, v)))  # noqa: E731
    folded = lambda: attend(folded_q, k, v).reshape(options.batch, options.heads, 1, -1)  # noqa: E731
    if (plain() - folded()).abs().max() > 0.02 * v.abs().max():
        raise SystemExit("both forms of torch differ")
    return {"torch": plain, "torch, folded": folded}


def attention(options):
    def rows():
        for dtype in options.dtypes:
            forms, times = torch_forms(options, dtype), Times()
            for _ in range(options.rounds):
                one = alone(options, dtype, tokens=options.keys, batch=options.batch, heads=options.heads, kv_heads=options.kv_heads,
                            head_dim=options.head_dim)
                times.add(dtype, "banyan", one["attention_us"])
                times.add(dtype, "loop of reads", one["read_us"])
                for name, form in forms.items():
                    since = time.perf_counter()
                    form()
                    times.add(dtype, name, 1e6 * (time.perf_counter() - since))
            yield [dtype, *(times(dtype, name) for name in head[1:])]

    head = ["KV, us", "banyan", "loop of reads", "torch", "torch, folded"]
    table(options, head, rows())


PROMPTS = (128, 2048), (512, 512), (512, 8192), (2048, 2048)


def prefill(options):
    """Ratios of rounds: torch and banyan take turns. The better of torch's forms counts: enable_gqa, and repeated heads."""
    import torch

    attend, group = torch.nn.functional.scaled_dot_product_attention, options.heads // options.kv_heads
    torch.set_num_threads(options.threads)

    def rows():
        for dtype in options.dtypes:
            kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
            for queries, keys in PROMPTS:
                q = torch.randn(1, options.heads, queries, options.head_dim, dtype=kind)
                k, v = torch.randn(2, 1, options.kv_heads, keys, options.head_dim, dtype=kind)
                mask = None if queries == keys else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
                wide = [x.repeat_interleave(group, 1) for x in (k, v)]
                forms = {"gqa": lambda: attend(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True),
                         "repeated": lambda: attend(q, *wide, attn_mask=mask, is_causal=mask is None)}
                times, fma, dot = Times(), 0, 0
                for turn in range(options.rounds + 1):
                    one = alone(options, dtype, tokens=keys, queries=queries, heads=options.heads, kv_heads=options.kv_heads,
                                head_dim=options.head_dim)
                    for name, form in forms.items():
                        since = time.perf_counter()
                        form()
                        if turn > 0:
                            times.add(dtype, name, 1e6 * (time.perf_counter() - since))
                    if turn > 0:
                        times.add(dtype, "banyan", one["attention_us"])
                        fma, dot = max(fma, one["fma_gflops"]), max(dot, one["dot_gflops"])
                us, rival = times(dtype, "banyan"), min(times(dtype, name) for name in forms)
                flops = one["gflops"] * one["attention_us"]
                yield [dtype, f"{queries} x {keys}", us, rival, rival / us, flops / us, flops / us / fma,
                       flops / us / dot if dot and dtype == "bf16" else None]

    table(options, ["type", "queries x keys", "banyan, us", "torch, us", "torch / banyan", "Gflop/s", "of FMA", "of dots"], rows())


def layouts(ranks, keys):
    """Name, and for each rank the positions of its keys and the words that describe them to attention."""
    import banyan
    import numpy as np

    for kind, block in ("ranges", 0), ("blocks", 64), ("blocks", 16), ("zigzag", 64):
        shards, at = [], np.arange(keys)
        if kind != "zigzag":
            rule = banyan.Ownership(kind, ranks, block=max(block, 1), tokens=0 if block else keys)
        for rank in range(ranks):
            if kind == "zigzag":
                pattern = [rank, 2 * ranks - 1 - rank]
                words = {"key_block": block, "key_stride": 2 * ranks * block, "key_pattern": pattern}
                mine, start = np.isin(at // block % (2 * ranks), pattern), 0
            else:
                start, key_block, key_stride = rule.queries(rank)
                words, mine = {"key_block": key_block, "key_stride": key_stride}, rule.of_tokens(at)[0] == rank
            shards.append((np.flatnonzero(mine), {**words, "key_start": np.array([start], np.int32)}))
        yield f"{kind} of {block}" if block else kind, shards


def shares(options):
    import banyan
    import numpy as np

    def seconds(queries, keys, shard, words):
        q = np.ones((queries, options.heads, options.head_dim), np.float32)
        k, v = np.ones((2, 1, options.kv_heads, max(len(shard), 1), options.head_dim), np.float32)
        since = time.perf_counter()
        banyan.attention(q, k, v, seq_lens=np.array([len(shard)], np.int32), query_start=np.array([keys - queries], np.int32),
                         query_start_loc=np.array([0, queries], np.int32), **words)
        return time.perf_counter() - since

    def rows():
        for queries, keys in (2048, 2048), (512, 8192), (8192, 8192):
            for ranks in options.ranks:
                for name, shards in layouts(ranks, keys):
                    pairs = [(queries - np.maximum(at - (keys - queries), 0)).sum() for at, _ in shards]
                    spent = [min(seconds(queries, keys, *shard) for _ in range(options.rounds)) for shard in shards]
                    yield [f"{queries} x {keys}", str(ranks), name, *(max(one) / (sum(one) / ranks) for one in (pairs, spent))]

    table(options, ["queries x keys", "ranks", "keys by", "pairs of the slowest / mean", "its time / mean"], rows())


def shapes(options):
    """The limit is the lesser of two speeds: that of the loop of reads, and that at which a loop of FMA could compute."""
    def row(dtype, group, dim, batch):
        tokens = (128 << 20) // (2 * 8 * dim * DTYPES[dtype] * batch)
        ones = [alone(options, dtype, batch=batch, heads=8 * group, kv_heads=8, head_dim=dim, tokens=tokens)
                for _ in range(options.rounds)]
        read, ratio = (statistics.median(one[key] for one in ones) for key in ("read_gbps", "ratio"))
        fma = max(one["fma_gflops"] for one in ones) / (2 * group / DTYPES[dtype])
        return [dtype, *map(str, (group, dim, batch)), read, ratio, fma, "read" if read <= fma else "FMA",
                ratio * read / min(read, fma)]

    table(options, ["KV", "group", "head_dim", "batch", "read GB/s", "of that", "FMA GB/s", "limit", "of the limit"],
          (row(dtype, group, dim, batch) for dtype in options.dtypes for group in (1, 4, 8)
           for dim in options.dims for batch in (1, 16)))


def mla(options):
    def rows():
        for dtype in DTYPES:
            shares = []
            for keys in {"tokens": 8192}, {"tokens": 2048, "spread": 65536}:
                ones = [alone(options, dtype, heads=128, kv_heads=1, head_dim=576, **keys) for _ in range(options.rounds)]
                shares.append(statistics.median(one["gflops"] for one in ones) / max(one["fma_gflops"] for one in ones))
            yield [dtype, *shares]

    table(options, ["KV", "mla, of a loop of FMA", "sparse"], rows())


# ---- the paper -------------------------------------------------------------------------------------------------------

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


# ---- records ---------------------------------------------------------------------------------------------------------


def record(options):
    """The time that one round in ten stays below: on a machine that others use, too, most rounds are disturbed."""
    with tempfile.TemporaryDirectory() as folder:
        modes = {"without": {"BANYAN_FLIGHT": "off"}, "recorder": {}, "and trace": {"BANYAN_TRACE": folder + "/trace"}}
        times = Times()
        for _ in range(options.rounds):
            for mode, variables in modes.items():
                for row in json_of([PERF, "combine", "--ranks", 2, "--sizes", "520,16640,133120", "--in-a-row", "--no-check",
                                    "--iterations", 20000], variables)["rows"]:
                    times.add(row["bytes"], mode, row["banyan_us"])
    least = {key: sorted(values)[len(values) // 10] for key, values in times.found.items()}
    table(options, ["bytes", *(f"{mode}, us" for mode in modes), "recorder / without", "and trace / without"],
          ([str(size), *(cell(least[size, mode], 3) for mode in modes),
            *(cell(least[size, mode] / least[size, "without"], 3) for mode in list(modes)[1:])]
           for size in sorted({size for size, _ in least})))


# ---- between nodes ---------------------------------------------------------------------------------------------------

MPI_FORMS = ("mpi_allgather_us", "mpi_op_us", "mpi_allreduce3_us")
MPI_TRANSPORTS = {"ob1": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"},
                  "ucx": {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any",
                          "UCX_TLS": "tcp,self"}}
PERFTEST = ["sh", "-c", 'if [ "$RANK" = 0 ]; then exec ucx_perftest "$@" >/dev/null; fi; sleep 0.3; '
            'exec ucx_perftest "$MASTER_ADDR" "$@"', "sh"]


def pinned(command):
    """Each of two ranks on a CPU of its own."""
    return ["sh", "-c", 'case ${OMPI_COMM_WORLD_RANK:-$RANK} in 0) cpu=$1 ;; *) cpu=$2 ;; esac; shift 2; '
            'exec taskset -c "$cpu" "$@"', "sh", CPUS[0], CPUS[min(1, len(CPUS) - 1)], *command]


class Nodes(bed.Bed):
    """Nodes, which are taken away at the end."""

    def __init__(self, layout, *options):
        for program in PERF, DECODE, TOPO, EXCHANGE:
            if not os.access(program, os.X_OK):
                raise Skipped(f"{program} has not been built")
        try:
            super().__init__(layout, *options)
        except LookupError as why:
            raise Skipped(why) from why
        real_time = subprocess.run(["chrt", "-r", "10", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        self.priority = ["chrt", "-r", "10"] if real_time else []
        for pid in run(["ip", "netns", "pids", f"banyan-{self.name}-switch"]).split() if real_time and options else ():
            subprocess.run(["chrt", "-f", "-p", "20", pid], check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down()

    def all_ranks(self, command, *options):
        return [*self.priority, bed.HOSTS, "run", "--timeout", 120, *options, self.name, "--", *command]

    def perf(self, sizes, *options, mpirun=False, pin=False, env=None, iterations=1000):
        command = [PERF, "combine", "--in-a-row", "--iterations", iterations, "--sizes", ",".join(map(str, sizes)), *options]
        found = json_of(self.all_ranks(pinned(command) if pin else command, *(["--mpirun"] if mpirun else [])), env)
        return {row["bytes"]: row for row in found["rows"]}


def add_both_ways(times, nodes, sizes):
    for line in run(nodes.all_ranks(pinned([EXCHANGE, *sizes]))).splitlines():
        size, _, both = re.match(r"(\d+) bytes: one way ([\d.]+) us, both ways at once ([\d.]+)", line).groups()
        times.add(int(size), "both ways", float(both))


def latency(options):
    sizes, times = (520, 16640), Times()
    with Nodes("2x1") as nodes:
        for _ in range(options.rounds):
            add_both_ways(times, nodes, sizes)
            for size in sizes if shutil.which("ucx_perftest") else ():
                text = run(nodes.all_ranks(pinned([*PERFTEST, "-t", "ucp_am_lat", "-s", size, "-n", 5000])), {"UCX_TLS": "tcp,self"})
                times.add(size, "one way", float(re.search(r"^Final:\s+\d+\s+([\d.]+)", text, re.M).group(1)))
            for size, row in nodes.perf(sizes, pin=True).items():
                times.add(size, "banyan", row["banyan_us"])
            for name, env in MPI_TRANSPORTS.items():
                for size, row in nodes.perf(sizes, "--against", "mpi", mpirun=True, pin=True, env=env).items():
                    times.add(size, name, min(row[form] for form in MPI_FORMS))
                    times.add(size, f"beside {name}", row["banyan_us"])

    def rows():
        for size in sizes:
            ratios = [times.ratio(size, name, f"beside {name}") for name in MPI_TRANSPORTS]
            yield [str(size), times(size, "banyan"), times(size, "one way"), times.ratio(size, "banyan", "one way"),
                   times(size, "both ways"), times.ratio(size, "banyan", "both ways"), times(size, "ob1"), times(size, "ucx"),
                   min((ratio for ratio in ratios if ratio is not None), default=None)]

    table(options, ["bytes", "banyan, us", "one way", "banyan / that", "both ways", "banyan / those", "ob1", "MPI on UCX", "best of MPI / banyan"], rows())


# Rank by rank: the times of sums in torch, as JSON on the first.
TORCH_SUMS = """
import json, os, re, subprocess, sys, time
import torch, torch.distributed as dist
rank, ranks = (int(os.environ.get("OMPI_COMM_WORLD_" + b) or os.environ[a]) for a, b in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE")))
said = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True).stdout
os.environ["GLOO_SOCKET_IFNAME"] = (re.findall(r"(\\S+)\\s+inet 10[.]77[.]", said) or ["lo"])[0]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=ranks)
forms = {"gloo": dist.all_reduce}
try:
    if sys.argv[2] == "0":
        raise ImportError("it has shared memory alone, and does not yield a core")
    import vllm._C
    ops = torch.ops._C
    name = sys.argv[1].replace("/", "-")[1:]
    handle = ops.init_shm_manager(name, ranks, rank, 1)
    dist.barrier()
    ops.join_shm_manager(handle, name)
    dist.barrier()
    forms["vLLM"] = lambda x: ops.shm_allreduce(handle, x)
except (ImportError, AttributeError):
    pass
try:
    import banyan
    comm = banyan.Communicator.from_torch()
    forms["in Python"] = lambda x: comm.allreduce(x, out=x)
except (ImportError, AttributeError):
    pass
found = {}
for size in map(int, sys.argv[3:]):
    x = torch.zeros(1, size // 4)
    for name, form in forms.items():
        calls = max(5, min(100, (4 << 20) // size))
        for timed in range(2):
            dist.barrier()
            since = time.perf_counter()
            for _ in range(calls):
                form(x)
            spent = torch.tensor([time.perf_counter() - since])
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        found.setdefault(name, {})[size] = 1e6 * spent.item() / calls
if rank == 0:
    print(json.dumps(found))
"""


def sums(options):
    sizes, names = [1 << n for n in range(10, 23, 2)], ("banyan", "in Python", "Open MPI", "vLLM", "gloo", "both ways")

    def measure(times, start, start_mpi, transports, spins, folder):
        for number in range(options.rounds):
            for env in transports:
                perf = [PERF, "allreduce", "--no-check", "--against", "mpi", "--sizes", ",".join(map(str, sizes))]
                for row in json_of([*start_mpi, *perf], env)["rows"]:
                    times.add(row["bytes"], "banyan", row["banyan_us"])
                    times.add(row["bytes"], "Open MPI", row["mpi_allreduce_us"])
            with contextlib.suppress(Skipped):
                said = run([*start, sys.executable, "-c", TORCH_SUMS, f"{folder}/store{number}", int(spins), *sizes])
                for name, row in json.loads(said[said.index("{"):]).items():
                    for size, us in row.items():
                        times.add(int(size), name, us)

    def rows():
        real_time = subprocess.run(["chrt", "-r", "10", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        for layout in options.layouts:
            times, ranks = Times(), int(layout[0]) * int(layout[2:])
            with tempfile.TemporaryDirectory() as folder:
                if layout.startswith("1"):
                    here = [*(["chrt", "-r", "10"] if real_time else []), "mpirun", "-n", ranks, "--oversubscribe", "--bind-to",
                            "core" if ranks <= len(CPUS) else "none"]
                    measure(times, here, here, [{}], ranks <= len(CPUS), folder)
                else:
                    with Nodes(layout, *(["--delay", options.delay] if options.delay else [])) as nodes:
                        for _ in range(options.rounds if layout == "2x1" else 0):
                            add_both_ways(times, nodes, [size for size in sizes if size <= EXCHANGE_MOST])
                        yields = {"OMPI_MCA_mpi_yield_when_idle": str(int(ranks > len(CPUS)))}
                        measure(times, nodes.all_ranks([]), nodes.all_ranks([], "--mpirun"),
                                [{**env, **yields} for env in MPI_TRANSPORTS.values()], False, folder)
            for size in sizes:
                least = {name: min(times.found.get((size, name), [math.nan])) for name in names}
                yield [layout, str(size), *(cell(None if math.isnan(us) else us, 1 if us > 10 else 2) for us in least.values()),
                       *(None if math.isnan(least[name]) else least[name] / least["banyan"] for name in names[2:])]

    table(options, ["nodes x ranks", "bytes", *names, *(f"{name} / banyan" for name in names[2:])], rows())


def levels(options):
    def rows():
        for layout in "2x4", "4x2":
            times, sizes = Times(), (16640, 133120)
            with Nodes(layout, "--delay", "0.1ms", "--rate", "1gbit") as nodes:
                for _ in range(options.rounds):
                    for name in names:
                        for size, row in nodes.perf(sizes, "--algorithm", name, iterations=200).items():
                            times.add(size, name, row["banyan_us"])
                            times.add(size, name + " sends", row["bytes_between_nodes_per_rank"])
            for size in sizes:
                yield [layout, str(size), *(cell(times(size, name + what), 0) for name in names for what in ("", " sends")),
                       times.ratio(size, *reversed(names))]

    names = ("levels", "recursive_doubling")
    table(options, ["nodes x ranks", "bytes", "levels, us", "levels send", "doubling, us", "doubling sends", "ratio"], rows())


NETWORKS = {"10 Gbit/s": ("--delay", "0.02ms", "--rate", "10gbit"), "1 Gbit/s": ("--delay", "0.1ms", "--rate", "1gbit")}
SLICES = (0, 2, 4, 8)  # 0: by predicted cost


def save_costs(nodes, folder):
    """A file of costs with the price of a message between the nodes, which is measured, since nothing there says it."""
    path = os.path.join(folder, "costs.json")
    if subprocess.run([TOPO, "--seconds", "1", "--save-costs", path], stdout=subprocess.DEVNULL,
                      check=False).returncode not in (0, 1):  # 1: a result is slow
        raise Skipped("banyan-topo --save-costs failed")
    rows = nodes.perf((520, 266240), "--algorithm", "oneshot", pin=True, iterations=100)
    small, large = (1e3 * rows[size]["banyan_us"] for size in rows)
    with open(path, encoding="utf-8") as stream:
        costs = json.load(stream)
    costs["links"].append({"class": "tcp", "alpha_ns": small, "beta_ns_per_byte": (large - small) / 266240, "source": "banyan-perf"})
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(costs, stream)
    return path


def overlap(options):
    def rows():
        for network, words in NETWORKS.items():
            with Nodes("2x1", *words) as nodes, tempfile.TemporaryDirectory() as folder:
                costs, times = save_costs(nodes, folder), Times()
                for shape in (16, 512), (16, 2048), (64, 512), (64, 2048):
                    for slices in SLICES * options.rounds:
                        found = json_of(nodes.all_ranks(pinned([DECODE, "--method", "overlap", "--dtype", "f16", "--repeat", 30, "--batch",
                                                            shape[0], "--tokens", shape[1]])),
                                        {"BANYAN_SLICES": str(slices), "BANYAN_COSTS": costs})
                        one, several = found["results"]
                        times.add(shape, "one", one["latency_us"]["p50"])
                        times.add(shape, slices, one["latency_us"]["p50"] / several["latency_us"]["p50"])
                        times.add(shape, f"chosen {slices}", several["slices"])
                    yield [network, *map(str, shape), cell(times(shape, "one"), 0), *(times(shape, n) for n in SLICES[1:]),
                           cell(times(shape, "chosen 0"), 0), times(shape, 0)]

    table(options, ["network", "batch", "keys", "one piece, us", "2", "4", "8", "chosen", "ratio"], rows())


# Milliseconds of prompts over keys of the ranks, which own blocks in turn, and by which algorithm.
PASSES = """
import json, time
import banyan, numpy as np
comm = banyan.Communicator.from_env()
heads, kv_heads, dim = 32, 8, 128
rule, found = banyan.Ownership("blocks", comm.nranks, block=16), []
for queries, keys in (2048, 2048), (512, 2048), (512, 8192), (64, 8192):
    draw = np.random.default_rng(comm.rank)
    length = int((rule.of_tokens(np.arange(keys))[0] == comm.rank).sum())
    q, k, v = (draw.standard_normal(shape, np.float32).astype(np.float16)
               for shape in ((queries, heads, dim), (1, kv_heads, length, dim), (1, kv_heads, length, dim)))
    start, block, stride = rule.queries(comm.rank)
    words = {"query_start_loc": np.array([0, queries], np.int32), "query_start": np.array([keys - queries], np.int32),
             "key_start": np.array([start], np.int32), "key_block": block, "key_stride": stride, "keys_max": length}
    for scatter in "none", "tokens":
        op, best = comm.attention_combine_init(q, k, v, scatter=scatter, **words), 1e9
        for _ in range(4):
            comm.barrier()
            since = time.perf_counter()
            op()
            comm.barrier()
            best = min(best, time.perf_counter() - since)
        found.append([queries, keys, scatter, 1e3 * best, op.info()["algorithm"]])
if comm.rank == 0:
    print(json.dumps({"rows": found}))
"""


def passes(options):
    def rows():
        with Nodes("2x1", "--rate", "1gbit", "--delay", "0.1ms") as nodes, tempfile.TemporaryDirectory() as folder:
            costs, times, chosen = save_costs(nodes, folder), Times(), {}
            for way in ("queries", "keys", "auto") * options.rounds:
                said = run(nodes.all_ranks([sys.executable, "-c", PASSES]), {"BANYAN_PASS": way, "BANYAN_COSTS": costs})
                for *key, ms, algorithm in json.loads(said[said.index("{"):])["rows"]:
                    times.add(tuple(key), way, ms)
                    chosen[tuple(key)] = "keys" if algorithm == "pass_kv" else "partials"
            for key, taken in chosen.items():
                yield [f"{key[0]:,} x {key[1]:,}", "all" if key[2] == "none" else key[2],
                       *(cell(times(key, way), 0) for way in ("queries", "keys")), times.ratio(key, "queries", "keys"), taken,
                       cell(times(key, "auto"), 0)]

    table(options, ["queries x keys", "a rank gets", "partials, ms", "keys, ms", "partials / keys", "chosen", "ms"], rows())


VIEWS = {"attention": (attention, 9), "prefill": (prefill, 5), "shares": (shares, 2), "shapes": (shapes, 3), "mla": (mla, 3), "paper": (paper, 3), "record": (record, 12),
         "latency": (latency, 5), "sums": (sums, 3), "levels": (levels, 5), "overlap": (overlap, 3), "passes": (passes, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("view", choices=VIEWS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", action="store_true", help="print a list of rows as objects")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="of paper and shares")
    parser.add_argument("--layouts", nargs="+", default=["1x2", "1x4", "1x8", "2x1", "2x2"], help="of sums: nodes x ranks")
    parser.add_argument("--delay", help="of sums, between nodes: 0.1ms")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="of attention, prefill and shapes")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256], help="of shapes")
    for name, value in ("threads", 1), ("keys", 32768), ("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-dim", 128):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    view, rounds = VIEWS[options.view]
    options.rounds = options.rounds or rounds
    options.dtypes = options.dtypes or (list(DTYPES) if options.view == "shapes" else ["f32", "f16", "bf16"])
    if not options.json:
        print(f"{time.strftime('%Y-%m-%d')}, {len(CPUS)} CPUs, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds", flush=True)
    try:
        view(options)
    except Skipped as why:
        print(f"skipped: {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
