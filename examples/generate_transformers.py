#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of transformers whose keys and values are sharded over processes. Its tokens are those of one process.

    python examples/generate_transformers.py --ranks 4 --tokens 40 --verify
    python examples/generate_transformers.py --ranks 4 --kill 2 --verify     # rank 2 ends in the middle
    torchrun --nproc-per-node 2 examples/generate_transformers.py --model PATH --prompt "The roots of a banyan tree"

Without --model it is a small Qwen3 of random weights, whose prompt is random tokens.
"""

import argparse
import multiprocessing
import os

import torch
import transformers

import banyan
from banyan.transformers import ShardedCache


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", help="a folder of a model and its tokenizer")
    parser.add_argument("--prompt", default="The roots of a banyan tree", help="with --model")
    parser.add_argument("--prompt-tokens", type=int, default=300, help="without --model")
    parser.add_argument("--tokens", type=int, default=40, help="to generate")
    parser.add_argument("--ranks", type=int, default=2, help="processes to start, unless torchrun has started them")
    parser.add_argument("--sample", action="store_true", help="sample with a common seed, not the likeliest token")
    parser.add_argument("--kill", type=int, metavar="RANK", help="this rank ends when half of the tokens are there")
    parser.add_argument("--verify", action="store_true", help="compare with eager attention in one process")
    options = parser.parse_args()
    if options.kill is not None and not 0 < options.kill < options.ranks:
        parser.error("--kill: a rank from 1 on, since rank 0 prints")
    if options.kill is not None and options.sample:
        parser.error("--kill: ranks may differ by a step then, and so would the random numbers they have drawn")
    return options


def load(options, implementation):
    if options.model:
        words = {"attn_implementation": implementation, "dtype": torch.float32}
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(options.model, **words)
        return model, tokenizer(options.prompt, return_tensors="pt").input_ids, tokenizer
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.15,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    return model, torch.randint(2, 512, (1, options.prompt_tokens)), None


class Steps(transformers.StoppingCriteria):
    """Keeps the tokens so far, since generate() returns none when it fails. `ends_at`: this rank ends there."""

    def __init__(self, ids, ends_at):
        self.ids, self.ends_at = ids, ends_at

    def __call__(self, input_ids, scores, **_):
        self.ids = input_ids.clone()
        if input_ids.shape[1] == self.ends_at:
            os._exit(1)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate(comm, options, report=None):
    """Runs on each rank. Returns the tokens; rank 0 puts them into the pipe `report` as well."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // comm.nranks))
    model, ids, _ = load(options, "banyan")
    end = ids.shape[1] + options.tokens
    cache = ShardedCache(model.config, comm, max_length=end)
    steps = Steps(ids, end - options.tokens // 2 if comm.rank == options.kill else 0)
    torch.manual_seed(2)  # all ranks sample with the same random numbers
    while True:
        try:
            words = {"max_new_tokens": end - steps.ids.shape[1], "do_sample": options.sample, **cache.keyword}
            tokens = model.generate(steps.ids, stopping_criteria=[steps], **words)[0]
            break
        except (banyan.PeerError, banyan.TimeoutError, banyan.AbortedError) as error:
            steps.ids = cache.recover(model, steps.ids)
            if cache.comm.rank == 0:
                print(f"[{error}]\n{cache.comm.nranks} ranks go on at token {steps.ids.shape[1]}")
    held = f"{cache.keys_here} keys, {cache.bytes_here} bytes of layers"
    print(f"rank {cache.comm.rank} of {cache.comm.nranks}: {held}\n", end="", flush=True)  # one write per line
    if report and cache.comm.rank == 0:
        report.send(tokens.tolist())
    cache.comm.close()
    return tokens.tolist()


def show(options, tokens):
    model, ids, tokenizer = load(options, "eager")
    print(tokenizer.decode(tokens) if tokenizer else f"tokens {tokens[ids.shape[1] :]}")
    if not options.verify:
        return
    torch.manual_seed(2)
    alone = model.generate(ids, do_sample=options.sample, max_new_tokens=options.tokens)[0].tolist()
    print(f"eager attention in one process gives {'the same' if alone == tokens else 'other'} {options.tokens} tokens")
    if alone != tokens:
        raise SystemExit(1)


def main():
    options = arguments()
    if "RANK" in os.environ:
        with banyan.Communicator.from_env() as comm:
            tokens = generate(comm, options)
        if os.environ["RANK"] == "0":
            show(options, tokens)
        return
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    try:
        banyan.run(generate, options.ranks, args=(options, theirs), start="spawn", timeout=60)
    except banyan.RankError as error:
        if list(error.failures) != [options.kill]:  # the failure of that rank is expected
            raise
    show(options, ours.recv())


if __name__ == "__main__":
    main()
