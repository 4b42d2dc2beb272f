#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the time to the first token of a model of transformers: stock attention (sdpa) in one process, and a
ShardedCache on one rank and on two. The model is a small Qwen3 of random weights in f32.

    python python/bench/bench_first_token.py [LENGTH...]     # of prompts; 2048 8192 32768 without one

The forms of a process take turns, and each figure is their best round. Ranks divide the cores of the machine.
"""

import os
import sys
import time

import torch
import transformers

import banyan
from banyan.transformers import ShardedCache

LENGTHS, TOKENS = (2048, 8192, 32768), 49152  # TOKENS: a length has as many rounds as fit, and at least one


def model_of(implementation):
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        **{"vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 65536},
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def seconds(comm, model, ids, words):
    comm.barrier()
    since = time.perf_counter()
    with torch.no_grad():
        token = model(input_ids=ids, logits_to_keep=1, use_cache=True, **words).logits.argmax().item()
    comm.barrier()
    return time.perf_counter() - since, token


def measure(comm, lengths):
    """Returns the best time of each form and length."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // comm.nranks))
    stock, ours = model_of("sdpa"), model_of("banyan")
    found = {}
    for length in lengths:
        ids = torch.randint(2, 512, (1, length), generator=torch.Generator().manual_seed(length))
        for _ in range(max(1, min(4, TOKENS // length))):
            forms = {"stock": (stock, {})} if comm.nranks == 1 else {}
            for name in ("sharded", "local")[: comm.nranks]:
                forms[name] = ours, ShardedCache(ours.config, comm, max_length=length + 1, prefill=name).keyword
            tokens = set()
            for name, (model, words) in forms.items():
                spent, token = seconds(comm, model, ids, words)
                found.setdefault((name, length), []).append(spent)
                tokens.add(token)
            assert len(tokens) == 1, f"forms differ at {length}: {tokens}"
    return {key: min(times) for key, times in found.items()}


def main():
    lengths = [int(word) for word in sys.argv[1:]] or LENGTHS
    one, two = (banyan.run(measure, ranks, args=(lengths,), start="spawn", timeout=300)[0] for ranks in (1, 2))
    print("| prompt | stock, ms | 1 rank, ms | stock / that | 2 ranks, sharded | 2 ranks, local |\n" + "|---" * 6 + "|")
    for n in lengths:
        times = [one["stock", n], one["sharded", n], two["sharded", n], two["local", n]]
        ms = [f"{1e3 * spent:,.0f}" for spent in times]
        print(f"| {n:,} | {ms[0]} | {ms[1]} | {times[0] / times[1]:.2f} | {ms[2]} | {ms[3]} |")


if __name__ == "__main__":
    main()
