# SPDX-License-Identifier: Apache-2.0
"""The engines' calls, against the definition in double precision."""

import functools
import math

import numpy as np
import pytest
from conftest import close, merged, partials, run

import banyan

torch = pytest.importorskip("torch")
from banyan import compat  # noqa: E402  (it imports torch)
from banyan.compat import flashinfer, sglang, tensorrt_llm, vllm  # noqa: E402

T, H, D = 5, 8, 16


def shards(ranks):
    return [partials(rank, (T, H, D), empty=False) for rank in range(ranks)]


def both(parts, comm):
    return [torch.from_numpy(array) for array in parts[comm.rank]]


ranks_1_to_4 = pytest.mark.parametrize("ranks", range(1, 5))
E_2 = math.log2(math.e)


@ranks_1_to_4
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_vllm(ranks, kind):
    """All three calls, positional and by keyword, in both bases, with and without lse, whose type is as in vLLM."""
    parts = [(o, torch.from_numpy(lse).to(kind).float().numpy()) for o, lse in shards(ranks)]
    want = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        lse, results = lse.to(kind), []
        for call, kept in ((vllm.cp_lse_ag_out_rs, kind), (vllm.dcp_a2a_lse_reduce, torch.float32)):
            out = call(o, lse, comm)
            again, out_lse = call(cp_attn_out=o, cp_attn_lse=lse, cp_group=comm, ctx=None, return_lse=True)
            assert torch.equal(out, again) and out_lse.dtype == (kept if ranks > 1 else kind)
            base_2 = call(o, lse.float() * E_2, comm, None, True, False)
            close(base_2[0], out)
            close(base_2[1], out_lse.double() * E_2, 1e-5 if out_lse.dtype == torch.float32 else 2e-2)
            results.append((out, out_lse.float()))
        if ranks > 1:  # other shapes and strides that vLLM's kernels accept
            turned = o.transpose(1, 2).contiguous().transpose(1, 2)
            for more in ((o[:, None], lse[None]), (o, lse[..., None]), (turned, lse.T.contiguous().T)):
                assert torch.equal(vllm.cp_lse_ag_out_rs(*more, comm), results[0][0])
        every, every_lse = vllm.cp_lse_ag_out_ar(o, lse, comm, return_lse=True)
        assert every_lse.dtype == kind
        close(every, want[0])
        close(every_lse.float(), want[1], 2e-5 if kind == torch.float32 else 2e-2)
        return results

    for results in zip(*run(body, ranks)):
        close(torch.cat([out for out, _ in results], 1), want[0])
        close(torch.cat([lse for _, lse in results], 1), want[1], 2e-5 if kind == torch.float32 else 2e-2)


@ranks_1_to_4
def test_vllm_rows_that_are_empty_whatever_they_say(ranks):
    """Rank 0 has no keys of the second sequence (rows 2 and 3), and row 4 is behind the last sequence."""
    parts = shards(ranks)
    expected = [(o.copy(), lse.copy()) for o, lse in parts]
    expected[0][1][2:4] = -np.inf
    for _, lse in expected:
        lse[4] = -np.inf
    want = merged(expected if ranks > 1 else parts)  # a single rank gets its input back, as in vLLM

    def body(comm):
        o, lse = both(parts, comm)
        given = lse.clone()
        if comm.rank == 0 and ranks > 1:
            lse[2, 0], lse[3, 1] = math.nan, math.inf
        lens = torch.tensor([7, 0] if comm.rank == 0 else [7, 9], dtype=torch.int32)
        masks = {"seq_lens": lens, "query_start_loc": torch.tensor([0, 2, 4], dtype=torch.int32)}
        calls = vllm.dcp_a2a_lse_reduce, vllm.cp_lse_ag_out_rs
        results = [functools.partial(call, cp_group=comm, is_lse_base_on_e=True)(o, lse, **masks) for call in calls]
        close(vllm.cp_lse_ag_out_ar(o, lse, comm, **masks), want[0])
        if ranks > 1:
            none = {"seq_lens": lens[:0], "query_start_loc": torch.zeros(1, dtype=torch.int32)}
            for call in (*calls, vllm.cp_lse_ag_out_ar):
                out, out_lse = call(o, given, comm, return_lse=True, **none)
                assert not out.any() and (out_lse == -math.inf).all()
                for wrong in (
                    {"seq_lens": lens},
                    {"query_start_loc": lens},
                    {"seq_lens": lens, "query_start_loc": lens},
                ):
                    with pytest.raises(ValueError, match="query_start_loc"):
                        call(o, given, comm, **wrong)
        return results + [vllm.DCPCombine(comm)(o, lse, **masks)]

    for results in zip(*run(body, ranks)):
        close(torch.cat(results, 1), want[0])


