# SPDX-License-Identifier: Apache-2.0
"""The engines' calls, against the definition in double precision."""

import math

import numpy as np
import pytest
from conftest import merged

import banyan

torch = pytest.importorskip("torch")
from banyan import compat  # noqa: E402  (it imports torch)

T, H, D = 5, 8, 16


def shards(ranks, seed=3):
    draw = np.random.default_rng(seed)
    return [
        (draw.standard_normal((T, H, D)).astype(np.float32), draw.uniform(-3, 3, (T, H)).astype(np.float32))
        for _ in range(ranks)
    ]


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)


def run(body, ranks=2):
    return banyan.run(body, ranks=ranks, start="thread", timeout=60)


def both(parts, comm):
    return [torch.from_numpy(array) for array in parts[comm.rank]]


def test_vllm():
    parts = shards(2)
    want = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        every, every_lse = compat.cp_lse_ag_out_ar(o, lse, comm, None, True)
        close(every, want[0])
        close(every_lse, want[1])
        base_2 = compat.cp_lse_ag_out_rs(o, lse * math.log2(math.e), comm, is_lse_base_on_e=False)
        close(base_2, compat.cp_lse_ag_out_rs(o, lse, comm))
        return compat.cp_lse_ag_out_rs(o, lse, comm, return_lse=True)

    results = run(body)
    close(torch.cat([out for out, _ in results], 1), want[0])
    close(torch.cat([lse for _, lse in results], 1), want[1])


def test_vllm_rows_that_are_empty_whatever_they_say():
    """Rank 0 has no keys of the second sequence (rows 2 and 3), and row 4 is behind the last sequence."""
    parts = shards(2)
    expected = [(o.copy(), lse.copy()) for o, lse in parts]
    expected[0][1][2:4] = -np.inf
    for _, lse in expected:
        lse[4] = -np.inf
    want = merged(expected)

    def body(comm):
        o, lse = both(parts, comm)
        lse = lse.clone()
        if comm.rank == 0:
            lse[2, 0], lse[3, 1] = math.nan, math.inf
        combine = compat.DCPCombine(comm)
        lens = torch.tensor([7, 0] if comm.rank == 0 else [7, 9], dtype=torch.int32)
        return combine(o, lse, seq_lens=lens, query_start_loc=torch.tensor([0, 2, 4], dtype=torch.int32))

    close(torch.cat(run(body), 1), want[0])


def test_sglang():
    parts = shards(2)
    want = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        heads_first = compat.cp_lse_ag_out_rs_mla(o, lse, comm, is_lse_base_on_e=True)
        assert heads_first.shape == (H // 2, T, D) and heads_first.is_contiguous()
        close(compat.cp_lse_ag_out_rs_mha(o, lse, comm), heads_first.transpose(0, 1))
        return heads_first

    close(torch.cat(run(body), 0).transpose(0, 1), want[0])


def test_entries_for_each_rank():
    """TensorRT-LLM's helix and FlashInfer's all-to-all: [..., cp, D], and entry r is for rank r."""
    parts = shards(2)
    want, _ = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        # [T, cp, H/cp, D] -> [T, H/cp, cp, D]
        entries = o.view(T, 2, H // 2, D).transpose(1, 2).contiguous()
        stats = lse.view(T, 2, H // 2).transpose(1, 2).contiguous()
        pair = torch.stack([stats - 1, torch.full_like(stats, math.e)], -1)
        by_helix = compat.helix(entries, pair, comm)
        by_flashinfer = compat.decode_cp_a2a_lse_reduce(entries, stats, comm, comm.rank, 2, "natural")
        close(by_helix, by_flashinfer)
        return by_helix

    close(torch.cat(run(body), 1), want)


def test_local_merges():
    parts = shards(3)
    want = merged(parts)
    v = torch.stack([torch.from_numpy(o) for o, _ in parts], 1)
    s = torch.stack([torch.from_numpy(lse) for _, lse in parts], 1)
    out, lse = compat.merge_states(v, s * math.log2(math.e))
    close(out, want[0])
    close(lse * math.log(2), want[1])
    two = merged(parts[:2])
    out, lse = v[:, 0].clone(), s[:, 0] * math.log2(math.e)
    mask = torch.tensor([True, True, False, True, True])
    compat.merge_state_in_place(out, lse, v[:, 1], s[:, 1] * math.log2(math.e), mask)
    close(out[mask], two[0][mask.numpy()])
    assert torch.equal(out[2], v[2, 0])
    output, output_lse = torch.empty(T, H, D), torch.empty(H, T)
    compat.merge_attn_states(output, v[:, 0], s[:, 0].T, v[:, 1], s[:, 1].T, output_lse)
    close(output, two[0])
    close(output_lse.T, two[1])
    merger = compat.SDPAMerger(True, 2)
    for part in range(3):
        merger.step(v[:, part].permute(1, 0, 2)[None], s[:, part].T[None])
    close(merger.results()[0][0].permute(1, 0, 2), want[0])
    compat.merge_state_in_place(out, lse, torch.full_like(out, math.nan), torch.full_like(lse, -math.inf))
    assert not out.isnan().any()


@pytest.mark.parametrize("keys", [1, 31])
def test_tree_attn_decode(keys):
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, n, D, generator=draw) for n in (1, keys, keys))
    want = ((q * D**-0.5) @ k.transpose(2, 3)).softmax(-1) @ v
    for out in run(lambda comm: compat.tree_attn_decode(q, k, v, group=comm), 3):
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def test_nccl_form():
    parts = shards(2)
    want = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        out = torch.empty(T, H // 2, D)
        compat.nccl_cp_combine(comm, o, lse, out, scatter="HEAD")
        return out

    close(torch.cat(run(body), 1), want[0])


@pytest.mark.parametrize("with_last", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_the_merger_of_torch_gives_the_same(partial, with_last):
    theirs = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")._SDPAMerger
    draw = torch.Generator().manual_seed(2)
    mergers = [kind(True, 2) for kind in (theirs, compat.SDPAMerger)]
    for step in range(3):
        keys = T + 1 if step == 0 or not partial else (T + 1) // 2
        out = torch.randn(2, H, keys, D, generator=draw, dtype=torch.bfloat16)
        lse = torch.randn(2, H, keys, *([1] if with_last else []), generator=draw)
        for merger in mergers:
            merger.step(out.clone(), lse.clone(), partial=partial and step > 0)
    for want, got in zip(*(merger.results() for merger in mergers)):
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=2e-2 if got.dtype == torch.bfloat16 else 1e-5, atol=1e-5)
