#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other libraries for the shapes that banyan-decode and banyan-perf are measured with. Each line of JSON is written
to stdout as soon as it is known, so that a run that is ended early keeps its figures.

usage: rivals.py [--quick] [--iterations N] [--seconds N]

  --seconds N  nothing more is begun after that; what has begun goes on, and compilers take their time

scaled_dot_product_attention with each backend that takes the shape, and then FlexAttention, compiled. bf16, one query token
for each sequence, contiguous keys and values of random numbers. The time is the median over replays of a CUDA graph, which
follow each other without a pause; in the graph each run reads caches of its own, as many as make four times the second-level
cache, so that none is read from there. FlashInfer's decode and its merge of states, where it is installed.

Combines whose result is scattered by heads, in bf16, one rank for each device: NCCL's all-to-all, or its allgather, and a merge that
torch.compile makes, all in a graph. `evicted_us` is the time where other kernels stand between them, which evict
caches as those of a model do; the time of these alone, `between_us`, is taken off. NCCL takes one rank for each device, so on a single
one this says so, and only the merge is timed. `absent` names the rivals that are not measured here, and why."""
import argparse
import json
import os
import statistics
import sys
import time

# name, batch, heads, KV heads, head_dim, keys: as in check-gpu
SHAPES = (("batch 64, 32/8 heads x 128, 32 K keys", 64, 32, 8, 128, 32768),
          ("batch 1, 32/8 heads x 128, 64 K keys", 1, 32, 8, 128, 65536),
          ("batch 1, 8/1 heads x 128, 128 K keys", 1, 8, 1, 128, 131072),
          ("batch 16, MLA 16 heads, 32 K keys", 16, 16, 1, 576, 32768),
          ("batch 16, MLA 64 heads, 32 K keys", 16, 64, 1, 576, 32768),
          ("batch 16, MLA 128 heads, 32 K keys", 16, 128, 1, 576, 32768))
MLA_DIM, MLA_VALUE_DIM = 576, 512
# package, what it would be measured for
PACKAGES = (("flashinfer", "FlashInfer: decode, merge of states"), ("flash_attn_interface", "FlashAttention-3: decode"),
            ("flash_mla", "FlashMLA: decode of MLA"), ("vllm", "vLLM: its all-reduce and merge"))
# name, tokens, heads, value_dim, ranks whose partials are merged
COMBINES = (("combine by heads, 4 tokens x 32 heads x 128", 4, 32, 128, 8),
            ("combine by heads, 1 token x 128 heads x 512", 1, 128, 512, 8),
            ("combine by heads, 64 tokens x 128 heads x 512", 64, 128, 512, 8))
CACHES_OF_CACHE = 4
RUNS_MIN = 4


def graph_median_us(torch, runs, iterations):
    """Times one of the functions, which are captured one after another."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for run in runs * 3:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    captured = runs * -(-RUNS_MIN // len(runs))
    with torch.cuda.graph(graph):
        for run in captured:
            run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    for _ in range(5):
        graph.replay()
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) * 1e3 / len(captured) for a, b in zip(events, events[1:]))


def caches(torch, batch, kv_heads, dim, keys, made):
    """Keys and values; of MLA, values are the first columns of keys."""
    for _ in range(made):
        k = torch.randn(batch, kv_heads, keys, dim, device="cuda", dtype=torch.bfloat16)
        yield k, k[..., :MLA_VALUE_DIM] if dim == MLA_DIM else torch.randn_like(k)