@pytest.mark.parametrize("context", [None, 0, 2, T])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_vllm_merge_attn_states(context, kind):
    """Rows behind the context are the suffix's own, and so are their lse, which may be infinite."""
    (prefix, prefix_lse), (suffix, suffix_lse) = shards(2)
    suffix_lse[0, 0] = prefix_lse[0, 0] = prefix_lse[1, 1] = math.inf
    suffix_lse[4, 2] = math.inf
    prefix, suffix = (torch.from_numpy(o).to(kind) for o in (prefix, suffix))
    finite = [np.where(np.isinf(lse), -np.inf, lse) for lse in (prefix_lse, suffix_lse)]
    want, want_lse = merged([(o.float().numpy(), lse) for o, lse in zip((prefix, suffix), finite)])
    rows = T if context is None else context
    output, output_lse = torch.empty(T, H, D, dtype=kind), torch.empty(H, T)
    lse = [torch.from_numpy(lse).T for lse in (prefix_lse, suffix_lse)]
    vllm.merge_attn_states(output, prefix, lse[0], suffix, lse[1], output_lse, context)
    close(output[:rows].float(), want[:rows], 2e-5 if kind == torch.float32 else 1e-2)
    close(output_lse.T[:rows], want_lse[:rows])
    assert torch.equal(output[rows:], suffix[rows:]) and torch.equal(output_lse[:, rows:], lse[1][:, rows:])
    # Inputs may have more rows than the output, and the output may be one of them.
    for same in range(2):
        wide = [torch.cat([part, torch.full_like(part[:2], math.nan)]) for part in (prefix, suffix)]
        wide_lse = [torch.cat([part, part[:, :2]], 1) for part in lse]
        again, again_lse = wide[same][:T], wide_lse[same][:, :T]
        vllm.merge_attn_states(again, wide[0], wide_lse[0], wide[1], wide_lse[1], again_lse, context)
        assert torch.equal(again, output) and torch.equal(again_lse, output_lse)
    with pytest.raises(ValueError, match="output_scale"):
        vllm.merge_attn_states(output, prefix, lse[0], suffix, lse[1], output_scale=torch.ones(1))


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no fp8")
def test_vllm_merge_attn_states_to_fp8():
    """Rows are divided by the scale and kept in the range of fp8, those behind the context too."""
    (prefix, prefix_lse), (suffix, suffix_lse) = shards(2)
    suffix *= 300
    want = merged([(prefix, prefix_lse), (suffix, suffix_lse)])[0]
    want[3:] = suffix[3:]
    output, scale = torch.empty(T, H, D, dtype=torch.float8_e4m3fn), torch.tensor([0.5])
    parts = [torch.from_numpy(array) for array in (prefix, prefix_lse.T, suffix, suffix_lse.T)]
    vllm.merge_attn_states(output, *parts, None, 3, scale)
    assert (np.abs(want) * 2 > 448).any()
    close(output.float(), np.clip(want * 2, -448, 448), 0.07)


