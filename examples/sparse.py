#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A layer of sparse attention, whose keys are sharded over processes: an indexer scores all keys, and one operation
selects the best 2,048 of all ranks, attends to them and combines.

    python examples/sparse.py                       # 1 to 4 ranks; all choose the same keys
    python examples/sparse.py --keys 16384 --k 512

As in DeepSeek's sparse attention, the indexer has few and short heads of low precision: score = sum w_h relu(q_h . k).
Its elements are whole numbers, so that scores have the same bits in any shape. Many scores then are equal, and the
lower key wins wherever the shards begin.
"""

import argparse
import hashlib
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many ranks as cores compute scores
import numpy as np  # noqa: E402

import banyan  # noqa: E402

BLOCK = 256  # keys of a rank begin at a multiple, which the exact order needs
HEADS, DIM, INDEX_HEADS, INDEX_DIM = 32, 64, 4, 32


def shard(options, comm):
    """This rank's keys, values and keys of the indexer. They are drawn in blocks, so that any shards have the same."""
    first, blocks = banyan.split(options.keys // BLOCK, comm.nranks, comm.rank)
    k, v = (np.empty((blocks * BLOCK, 1, 1, DIM), np.float16) for _ in range(2))
    index_k = np.empty((INDEX_DIM, blocks * BLOCK), np.float32)
    for block in range(blocks):
        draw, at = np.random.default_rng(first + block), slice(block * BLOCK, (block + 1) * BLOCK)
        k[at], v[at] = (draw.standard_normal((BLOCK, 1, 1, DIM), np.float32) for _ in range(2))
        index_k[:, at] = draw.integers(-4, 5, (INDEX_DIM, BLOCK))
    return first * BLOCK, k, v, index_k


def best_time(call, times=15):
    results = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        results.append(time.perf_counter() - start)
    return 1e3 * min(results)


def layer(comm, options):
    draw = np.random.default_rng(1 << 20)
    q = draw.standard_normal((1, HEADS, DIM), np.float32).astype(np.float16)
    index_q = draw.integers(-4, 5, (INDEX_HEADS, INDEX_DIM)).astype(np.float32)
    weights = np.array([1, 2, 1, 3], np.float32)
    first, k, v, index_k = shard(options, comm)
    lens = np.array([len(k)], np.int32)
    chosen = tuple(np.empty((1, options.k), each) for each in (np.float32, np.int64, np.int32))
    chosen += (np.empty(1, np.int32),)

    def offers():
        scores = weights @ np.maximum(index_q @ index_k, 0)
        best, rows = banyan.topk(scores[None], options.k)
        indices = np.where(rows < 0, -1, first + rows.astype(np.int64))
        return {"scores": best, "indices": indices, "k": options.k, "rows": rows, "out": chosen}

    def choose():
        return comm.select(**offers())

    def sparse():
        return comm.attention_combine(q, k, v, select=offers())[0]

    flat_k, flat_v = (each.reshape(1, 1, -1, DIM) for each in (k, v))

    def dense(**words):
        return comm.attention_combine(q, flat_k, flat_v, seq_lens=lens, **words)[0]

    out = sparse()
    # The exact order adds keys at their positions in the sequence, so the chosen ones are masked in, not listed.
    mask = np.empty((1, len(k)), np.uint8)
    start = np.array([first], np.int32)
    last = np.array([options.keys], np.int32)
    exact = dense(select=offers(), order="exact", key_mask=mask, key_start=start, query_start=last)
    assert np.allclose(out.astype(np.float32), exact.astype(np.float32), atol=2e-3)
    digests = [hashlib.sha256(each.tobytes()).hexdigest()[:16] for each in (chosen[1], exact)]
    return digests, int(chosen[3][0]), [best_time(each) for each in (choose, sparse, dense)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=65536, help="of the sequence; a multiple of 256")
    parser.add_argument("--k", type=int, default=2048, help="keys that attention reads")
    parser.add_argument("--ranks", type=int, default=4, help="the most")
    options = parser.parse_args()
    all_digests = []
    for ranks in range(1, options.ranks + 1):
        results = banyan.run(layer, ranks, args=(options,))
        digests, counts = results[0][0], [each[1] for each in results]
        choose, sparse, dense = (max(each[2][i] for each in results) for i in range(3))
        all_digests += [each[0] for each in results]
        print(
            f"{ranks} ranks: keys {digests[0]}, exact order {digests[1]}; {sum(counts)} of {options.keys} keys read, "
            f"by rank {counts}; {sparse:.2f} ms, {choose:.2f} of them to choose, and {dense:.2f} ms dense"
        )
    assert all(each == all_digests[0] for each in all_digests), "ranks differ"
    print("All numbers of ranks choose the same keys, and have the same bits in exact order.")


if __name__ == "__main__":
    main()