def sdpa_forms(torch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    functional = torch.nn.functional.scaled_dot_product_attention
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue

        def attend(q, k, v, backend=backend):
            with sdpa_kernel(backend):
                return functional(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        yield "SDPA, " + name.lower(), attend


def flex_forms(torch):
    from torch.nn.attention.flex_attention import flex_attention
    compiled = torch.compile(flex_attention, dynamic=False)
    yield "FlexAttention", lambda q, k, v: compiled(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def flashinfer_forms(torch):
    """Batches have a plan of the host's, which is made before the graph; each sequence is one page."""
    import flashinfer
    plans = {}

    def plan_of(q, k):
        batch, heads, kv_heads, keys = q.shape[0], q.shape[1], k.shape[1], k.shape[2]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "HND")
        pages = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
        wrapper.plan(pages, pages[:-1].clone(), torch.full_like(pages[:-1], keys), heads, kv_heads, q.shape[3], keys,
                     q_data_type=q.dtype, kv_data_type=k.dtype)
        return wrapper

    def attend(q, k, v):
        if q.shape[0] == 1:
            return flashinfer.single_decode_with_kv_cache(q[0, :, 0], k[0], v[0], kv_layout="HND")
        if (q.shape, k.shape) not in plans:
            plans[q.shape, k.shape] = plan_of(q, k)
        return plans[q.shape, k.shape].run(q[:, :, 0], (k, v))
    yield "FlashInfer", attend


# ---- combines ----------------------------------------------------------------------------------------------------------

def merge_of(torch):
    """Partials [ranks, rows, dim] and their lse [ranks, rows] to values [rows, dim]."""
    def merge(values, lse):
        weights = torch.softmax(lse, dim=0)
        return (values.float() * weights.unsqueeze(-1)).sum(dim=0).to(values.dtype)
    return torch.compile(merge, dynamic=False)


def between_of(torch):
    """Twice the second-level cache, and kernels of a model."""
    cache_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20)
    memory = torch.zeros(2 * cache_bytes // 4, device="cuda")
    square = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)

    def between():
        memory.add_(1.0)
        torch.softmax(torch.matmul(square, square), dim=-1).sort(dim=-1)
    return between


def combine_times(torch, run, between, between_us, iterations):
    """One after another, and with other kernels between."""
    def both():
        run()
        between()
    return {"us": graph_median_us(torch, [run], iterations), "between_us": between_us,
            "evicted_us": graph_median_us(torch, [both], iterations) - between_us}


def merge_forms(torch):
    yield "torch.compile, the merge alone", merge_of(torch)
    try:
        import flashinfer

        def merge_states(values, lse):  # [rows][states][heads][dim]: one head a row here
            return flashinfer.merge_states(values.transpose(0, 1).unsqueeze(2).contiguous(), lse.transpose(0, 1).unsqueeze(2).contiguous())
        yield "FlashInfer, the merge alone", merge_states
    except ImportError:
        pass


def partials(torch, ranks, rows, dim):
    return (torch.randn(ranks, rows, dim, device="cuda", dtype=torch.bfloat16), torch.randn(ranks, rows, device="cuda"))


def measure_merges(torch, iterations):
    between = between_of(torch)
    between_us = graph_median_us(torch, [between], iterations)
    for name, tokens, heads, dim, ranks in COMBINES:
        values, lse = partials(torch, ranks, tokens * heads // ranks, dim)
        for form, merge in merge_forms(torch):
            row = {"name": form, "shape": name, "us": None, "text": ""}
            try:
                row.update(combine_times(torch, lambda merge=merge: merge(values, lse), between, between_us, iterations))
            except Exception as error:  # an error of another project's compiler or library
                row["text"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                torch.cuda.synchronize()
            yield row


def nccl_forms(torch, group, tokens, heads, dim, ranks):
    """Each rank sends each other one its part of the heads, or everything to all, and merges its own part."""
    merge, own = merge_of(torch), heads // ranks
    values, lse = torch.randn(heads, tokens, dim, device="cuda", dtype=torch.bfloat16), torch.randn(heads, tokens, device="cuda")
    got, got_lse = torch.empty_like(values), torch.empty_like(lse)
    all_values = torch.empty(ranks * heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
    all_lse = torch.empty(ranks * heads, tokens, device="cuda")
    first = group.get_rank() * own

    def exchange():
        group.all_to_all_single(got, values)
        group.all_to_all_single(got_lse, lse)
        return merge(got.view(ranks, own * tokens, dim), got_lse.view(ranks, own * tokens))

    def gather():
        group.all_gather_into_tensor(all_values, values)
        group.all_gather_into_tensor(all_lse, lse)
        part = slice(first, first + own)
        return merge(all_values.view(ranks, heads, tokens, dim)[:, part].reshape(ranks, own * tokens, dim),
                     all_lse.view(ranks, heads, tokens)[:, part].reshape(ranks, own * tokens))
    return (("NCCL all-to-all and a merge", exchange), ("NCCL allgather and a merge", gather))


def nccl_rank(rank, ranks, iterations, store):
    """A process for each device; the first one says what came of it."""
    import torch
    import torch.distributed as group
    torch.cuda.set_device(rank)
    group.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=ranks)
    with torch.no_grad():
        between = between_of(torch)
        between_us = graph_median_us(torch, [between], iterations)
        for name, tokens, heads, dim, _ in COMBINES:
            for form, run in nccl_forms(torch, group, tokens, heads, dim, ranks):
                times = combine_times(torch, run, between, between_us, iterations)
                if rank == 0:
                    say(dict(times, name="%s, %d devices" % (form, ranks), shape=name, text=""))
    group.destroy_process_group()


def measure_nccl(torch, iterations):
    """Uses 2, 4 or 8 devices, as many as there are."""
    import tempfile
    devices = torch.cuda.device_count()
    ranks = max((count for count in (2, 4, 8) if count <= devices), default=1)
    if ranks < 2:
        say({"name": "NCCL", "shape": COMBINES[0][0], "us": None, "text": "NCCL takes one rank for each device, and there is one"})
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(nccl_rank, (ranks, iterations, os.path.join(folder, "store")), nprocs=ranks)
        except Exception as error:  # an error of a rank
            say({"name": "NCCL", "shape": COMBINES[0][0], "us": None, "text": str(error).strip().splitlines()[-1][:200]})


def copy_gbps(torch, iterations):
    """The bandwidth of a copy on the device, bytes read and written, with which decode kernels are compared."""
    nbytes = 1 << 30
    source = torch.randint(0, 256, (nbytes,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2e-3 * nbytes / graph_median_us(torch, [lambda: target.copy_(source)], iterations)


def measure_form(torch, row, attend, q, pairs, iterations):
    try:
        row["us"] = graph_median_us(torch, [lambda k=k, v=v: attend(q, k, v) for k, v in pairs], iterations)
    except Exception as error:  # backends reject a shape by many kinds of errors
        row["text"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        torch.cuda.synchronize()
    return row


def measure(torch, forms, shape, iterations, in_time):
    """A row for each form that takes the shape or does not."""
    name, batch, heads, kv_heads, dim, keys = shape
    cache_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20)
    made = max(1, -(-CACHES_OF_CACHE * cache_bytes // (4 * batch * kv_heads * dim * keys)))
    try:
        found = list(forms(torch))
    except (ImportError, AttributeError, RuntimeError) as error:
        yield {"name": forms.__name__, "shape": name, "us": None, "text": str(error).splitlines()[0][:200]}
        return
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    pairs = list(caches(torch, batch, kv_heads, dim, keys, made))
    for form, attend in found:
        row = {"name": form, "shape": name, "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim,
               "keys": keys, "caches": made, "us": None, "text": "no time left of --seconds"}
        yield measure_form(torch, dict(row, text=""), attend, q, pairs, iterations) if in_time() else row


def say(fields):
    print(json.dumps(fields), flush=True)


def absent(torch):
    """The rivals that this machine cannot run."""
    import importlib.util
    made = ["%s (no package %s)" % (what, name) for name, what in PACKAGES if importlib.util.find_spec(name) is None]
    if torch.cuda.device_count() < 2:
        made.append("NCCL: it takes one rank for each device, and there is one")
    return made


def find_torch():
    try:
        import torch
    except ImportError as error:
        return None, "no PyTorch: %s" % error
    return torch, "" if torch.cuda.is_available() else "PyTorch finds no GPU"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=86400)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    torch, reason = find_torch()
    say({"torch": torch.__version__ if torch else None, "skipped": reason})
    if reason:
        return 0
    iterations = 3 if options.quick else options.iterations
    with torch.no_grad():
        say({"absent": absent(torch)})
        say({"copy_gbps": copy_gbps(torch, iterations)})
        for forms in (sdpa_forms, flashinfer_forms, flex_forms):  # compiled forms come last
            for shape in SHAPES:
                if options.quick:
                    shape = shape[:1] + (1,) + shape[2:5] + (1024,)
                for row in measure(torch, forms, shape, iterations, lambda: time.monotonic() < until):
                    say(row)
                torch.cuda.empty_cache()
            if forms is flashinfer_forms and time.monotonic() < until:
                for row in measure_merges(torch, iterations):
                    say(row)
                measure_nccl(torch, iterations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
