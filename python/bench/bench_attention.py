#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares attention of one rank on the host with torch and with a loop of reads, as one table over types.

    chrt -r 1 taskset -c 1 python python/bench/bench_attention.py [--keys N] [--threads N] [--rounds N] [--json] ...

Rounds of banyan-decode --kernel-only and of torch's scaled_dot_product_attention take turns: with enable_gqa (on repeated
KV heads before torch 2.5), and with the query heads of a KV head folded into the queries. The last column has banyan through its Python package, on arrays of numpy, where it is installed (f32 and
f16): what a call from Python adds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

COLUMNS = {
    "banyan": ("attention_us", "kv_gbps"),
    "loop of reads": ("read_us", "read_gbps"),
    "torch": ("us", "kv_gbps"),
    "torch, folded": ("folded_us", "folded_kv_gbps"),
}


def run(arguments, dtype):
    command = [arguments.decode, "--kernel-only", "--json", "--dtype", dtype, "--tokens", str(arguments.keys)]
    for name in "batch", "heads", "kv_heads", "head_dim", "threads":
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    return json.loads(subprocess.run([*command, "--repeat", "1"], stdout=subprocess.PIPE, check=True, text=True).stdout)


def torch_forms(arguments, dtype):
    """Both forms of torch, which must agree, over random values of the shape; none where there is no torch."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages, as in the tools
    try:
        import torch
    except ImportError:
        return {}
    attend = torch.nn.functional.scaled_dot_product_attention
    torch.set_num_threads(arguments.threads)
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(dtype)
    if kind is None:
        return {}
    group = arguments.heads // arguments.kv_heads
    q = torch.randn(arguments.batch, arguments.heads, 1, arguments.head_dim, dtype=kind)
    k = torch.randn(arguments.batch, arguments.kv_heads, arguments.keys, arguments.head_dim, dtype=kind)
    v = k[..., :512] if arguments.head_dim == 576 else torch.randn_like(k)
    folded_q = q.view(arguments.batch, arguments.kv_heads, group, arguments.head_dim)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5):
        plain = lambda: attend(q, k, v, enable_gqa=True)  # noqa: E731
    else:
        plain = lambda: attend(q, *(x.repeat_interleave(group, 1) for x in (k, v)))  # noqa: E731
    folded = lambda: attend(folded_q, k, v).reshape(arguments.batch, arguments.heads, 1, -1)  # noqa: E731
    if (plain() - folded()).abs().max() > 0.02 * v.abs().max():
        raise SystemExit("both forms of torch differ")
    return {"us": plain, "folded_us": folded}


def take_turns(arguments, dtype):
    """The medians of a row, and those of torch in it, or None."""
    forms, rounds, times = torch_forms(arguments, dtype), [], {}
    for _ in range(arguments.rounds):
        rounds.append(run(arguments, dtype))
        for name, form in forms.items():
            since = time.perf_counter()
            form()
            times.setdefault(name, []).append(1e6 * (time.perf_counter() - since))
    row = rounds[0]
    for name in "attention_us", "read_us", "kv_gbps", "read_gbps":
        row[name] = statistics.median(one[name] for one in rounds)
    torch = {name: statistics.median(values) for name, values in times.items()}
    speeds = {name.replace("us", "kv_gbps"): row["kv_bytes"] / us * 1e-3 for name, us in torch.items()}
    return {**row, "torch": {**torch, **speeds} or None}


def from_python(arguments, dtype):
    """The median time of a call from Python in us; None where it cannot be had."""
    try:
        import banyan
        import numpy as np
    except ImportError:
        return None
    name = {"f32": "float32", "f16": "float16"}.get(dtype)
    if name is None:
        return None
    draw = np.random.default_rng(1)
    q = draw.standard_normal((arguments.batch, arguments.heads, arguments.head_dim)).astype(name)
    shape = arguments.batch, arguments.kv_heads, arguments.keys, arguments.head_dim
    k, v = (draw.standard_normal(shape, np.float32).astype(name) for _ in range(2))
    if arguments.head_dim == 576:  # MLA, as in banyan-decode
        v = k[..., :512]
    times = []
    with banyan.Communicator.from_threads(banyan.Threads(1), 0, threads=arguments.threads) as comm:
        for _ in range(arguments.rounds + 1):
            since = time.perf_counter()
            comm.attention_combine(q, k, v, keys_max=arguments.keys)
            times.append(1e6 * (time.perf_counter() - since))
    return statistics.median(times[1:])


def print_table(rows):
    print("| KV | " + " | ".join(f"{name}: us, GB/s" for name in COLUMNS) + " | banyan from Python: us |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for dtype, row in rows.items():
        cells = [dtype]
        for name, (time_key, speed_key) in COLUMNS.items():
            found = row["torch"] if name.startswith("torch") else row
            cells.append(f"{found[time_key]:,.0f}, {found[speed_key]:.2f}" if found else "")
        called = row["from_python_us"]
        print("| " + " | ".join(cells) + f" | {'' if called is None else format(called, ',.0f')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", default="build/banyan-decode", help="the program")
    for name, value in ("keys", 32768), ("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("threads", 1):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="f32,f16,bf16")
    parser.add_argument("--json", action="store_true", help="print one object with the whole of each row")
    arguments = parser.parse_args()
    rows = {}
    for dtype in arguments.dtypes.split(","):
        rows[dtype] = take_turns(arguments, dtype)
        rows[dtype]["from_python_us"] = from_python(arguments, dtype)
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