def test_wrappers_of_engines():
    """A group that says that it has one rank needs no communicator, and a mapping gets one by set_group()."""

    class Group:
        world_size = 1

    o, lse = torch.zeros(T, H, D), torch.zeros(T, H)
    assert sglang.dcp_a2a_lse_reduce(o, lse, Group()) is o
    assert vllm.dcp_a2a_lse_reduce(o, lse, Group(), return_lse=True) == (o, lse)

    def body(comm):
        mapping = Group()
        compat.set_group(mapping, comm)
        stats = torch.stack([lse, torch.ones_like(lse)], -1)
        return tensorrt_llm._helix_post_process(o.flatten(1) + comm.rank, stats, mapping, H // 2, D)

    for out in run(body):
        close(out, np.full((T, H // 2 * D), 0.5))


@ranks_1_to_4
def test_sglang(ranks):
    parts = shards(ranks)
    want = merged(parts)

    def body(comm):
        o, lse = both(parts, comm)
        out = sglang.dcp_a2a_lse_reduce(o, lse, comm)
        for more in ((True,), (True, None), (True, {}, "fi_a2a")):
            assert torch.equal(sglang.dcp_a2a_lse_reduce(o, lse, comm, *more), out)
        mla, base_2 = (
            sglang.cp_lse_ag_out_rs_mla(o, lse * E_2, comm),
            sglang.dcp_a2a_lse_reduce(o, lse * E_2, comm, False),
        )
        if ranks == 1:
            assert out is o and mla is o and sglang.cp_lse_ag_out_rs_mha(o, lse, comm, True) == (o, lse)
        else:
            assert mla.shape == (out.shape[1], T, D) and mla.is_contiguous()
            close(mla.transpose(0, 1), out)
        close(base_2, out)
        with_e = sglang.cp_lse_ag_out_rs_mla(o, lse, comm, None, True)
        close(with_e, mla)
        mha, mha_lse = sglang.cp_lse_ag_out_rs_mha(o, lse.bfloat16(), comm, return_lse=True)
        assert mha_lse.dtype == torch.bfloat16
        close(mha, out, 2e-2)
        close(sglang.cp_lse_ag_out_rs_mla_npu(o, lse, comm), out)
        channel = flashinfer.PCIeDCPA2A.from_process_group(
            process_group=comm, device="cpu", max_batch_size=T, total_heads=H, head_dim=D
        )
        into, out_2 = torch.empty_like(out), channel.lse_reduce_scatter(o, lse * E_2, plan=None, is_lse_base_on_e=False)
        assert channel.lse_reduce_scatter(o, lse, into, plan=None) is into
        close(into, out)
        close(out_2, out)
        close(channel.all_gather_heads(out.contiguous(), plan=None) if H % ranks == 0 else want[0], want[0])
        channel.close()
        return out

    close(torch.cat(run(body, ranks), 1), want[0])


def test_one_engines_form_given_to_another(lone):
    """vLLM and SGLang have a call of one name with another fourth argument: neither takes the other's in silence."""
    o, lse = torch.zeros(T, H, D), torch.zeros(T, H)
    for call in (vllm.dcp_a2a_lse_reduce, vllm.cp_lse_ag_out_rs, sglang.cp_lse_ag_out_rs_mla):
        with pytest.raises(TypeError, match="ctx"):
            call(o, lse, lone, False)
    for more in ((None,), (True, True)):
        with pytest.raises(TypeError, match="banyan.compat.vllm"):
            sglang.dcp_a2a_lse_reduce(o, lse, lone, *more)
    with pytest.raises(ValueError, match="comm_backend"):
        sglang.dcp_a2a_lse_reduce(o, lse, lone, comm_backend="ag_rs")
    with pytest.raises(TypeError, match="lse_base"):
        sglang.dcp_a2a_lse_reduce(o, lse, lone, lse_base="e")


@ranks_1_to_4
@pytest.mark.parametrize("lead", [(6,), (3, 2), (3, 1, 2)])
def test_flashinfer_entries(ranks, lead):
    """[..., cp, D] of any leading dimensions, and entry r is for rank r."""
    draw = np.random.default_rng(5)
    parts = [
        (
            draw.standard_normal((*lead, ranks, D)).astype(np.float32),
            draw.uniform(-3, 3, (*lead, ranks)).astype(np.float32),
        )
        for _ in range(ranks)
    ]
    parts[0][1].flat[0] = np.nan
    flat = [(o.reshape(-1, D)[:, None], np.nan_to_num(lse, nan=-np.inf).reshape(-1, 1)) for o, lse in parts]
    want = merged(flat)[0].reshape(*lead, ranks, D)

    def body(comm):
        o, lse = both(parts, comm)
        place = (comm, comm.rank, ranks)
        mine = want[..., comm.rank, :]
        close(flashinfer.decode_cp_a2a_lse_reduce(o, lse * E_2, *place), mine)
        close(flashinfer.decode_cp_a2a_lse_reduce(o, lse, *place, "basee"), mine)
        sizes = {"max_tokens": 3, "local_heads": 2, "cp_size": ranks, "head_dim": D, "dtype": torch.bfloat16}
        space = flashinfer.decode_cp_a2a_lse_reduce_create_workspace(**sizes, group=comm)
        named = {"workspace": space, "cp_rank": comm.rank, "cp_size": ranks, "lse_mode": "basee"}
        out = flashinfer.decode_cp_a2a_lse_reduce(partial_o=o.bfloat16(), partial_lse=lse, **named)
        assert out.dtype == torch.bfloat16 and out.shape == (*lead, D)
        close(out.float(), mine, 4e-2)
        with pytest.raises(ValueError, match="the workspace for 6 rows"):
            flashinfer.decode_cp_a2a_lse_reduce(o, lse, space, *place[1:])
        with pytest.raises(ValueError, match="natural"):
            flashinfer.decode_cp_a2a_lse_reduce(o, lse, *place, "natural")
        with pytest.raises(ValueError, match="partial_lse"):
            flashinfer.decode_cp_a2a_lse_reduce(o, lse[:1], *place)

    run(body, ranks)


def test_flashinfer_workspace_size():
    size = flashinfer.decode_cp_a2a_lse_reduce_workspace_size
    assert size(3, 2, 3, 128, torch.float16) == 48 + 2 * 3 * 3 * 2 * (256 + 4)
    for wrong in ((0, 2, 2, 128, torch.half), (1, 1, 65, 128, torch.half), (1, 1, 2, 4, torch.half)):
        with pytest.raises(ValueError):
            size(*wrong)
    with pytest.raises(TypeError):
        size(1, 1, 2, 128, torch.float32)


@ranks_1_to_4
def test_tensorrt_llm(ranks):
    """Both layouts of the entries, the engine's own call, and the merge of what was exchanged, against one reference.

    On each rank one token has no keys, which its mask says, and another has a sum of 0. Both have NaN as values.
    """
    heads, every, draw = 2, ranks * 2, np.random.default_rng(9)
    parts = []
    for rank in range(ranks):
        o = draw.standard_normal((T, every, D)).astype(np.float32)
        stats = np.stack([draw.uniform(-3, 3, (T, every)), draw.uniform(0.5, 2, (T, every))], -1).astype(np.float32)
        mask = np.arange(T) == rank
        if ranks > 1:
            stats[(rank + 1) % T, :, 1] = 0
            o[mask] = o[(rank + 1) % T] = np.nan
            stats[mask] = (1e4, 7)
        parts.append((o, stats, mask & (ranks > 1)))
    clean = []
    for o, stats, mask in parts:
        with np.errstate(divide="ignore"):
            lse = np.where(mask[:, None], -np.inf, stats[..., 0] + np.log(stats[..., 1]))
        clean.append((np.nan_to_num(o), lse))
    want = merged(clean)[0]

    def body(comm):
        o, stats, mask = (torch.from_numpy(array) for array in parts[comm.rank])
        mine = want[:, comm.rank * heads : (comm.rank + 1) * heads].reshape(T, heads * D)
        by_rank, stats_by_rank = o.view(T, ranks, heads, D), stats.view(T, ranks, heads, 2)
        padded = torch.cat([mask, mask])  # the mask may be longer than the tokens
        version_2 = tensorrt_llm.helix(by_rank.flatten(2), stats_by_rank.flatten(2), comm, 2.0, padded)
        close(version_2, 2 * mine)
        entries = by_rank.transpose(1, 2), stats_by_rank.transpose(1, 2)
        version_1 = tensorrt_llm.helix(*entries, comm, zero_kv_mask=mask)
        assert version_1.shape == (T, heads, D)
        close(version_1.flatten(1), mine)
        whole = tensorrt_llm._helix_post_process(o.flatten(1), stats, comm, heads, D, zero_kv_mask=mask)
        close(whole, mine)
        with pytest.raises(ValueError, match="softmax_stats"):
            tensorrt_llm.helix(by_rank, stats_by_rank.flatten(2), comm)
        with pytest.raises(ValueError, match="zero_kv_mask"):
            tensorrt_llm.helix(*entries, comm, zero_kv_mask=mask[1:])

    run(body, ranks)
    gathered = np.stack([o.reshape(T, ranks, heads, D)[:, 0] for o, _ in clean])
    stats = np.stack([np.stack([lse, np.ones_like(lse)], -1).reshape(T, ranks, heads, 2)[:, 0] for _, lse in clean])
    gathered, stats = torch.from_numpy(gathered), torch.from_numpy(stats)
    for dim in (1, 2):  # fifo_version 2, and 1
        moved = gathered.movedim(0, dim), stats.movedim(0, dim)
        close(tensorrt_llm.helix_post_process_native(*moved, 0.5, dim), want[:, :heads].reshape(T, -1) / 2)
    with pytest.raises(ValueError, match="cp_dim 0"):
        tensorrt_llm.helix_post_process_native(gathered, stats, 1.0, 0)
    close(tensorrt_llm.helix_post_process(gathered.flatten(2), stats, 1.0), want[:, :heads].reshape(T, -1))
    with pytest.raises(ValueError, match="gathered_stats"):
        tensorrt_llm.helix_post_process(gathered.flatten(2), stats[..., :1], 1.0)


def test_groups_by_name(tmp_path):
    from torch import distributed as dist

    if not hasattr(dist.distributed_c10d, "_resolve_process_group"):
        pytest.skip("this torch has no names of groups")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with compat.communicator(dist.group.WORLD.group_name) as comm:
            assert comm.nranks == 1 and compat.communicator(None) is comm
    finally:
        dist.destroy_process_group()
    with pytest.raises(TypeError, match="a group is"):
        vllm.cp_lse_ag_out_rs(torch.zeros(1, 2, 4), torch.zeros(1, 2), 7)


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
    several = compat.variable_length_merge_states(
        v.flatten(0, 1), s.flatten(0, 1) * math.log2(math.e), torch.tensor([0, 3, 3, 5, 3 * T])
    )
    close(several[0][0], want[0][0])
    close(several[1][0] * math.log(2), want[1][0])
    assert not several[0][1].any() and (several[1][1] == -math.inf).all()
    close(several[0][2], merged([(o[1:2], lse[1:2]) for o, lse in parts[:2]])[0][0])
    into = torch.empty_like(v[:, 0]), torch.empty_like(s[:, 0])
    sgl = sglang.merge_state_v2(v[:, 0], s[:, 0], v[:, 1], s[:, 1], *into)
    assert sgl[0] is into[0] and sgl[1] is into[1]
    for got, expected in zip(sgl + sglang.merge_state_v2(v[:, 0], s[:, 0], v[:, 1], s[:, 1]), two * 2):
        close(got, expected)
    ring = None, None
    for part in range(3):
        ring = compat.update_out_and_lse(*ring, v[None, :, part], s[None, :, part].transpose(1, 2))
    close(ring[0][0], want[0])
    close(ring[1][0, ..., 0], want[1])
    half = (slice(None), slice(2, None))
    ring = compat.update_out_and_lse(None, None, v[None, :, 0].clone(), s[None, :, 0].clone().transpose(1, 2))
    ring = compat.update_out_and_lse(*ring, v[None, 2:, 1], s[None, 2:, 1].transpose(1, 2), half)
    close(ring[0][0], np.concatenate([parts[0][0][:2], two[0][2:]]))
    with pytest.raises(RuntimeError, match="slice_"):
        compat.update_out_and_lse(None, None, v[None, :, 0], s[None, :, 0].transpose(1, 2), half)
    merger = compat._SDPAMerger(True, 2)
    for part in range(3):
        merger.step(v[:, part].permute(1, 0, 2)[None], s[:, part].T[None], partial=False)
    close(merger.results()[0][0].permute(1, 0, 2), want[0])
    compat.merge_state_in_place(out, lse, torch.full_like(out, math.nan), torch.full_like(lse, -math.inf))
    assert not out.isnan().any()


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [1, 31])
def test_tree_attn_decode(keys, queries):
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, n, D, generator=draw) for n in (queries, keys, keys))
    want = ((q * D**-0.5) @ k.transpose(2, 3)).softmax(-1) @ v
    for out in run(lambda comm: compat.tree_attn_decode(q, k, v, group=comm), 3):
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_last", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_the_merger_of_torch_gives_the_same(partial, with_last):
    theirs = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")._SDPAMerger
    draw = torch.Generator().manual_seed(2)
    mergers = [kind(True, 2) for kind in (theirs, compat._SDPAMerger)]
    for step in range(3):
        keys = T + 1 if step == 0 or not partial else (T + 1) // 2
        out = torch.randn(2, H, keys, D, generator=draw, dtype=torch.bfloat16)
        lse = torch.randn(2, H, keys, *([1] if with_last else []), generator=draw)
        for merger in mergers:
            merger.step(out.clone(), lse.clone(), partial=partial and step > 0)
    for want, got in zip(*(merger.results() for merger in mergers)):
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=2e-2 if got.dtype == torch.bfloat16 else 1e-5, atol=1e-5)
