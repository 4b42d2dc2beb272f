# SPDX-License-Identifier: Apache-2.0
"""The measurements of check-gpu: figures of combines and decodes, and of what they are compared with."""
import os
import sys
import time

from gpu_programs import json_of, lines_of, run, say, tail

HERE = os.path.dirname(os.path.abspath(__file__))


def figure(name, value, unit, reach=None, goal=None, lower=True, rival=None, rival_value=None, **more):
    """ratio: how many times better than the rival."""
    made = {"name": name, "value": value, "unit": unit, "better": "lower" if lower else "higher", "reach": reach,
            "goal": goal, "reached": None, "rival": rival, "rival_value": rival_value, "ratio": None}
    if value is not None and reach is not None:
        made["reached"] = value <= reach if lower else value >= reach
    if value and rival_value:
        made["ratio"] = rival_value / value if lower else value / rival_value
    made.update(more)
    return made


def moved(algorithm, ranks):
    """How many times the bytes of its partial a rank reads and writes, in a combine whose result all ranks get: a oneshot reads it,
    pushes it to its peers, reads those of all, and writes the result; a twoshot does so with its share of the rows, and again
    with the merged ones. A copy moves it twice. None for other algorithms, whose paths have more steps."""
    return {"oneshot": 2 * ranks + 1, "twoshot": 6}.get(algorithm)


def figures_of_row(ranks, row, form=""):
    headline = ranks == 8 and row["bytes"] == 16640 and not form
    where = {"ranks": ranks, "bytes": row["bytes"], "algorithm": row["algorithm"], "errors": row["errors"]}
    name = "combine of %d B%s, %d ranks on one GPU" % (row["bytes"], form, ranks)
    made = [figure(name, row["banyan_us"], "us", 4.0 if headline else None, 2.5 if headline else None,
                   rival="three reductions", rival_value=row["reductions_us"], p99=row["banyan_p99_us"], **where)]
    times = None if form else moved(row["algorithm"], ranks)
    if times and row["times_of_copy"] is not None:  # noise may hide a copy's time
        large = row["bytes"] >= 1 << 20  # below, latency decides
        made.append(figure(name + ", over copies of the bytes it moves", row["times_of_copy"] * 2 / times, "times",
                           2.0 if large else None, 1.3 if large else None, moved=times, **where))
    return [one for one in made if one["value"] is not None]


# So many blocks of a rank as it has on a device of its own would not all fit next to those of the other ranks. With eight, each warp
# has a row, as there.
BLOCKS = "8"

# Bytes of a partial. Each group has its own program, so that a failure or timeout of one spares the others.
COMBINES = ((520, 1040, 4160, 16640, 66560), (133120, 266240, 532480, 1064960), (2129920, 4259840, 8519680))


# Combines of servers: each rank gets its heads, sent as bf16. Llama-8B and MLA at batch 1, 4 and 64; bytes in f32.
SERVED_AS = ("--scatter", "heads", "--wire", "bf16")
SERVED = (16640, 66560, 266240, 4259840)

FORMS = {(): "", SERVED_AS: " by heads in bf16"}


def run_combine(step, options, seconds, keep):
    """Every size: the time, against a copy of the same bytes and against three reductions."""
    until = time.monotonic() + seconds
    cases = [(8, SERVED, SERVED_AS)] + [(ranks, sizes, ()) for sizes in COMBINES for ranks in (8, 2, 4)]
    for ranks, sizes, form in [(2, (520,), ()), (2, (4160,), SERVED_AS)] if options.quick else cases:
        command = [os.path.join(options.tools, step.program), "combine", "--device", "cuda:0", "--ranks", str(ranks), "--json",
                   "--sizes", ",".join(map(str, sizes))] + list(form)
        command += ["--iterations", "1", "--warmup", "1"] if options.quick else ["--timeout", "10"]
        made = {"figures": [], "problems": []}
        answer, why = json_of(command, max(1, until - time.monotonic()), BANYAN_DEVICE_BLOCKS=BLOCKS)
        if why:
            made["problems"].append("%s, %d ranks, %d B to %d B: %s" % (step.program, ranks, sizes[0], sizes[-1], why))
        for row in answer["rows"] if answer else []:
            made["device"] = answer["device"]
            made["figures"] += figures_of_row(ranks, row, FORMS[form])
        keep(made)


