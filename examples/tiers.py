#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A document of 100 K tokens with memory for the keys of 20 K: the others are in a mapped file.

    python examples/tiers.py

When memory is full, the page that queries read least goes down to the file. A page that queries look at stays. Keys
are random numbers in place of a model's, and every query is about one passage in the middle of the document.
"""

import os
import tempfile

import banyan
import numpy as np

DIM, KV_HEADS, HEADS, PAGE_KEYS = 64, 2, 8, 256
PAGES, MEMORY_PAGES, KEEP, PASSAGE, STEP = 400, 80, 8, 150, 8


def make_page(number, q):
    page = np.random.default_rng(number).uniform(-1, 1, (KV_HEADS, PAGE_KEYS, 2 * DIM)).astype(np.float32)
    if number == PASSAGE:
        page[:, :, :DIM] += 0.5 * q[0, :: HEADS // KV_HEADS, None]
    return page.astype(np.float16)


def part(pages, table, **more):
    """Pages [page, kv_head, key, key and value] as a part of the keys."""
    keys = np.array([PAGE_KEYS * len(table)], np.int32)
    table = np.array([table], np.int32).reshape(1, -1)
    return dict(k=pages[..., :DIM], v=pages[..., DIM:], page_table=table, seq_lens=keys, **more)


def main():
    q = np.random.default_rng(PAGES).uniform(-1, 1, (1, HEADS, DIM)).astype(np.float32)
    shape = (KV_HEADS, PAGE_KEYS, 2 * DIM)
    memory = np.empty((MEMORY_PAGES, *shape), np.float16)
    above = []  # [page number, slot, reads], in the order of tokens
    below = []  # page numbers in the file
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, PAGES * memory[0].nbytes)  # else a full disk would end the process
        stored = np.memmap(file, np.float16, "w+", shape=(PAGES, *shape))

        def attend():
            parts = [part(memory, [slot for _, slot, _ in above])]
            if below:
                parts.insert(0, part(stored, range(len(below)), read_ahead_bytes=8 << 20))
            return banyan.attention(q, None, None, parts=parts)

        for number in range(PAGES):
            slot = len(above)
            if slot == MEMORY_PAGES:
                _, slot, _ = down = above.pop(min(range(MEMORY_PAGES - KEEP), key=lambda page: above[page][2]))
                stored[len(below)] = memory[slot]
                below.append(down[0])
            memory[slot] = make_page(number, q)
            above.append([number, slot, 0])
            if number % STEP == STEP - 1:
                # A page counts as read if a head gives it twice its share of the weight.
                _, lse = attend()
                table = np.array([[slot] for _, slot, _ in above], np.int32)
                lens = np.full(len(above), PAGE_KEYS, np.int32)
                every = np.broadcast_to(q, (len(above), HEADS, DIM))
                _, own = banyan.attention(every, memory[..., :DIM], memory[..., DIM:], page_table=table, seq_lens=lens)
                for page, weight in zip(above, np.exp(own - lse)):
                    page[2] += int((weight > 2 / (number + 1)).any())

        o, _ = attend()
        every = np.concatenate([make_page(number, q) for number in range(PAGES)], axis=1)[None]
        want, _ = banyan.attention(q, every[..., :DIM], every[..., DIM:])
        print(f"{PAGES * PAGE_KEYS} tokens: {len(above) * PAGE_KEYS} in memory, {len(below) * PAGE_KEYS} in the file")
        print("the page of the passage is in memory:", "no" if PASSAGE in below else "yes")
        print("the result is that of one memory:", "yes" if np.abs(o - want).max() < 1e-5 else "no")


if __name__ == "__main__":
    main()
