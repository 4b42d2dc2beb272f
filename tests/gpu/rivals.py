#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's kernels take for the decode shapes that banyan-decode is measured with, as JSON on stdout.

usage: rivals.py [--quick] [--iterations N]

scaled_dot_product_attention with each backend that takes the shape, and FlexAttention, compiled. bf16, one query token
for each sequence, contiguous keys and values of random numbers. The time is the median over replays of a CUDA graph; in
the graph each run reads caches of its own, as many as make four times the second-level cache, so that none is read from
there."""
import argparse
import json
import statistics
import sys

# name, batch, heads, KV heads, head_dim, keys: as in check-gpu
SHAPES = (("batch 64, 32/8 heads x 128, 32 K keys", 64, 32, 8, 128, 32768),
          ("batch 1, 32/8 heads x 128, 64 K keys", 1, 32, 8, 128, 65536),
          ("batch 1, 8/1 heads x 128, 128 K keys", 1, 8, 1, 128, 131072))
CACHES_OF_CACHE = 4


def graph_median_us(torch, runs, iterations):
    """Of one of the functions, which are captured one after another."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for run in runs * 3:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    times = []
    for i in range(iterations + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) * 1e3 / len(runs))
    return statistics.median(times)


def caches(torch, batch, kv_heads, dim, keys, made):
    for _ in range(made):
        yield tuple(torch.randn(batch, kv_heads, keys, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))


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


def copy_gbps(torch, iterations):
    """Of a copy on the device, bytes read and bytes written: what decode kernels are held against."""
    nbytes = 1 << 30
    source = torch.randint(0, 256, (nbytes,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2e-3 * nbytes / graph_median_us(torch, [lambda: target.copy_(source)], iterations)


def measure(torch, shape, iterations):
    name, batch, heads, kv_heads, dim, keys = shape
    cache_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20)
    kv_bytes = 4 * batch * kv_heads * dim * keys
    made = max(1, -(-CACHES_OF_CACHE * cache_bytes // kv_bytes))
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    pairs = list(caches(torch, batch, kv_heads, dim, keys, made))
    for forms in (sdpa_forms, flex_forms):
        try:
            found = list(forms(torch))
        except (ImportError, AttributeError, RuntimeError) as error:
            yield {"name": forms.__name__, "shape": name, "us": None, "text": str(error).splitlines()[0][:200]}
            continue
        for form, attend in found:
            row = {"name": form, "shape": name, "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim,
                   "keys": keys, "caches": made, "us": None, "text": ""}
            try:
                runs = [lambda k=k, v=v: attend(q, k, v) for k, v in pairs]
                row["us"] = graph_median_us(torch, runs, iterations)
            except Exception as error:  # a backend that does not take the shape says so in many ways
                row["text"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                torch.cuda.synchronize()
            yield row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--iterations", type=int, default=50)
    options = parser.parse_args()
    try:
        import torch
        reason = "" if torch.cuda.is_available() else "PyTorch finds no GPU"
    except ImportError as error:
        torch, reason = None, "no PyTorch: %s" % error
    rows, gbps = [], None
    if not reason:
        with torch.no_grad():
            gbps = copy_gbps(torch, 3 if options.quick else options.iterations)
            for shape in SHAPES:
                if options.quick:
                    shape = shape[:1] + (1,) + shape[2:5] + (1024,)
                rows += list(measure(torch, shape, 3 if options.quick else options.iterations))
                torch.cuda.empty_cache()
    version = torch.__version__ if torch else None
    json.dump({"torch": version, "skipped": reason, "copy_gbps": gbps, "rows": rows}, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