# name, batch, heads, KV heads, head_dim, keys, ranks; as in rivals.py. H200 has other bounds than H100.
DECODES = (("batch 64, 32/8 heads x 128, 32 K keys", 64, 32, 8, 128, 32768, 1),
           ("batch 1, 32/8 heads x 128, 64 K keys", 1, 32, 8, 128, 65536, 1),
           ("batch 1, 8/1 heads x 128, 128 K keys", 1, 8, 1, 128, 131072, 1),
           ("batch 16, MLA 16 heads, 32 K keys", 16, 16, 1, 576, 32768, 1),
           ("batch 1, 32/8 heads x 128, 64 K keys, 2 ranks", 1, 32, 8, 128, 65536, 2),
           ("batch 16, 32/8 heads x 128, 8 K keys, 4 ranks", 16, 32, 8, 128, 8192, 4),
           ("batch 16, MLA 64 heads, 32 K keys", 16, 64, 1, 576, 32768, 1),
           ("batch 16, MLA 128 heads, 32 K keys", 16, 128, 1, 576, 32768, 1))
DECODE_BOUNDS = {"H100": {1: (110, 95), 2: (41.8, 25)}, "H200": {1: (82, 70), 2: (35.5, 25)}}


def figures_of_decode(number, name, answer):
    """How fast it reads, how long it takes, and what a combine adds."""
    device = "H200" if "H200" in answer["device"]["name"] else "H100"
    reach, goal = DECODE_BOUNDS[device].get(number, (None, None))
    share = (0.85, 0.9) if number == 0 else (None, None)
    facts = {key: answer[key] for key in ("ranks", "kernel", "fused", "worst_error", "rated_gbps", "kv_bytes")}
    alone = answer["attention_us"]
    made = [figure("decode, " + name, alone, "us", reach, goal, p99=answer["attention_p99_us"], shape=name, **facts),
            figure("decode, %s, share of the memory's rate" % name, answer["share_of_rate"], "", *share, lower=False,
                   **facts)]
    if answer["fused_us"] is not None:
        made.append(figure("decode, %s, a combine in it adds" % name, answer["fused_us"] - alone, "us", 4.0, 2.0,
                           rival="a combine after it", rival_value=answer["apart_us"] - alone, **facts))
    return made


def run_decode(step, options, seconds, keep):
    """Times the shapes of rivals.py, MLA, and ranks that divide the keys."""
    until = time.monotonic() + seconds
    for number, (name, batch, heads, kv_heads, head_dim, keys, ranks) in enumerate(DECODES):
        if options.quick:
            batch, keys = 1, 64
            if number not in (2, 4):
                continue
        command = [os.path.join(options.tools, step.program), "--device", "cuda:0", "--ranks", ranks, "--batch", batch,
                   "--heads", heads, "--kv-heads", kv_heads, "--head-dim", head_dim, "--tokens", keys, "--json",
                   "--repeat", 1 if options.quick else 100] + ([] if options.quick else ["--timeout", 10])
        command = [str(word) for word in command]
        made = {"figures": [], "problems": []}
        answer, why = json_of(command, max(1, until - time.monotonic()))
        if why:
            made["problems"].append("%s: %s" % (name, why))
        if answer:
            made["figures"] += figures_of_decode(number, name, answer)
        keep(made)


def match_rivals(results):
    """Adds to each decode the fastest of PyTorch's kernels for the same shape."""
    for one in results["figures"]:
        rows = [row for row in results["rivals"].get("rows", ()) if row["shape"] == one.get("shape") and row["us"]]
        if rows:
            best = min(rows, key=lambda row: row["us"])
            one.update(rival=best["name"], rival_value=best["us"], ratio=best["us"] / one["value"])


def run_rivals(step, options, seconds, keep):
    """Measures PyTorch's kernels, whose failures are not ours. They load lazily, because there are thousands."""
    command = [sys.executable, os.path.join(HERE, step.program), "--seconds", str(int(0.8 * seconds))]
    status, out, err = run(command + (["--quick"] if options.quick else []), seconds, CUDA_MODULE_LOADING="LAZY")
    rivals = {"torch": None, "skipped": "", "absent": [], "copy_gbps": None, "rows": [], "text": ""}
    said = lines_of(out)
    for one in said:
        if "shape" in one:
            rivals["rows"].append(one)
        else:
            rivals.update(one)
    if status != 0:
        rivals["text" if said else "skipped"] = "exit status %s: %s" % (status, tail(err))
    for word in filter(None, (rivals["skipped"], rivals["text"])):
        say("%s: %s" % (step.name, word))
    keep({"rivals": rivals})
