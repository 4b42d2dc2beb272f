#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of one core on the host: banyan beside torch and a loop of reads, in turns, as GB/s of keys and values.

    chrt -r 1 taskset -c 1 python python/bench/bench_attention.py [KEYS [HEADS KV_HEADS HEAD_DIM [ROUNDS]]]

torch's scaled_dot_product_attention runs in two forms: as engines call it, with each KV head repeated for its group of
queries, and with the group as rows of one KV head, which reads keys once. The loop of reads is numpy's largest 64-bit
word of the same memory.
"""

import statistics
import sys
import time

import numpy as np

import banyan


def torch_methods(q, k, v):
    try:
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
    except (ImportError, AttributeError):
        print("there is no torch 2.0 or newer, so banyan stands alone", file=sys.stderr)
        return {}
    torch.set_num_threads(1)
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    tq = torch.from_numpy(q).view(tokens, kv_heads, heads // kv_heads, dim)
    tk, tv = torch.from_numpy(k), torch.from_numpy(v)

    def repeated():
        each = [x.repeat_interleave(heads // kv_heads, 1) for x in (tk, tv)]
        return attend(tq.reshape(tokens, heads, 1, dim), *each).view(tokens, heads, dim)

    def folded():
        return attend(tq, tk, tv).reshape(tokens, heads, dim)

    return {"torch, KV heads repeated": repeated, "torch, group folded": folded}


def main():
    given = [int(a) for a in sys.argv[1:]]
    keys, heads, kv_heads, dim, rounds = given + [32768, 32, 8, 128, 9][len(given) :]
    random = np.random.default_rng(1)
    for name in "float32", "float16":
        q = random.standard_normal((1, heads, dim)).astype(name)
        k, v = (random.standard_normal((1, kv_heads, keys, dim), np.float32).astype(name) for _ in range(2))
        words = [x.reshape(-1).view(np.uint64) for x in (k, v)]
        methods = {"loop of reads": lambda: [x.max() for x in words], "banyan": lambda: banyan.attention(q, k, v)[0]}
        methods.update(torch_methods(q, k, v))
        right = np.asarray(methods["banyan"](), np.float32)
        times = {method: [] for method in methods}
        for _ in range(rounds):
            for method, run in methods.items():
                since = time.perf_counter()
                found = run()
                times[method].append(time.perf_counter() - since)
                if method.startswith("torch"):
                    assert np.abs(found.float().numpy() - right).max() < 0.02, method
        medians = {method: statistics.median(all_times) for method, all_times in times.items()}
        print(f"{name}: {heads} heads on {kv_heads} KV heads x {dim}, {keys} keys")
        for method, seconds in medians.items():
            rate, ratio = (k.nbytes + v.nbytes) / seconds * 1e-9, medians["banyan"] / seconds
            print(f"  {method:26} {seconds * 1e6:10.0f} us {rate:8.2f} GB/s {ratio:7.3f} of banyan's speed")


if __name__ == "__main__":
    main()
