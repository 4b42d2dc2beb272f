# SPDX-License-Identifier: Apache-2.0
"""The judge of kernels: each convention is named with the call that merges it, and each planted fault is found."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import banyan

LN2 = np.log(2).astype(np.float32)


def attend(q, k, v, lengths, scale, window=None, sinks=None):
    """o, m and d of each row, in f32. Rows without keys have 0, -inf and 0."""
    o, d, ends = np.zeros(q.shape, np.float32), np.zeros(q.shape[:2], np.float32), np.cumsum(lengths)
    m = np.full(q.shape[:2], -np.inf, np.float32)
    for i, length in enumerate(lengths):
        if length:
            seen = slice(max(ends[i] - length, ends[i] - (window or length)), ends[i])
            keys, values = (rows[seen].repeat(q.shape[1] // k.shape[1], 1) for rows in (k, v))
            logits = scale * np.einsum("hd,khd->hk", q[i], keys)
            m[i] = logits.max(1) if sinks is None else np.maximum(logits.max(1), sinks)
            weight = np.exp(logits - m[i][:, None])
            d[i] = weight.sum(1) + (0 if sinks is None else np.exp(sinks - m[i]))
            o[i] = np.einsum("hk,khd->hd", weight, values) / d[i][:, None]
    return o, m, d


def lse_of(m, d):
    with np.errstate(divide="ignore"):
        return m + np.log(d)


def kernel(change=lambda o, lse, lengths: (o, lse)):
    """A kernel whose (out, lse) is changed."""

    def call(q, k, v, lengths, scale, **more):
        o, m, d = attend(q, k, v, lengths, scale, **more)
        return change(o, lse_of(m, d), lengths)

    return call


def marked(mark):
    return lambda lse: np.where(np.isneginf(lse), np.float32(mark), lse)


right, unmarked = kernel(), kernel(lambda o, lse, _: (o, marked(0)(lse)))


def rows_of_ggml(q, k, v, lengths, scale):
    o, m, d = attend(q, k, v, lengths, scale)
    return np.concatenate([m[..., None], d[..., None], o * d[..., None]], -1), None


def pairs(q, k, v, lengths, scale):
    o, m, d = attend(q, k, v, lengths, scale)
    return o, np.stack([m, d], -1)


def three(q, k, v, lengths, scale):
    o, m, d = attend(q, k, v, lengths, scale)
    return (o * d[..., None]).transpose(1, 0, 2), m.T / LN2, d.T


CONVENTIONS = {
    "flash_attention_2": (kernel(lambda o, lse, _: (o, marked(np.inf)(lse).T)), "(out, lse, preset="),
    "flash_attention_3": (kernel(lambda o, lse, _: (o, lse.T)), "(out, lse, preset="),
    "flashinfer": (kernel(lambda o, lse, _: (o, lse / LN2)), "(out, lse, preset="),
    "flashmla": (kernel(lambda o, lse, _: (o[:, None], marked(np.inf)(lse)[..., None])), "(out, lse, preset="),
    "torch": (kernel(lambda o, lse, _: (o.reshape(len(o), -1), lse)), "(out, lse, preset="),
    "tensorrt_llm_helix": (pairs, "(out, lse, preset="),
    "ggml": (rows_of_ggml, "(out, None, preset="),
    "by head": (
        kernel(lambda o, lse, _: (o.transpose(1, 0, 2), marked(np.nan)(lse / LN2).T)),
        "(out.transpose(1, 0, 2), lse.T, base='2', empty='nan')",
    ),
    "a number": (kernel(lambda o, lse, _: (o, marked(-1e30)(lse))), "(out, lse, base='e', empty=-1e+30)"),
    "m and d": (three, "(out.transpose(1, 0, 2), m.T, sum=d.T, base='2', empty='-inf', values='numerator')"),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_are_named(name):
    function, call = CONVENTIONS[name]
    preset = name if call.endswith("preset=") else None
    report = banyan.check(function, preset=preset)
    assert report.ok and report.preset == preset, report
    assert report.call == (f"comm.combine{call}{preset!r})" if preset else f"comm.combine{call}")
    other = "torch" if name == "ggml" else "ggml"
    assert set(banyan.check(function, preset=other).faults) == {"preset"}
    assert banyan.check(function, preset=other, allow="preset").ok


KEPT = {}


def keeps_buffers(o, lse, lengths):
    """Writes rows with keys alone, into arrays that it keeps."""
    mine = KEPT.setdefault(o.shape, (np.zeros_like(o), np.zeros_like(lse)))
    for row in np.flatnonzero(lengths):
        mine[0][row], mine[1][row] = o[row], lse[row]
    return mine


def bf16(lse):
    return ((lse.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def last_of(array, lengths):
    """Row 1 is that of the row before, if both have keys."""
    array = array.copy()
    if len(lengths) > 1 and lengths[0] and lengths[1]:
        array[1] = array[0]
    return array


def of_the_next(o, lse, lengths):
    """Sequences without keys have the lse of a sequence with keys, as a start that was not clamped gives it."""
    lse = lse.copy()
    for row in np.flatnonzero(np.array(lengths) == 0):
        lse[row] = lse[np.argmax(lengths)]
    return o, lse


def fails(*_, **__):
    raise RuntimeError("no keys, no kernel")


def naive(q, k, v, lengths, scale):
    """Subtracts no maximum."""
    o, m, d = attend(q, k, v, lengths, scale)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        total = np.exp(m) * d
        return o * (total / total)[..., None], np.log(total)


def unnormalised(q, k, v, lengths, scale):
    o, m, d = attend(q, k, v, lengths, scale)
    return o * d[..., None], lse_of(m, d)


def maximum(q, k, v, lengths, scale):
    return attend(q, k, v, lengths, scale)[:2]


def writes(q, k, v, lengths, scale):
    o, m, d = attend(q, k, v, lengths, scale)
    q *= 2
    return o, lse_of(m, d)


FAULTS = {
    "unwritten": kernel(keeps_buffers),
    "empty_mark": unmarked,
    "marks_differ": kernel(lambda o, lse, n: (o, marked(np.inf if n[0] else -1e30)(lse))),
    "lse_rounded": kernel(lambda o, lse, _: (o, bf16(lse))),
    "lse_inexact": kernel(lambda o, lse, _: (o, lse * np.float32(1.004))),
    "lse_of_another": kernel(lambda o, lse, n: (o, last_of(lse, n))),
    "lse_of_another (no keys)": kernel(of_the_next),
    "out_of_another": kernel(lambda o, lse, n: (last_of(o, n), lse)),
    "out_wrong": kernel(lambda o, lse, _: (o + np.float32(0.1), lse)),
    "mass": kernel(lambda o, lse, _: (o * np.float32(0.97), lse)),
    "unnormalised": unnormalised,
    "lse_wrong (naive)": naive,
    "lse_wrong (the maximum)": maximum,
    "lse_wrong (base 10)": kernel(lambda o, lse, _: (o, lse / np.log(10).astype(np.float32))),
    "lse_wrong (sign)": kernel(lambda o, lse, _: (o, -lse)),
    "lse_layout": kernel(lambda o, lse, _: (o, lse.T.reshape(lse.shape))),
    "lse_layout (by head)": kernel(lambda o, lse, _: (o, lse.reshape(lse.shape[::-1]))),
    "lse_shape": kernel(lambda o, lse, _: (o, lse[:, :-1])),
    "out_shape": kernel(lambda o, lse, _: (o[:, :-1], lse)),
    "layout": kernel(lambda o, lse, n: (o, lse if n[0] else lse.T)),
    "result": kernel(lambda o, lse, _: o),
    "dtype": kernel(lambda o, lse, _: (o, lse.astype(np.float64))),
    "raises": fails,
    "writes_input": writes,
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    KEPT.clear()
    report = banyan.check(FAULTS[name])
    fault = name.split()[0]
    assert fault in report.faults and not report.ok and report.call is None, report
    assert f"FAULT       {fault}: {report.faults[fault]}" in str(report)
    KEPT.clear()
    if report.found:  # there is more than the first problem
        mask = {"unwritten", "empty_mark", "marks_differ", "lse_of_another"} & set(report.faults)
        report = banyan.check(FAULTS[name], allow=[*report.faults, *([] if mask else ["merge"])])
        assert report.ok and report.call.endswith(", token_mask=lengths > 0)" if mask else ")"), report


def test_what_each_fault_says():
    said = {name: next(iter(banyan.check(FAULTS[name]).faults.values())) for name in FAULTS}
    for name, text in {
        "lse_of_another": "ragged lengths: sequence 1 of 5 (1 keys) has lse ",
        "lse_of_another (no keys)": "first: sequence 0 of 4 has no keys, and its lse is that of sequence 2",
        "empty_mark": "an empty sequence first: sequence 0 of 4 has no keys and lse 0, ",
        "lse_wrong (the maximum)": "it is the maximum, without the sum",
        "lse_wrong (naive)": "far logits: sequence 0 of 5 (1 keys) has lse ",
        "raises": "RuntimeError: no keys, no kernel",
    }.items():
        assert text in said[name], said[name]


def test_windows_and_sinks():
    report = banyan.check(kernel(), window=16, sinks=True)
    assert report.ok and report.notes == ["lse contains the sinks: let one rank alone have them"]

    def ignores(q, k, v, lengths, scale, window=None, sinks=None):
        return kernel()(q, k, v, lengths, scale)

    assert banyan.check(ignores, window=16).faults == {"ignored": "a window: the result is that without a window"}
    wide = banyan.check(kernel(), window=1000)  # hides no key, so ignoring it is no fault
    assert wide.ok and "a window was not judged" in wide.notes[0]
    assert "ignored" in banyan.check(ignores, sinks=True).faults
    for inside in (0, 1):

        def half(q, k, v, lengths, scale, sinks=None, inside=inside):
            results = ignores(q, k, v, lengths, scale), kernel()(q, k, v, lengths, scale, sinks=sinks)
            return results[inside][0], results[1 - inside][1]

        assert "sink_mass" in banyan.check(half, sinks=True).faults


def test_padded_and_other_shapes():
    """banyan's own attention, on tensors where torch is there. A kernel that reads behind the last key is found."""
    words = {"form": "padded", "heads": 4, "kv_heads": 4, "dim": 32}

    def own(q, k, v, lengths, scale):
        k, v = (rows.swapaxes(1, 2) for rows in (k, v))
        return banyan.attention(q, k, v, seq_lens=lengths, scale=scale)

    def beyond(q, k, v, lengths, scale):
        return own(q, k, v, np.minimum(lengths + (lengths > 0), k.shape[1]).astype(np.int32), scale)

    assert banyan.check(own, **words).preset == "torch"
    assert {"lse_wrong", "out_wrong"} <= set(banyan.check(beyond, **words).faults)
    assert banyan.check(own, dtype="f16", **words).preset == "torch"
    torch = pytest.importorskip("torch")
    report = banyan.check(own, framework="torch", dtype="bf16", **words)
    assert report.preset == "torch" and "bf16" in report.found["out"]
    lse_in_bf16 = banyan.check(
        lambda *given: (lambda out, lse: (out, lse.to(torch.bfloat16)))(*own(*given)), framework="torch", **words
    )
    assert set(lse_in_bf16.faults) == {"lse_rounded"} and "lse is bf16: " in lse_in_bf16.faults["lse_rounded"]


def test_results_that_are_no_arrays():
    report = banyan.check(lambda *given: (kernel()(*given)[0], 1.5))
    assert list(report.faults) == ["result"] and "a float among its results" in report.faults["result"]


def test_wrong_arguments():
    words = [("dtype", "f64"), ("form", "pages"), ("preset", "fa2"), ("kv_heads", 3), ("window", 0), ("dtype", "bf16")]
    for name, word in words:
        with pytest.raises(ValueError, match=f"^{name}"):
            banyan.check(kernel(), **{name: word})
    with pytest.raises(TypeError, match="kernel: it is a function, and not a str"):
        banyan.check("kernel")


def test_the_command():
    def run(*arguments):
        command = [sys.executable, "-m", "banyan", "check", *arguments]
        done = subprocess.run(command, cwd=pathlib.Path(__file__).parent, text=True, capture_output=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    status, text = run("test_judge:right", "--kv-heads", "1", "--dim", "32")
    assert status == 0 and "merged by   comm.combine(out, lse, preset='torch')" in text, text
    status, text = run("test_judge:unmarked", "--kv-heads", "1", "--preset", "torch")
    assert status == 1 and "FAULT       empty_mark: " in text, text
    for name in ("test_judge", "test_judge:left", "nowhere:right"):
        status, text = run(name)
        assert status == 2 and len(text.splitlines()) == 1 and text.startswith(f"python -m banyan check {name}: "), text
