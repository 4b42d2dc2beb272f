# SPDX-License-Identifier: Apache-2.0
"""check(kernel) calls an attention kernel on drawn problems and says what its partials mean, and whether they can be
merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

import numpy as np

from .communicator import Communicator
from .launch import RankError, run

# Statistics, their layout, the base, and the mark of a row without keys.
PRESETS = {
    "flash_attention_2": ("lse", "heads x tokens", "e", "+inf"),
    "flash_attention_3": ("lse", "heads x tokens", "e", "-inf"),
    "flashinfer": ("lse", "tokens x heads", "2", "-inf"),
    "flashmla": ("lse", "tokens x heads", "e", "+inf"),
    "torch": ("lse", "tokens x heads", "e", "-inf"),
    "tensorrt_llm_helix": ("pairs", "tokens x heads", "e", "-inf"),
    "ggml": ("rows", "tokens x heads", "e", "-inf"),
}
# name: the lengths of sequences, and what is drawn.
PROBLEMS = {
    "ragged lengths": ((5, 1, 17, 130, 33), ""),
    "an empty sequence first": ((0, 9, 40, 3), ""),
    "empty sequences in the middle": ((9, 0, 0, 40, 3), ""),
    "an empty sequence last": ((9, 40, 0), ""),
    "only empty sequences": ((0, 0, 0), ""),
    "V of ones": ((7, 0, 130), "ones"),
    "far logits": ((1, 1, 1, 40, 70), "far"),
    "ties": ((5, 64, 2), "ties"),
    "a long sequence": ((2000, 0, 1), ""),
}
_LOG2 = np.log(2)


class KernelReport:
    """What check() found. `str` of it is the text that `python -m banyan check` prints.

    faults: {name: text}. notes: what is worth knowing and harms no merge.
    preset: the preset of Communicator.combine() that fits, or None. call: the call that merges these partials, or None.
    found: {property: text}, such as base, mark, lse_layout, out_layout, precision and values.
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.notes: list[str] = []
        self.found: dict[str, str] = {}
        self.preset: str | None = None
        self.call: str | None = None

    @property
    def ok(self) -> bool:
        """Returns whether there is no fault."""
        return not self.faults

    def __repr__(self) -> str:
        return f"<banyan.KernelReport, {', '.join(self.faults) or 'no fault'}, preset {self.preset}>"

    def __str__(self) -> str:
        lines = [f"{name.replace('_', ' '):<12}{text}" for name, text in self.found.items()]
        lines += [f"note        {text}" for text in self.notes]
        lines += [f"FAULT       {name}: {text}" for name, text in self.faults.items()]
        return "\n".join([*lines, f"merged by   {self.call or 'nothing: mend the faults first'}"])


class _Fault(Exception):
    """args: the name of a fault, and its text."""


class _Rows:
    """What a kernel returned in a call, with tokens first: o, and lse or m and d, as f32 arrays."""

    def __init__(self, result: Any, tokens: int, heads: int, dim: int) -> None:
        if not isinstance(result, (tuple, list)) or not 2 <= len(result) <= 3:
            raise _Fault("result", f"the kernel returned a {type(result).__name__}, and not (out, lse) or (out, m, d)")
        odd = [type(each).__name__ for each in result if each is not None and not hasattr(each, "dtype")]
        if odd:
            raise _Fault("result", f"the kernel returned a {odd[0]} among its results, and not an array")
        plain = [None if array is None else _plain(array) for array in result]
        if plain[0] is None:
            raise _Fault("result", "out is None")
        for array in plain:
            if array is not None and array[1] not in ("f32", "f16", "bf16"):
                raise _Fault("dtype", f"the kernel returned {array[1]}, and a merge takes f32, f16 and bf16")
        (out, self.out_dtype), rest = plain[0], plain[1:]
        self.form, rows = "lse", (dim + 2 if rest[0] is None else dim)
        shapes = {(tokens, heads, rows): "tokens x heads", (heads, tokens, rows): "heads x tokens"}
        if out.size == tokens * heads * rows and out.shape not in shapes:
            out = out.squeeze() if out.squeeze().shape in shapes else out.reshape(tokens, heads, rows)
        self.out_layout = shapes.get(out.shape)
        if self.out_layout is None:
            wanted = f"[{tokens}, {heads}, {rows}], with one query for each sequence"
            raise _Fault("out_shape", f"out is {list(out.shape)}, and not {wanted}")
        self.o = out if self.out_layout == "tokens x heads" else out.transpose(1, 0, 2)
        self.lse_dtype, self.lse_layout = "f32", "tokens x heads"
        self.layouts = [self.out_layout]
        if rest[0] is None:
            self.form, self.m, self.d, self.o = "rows", self.o[..., 0], self.o[..., 1], self.o[..., 2:]
            return
        stats, self.lse_dtype = rest[0]
        if len(rest) == 2 and rest[1] is not None:
            self.form, stats = "sum", np.stack([stats, rest[1][0]], -1)
        elif stats.ndim > 2 and stats.shape[-1] == 2:
            self.form = "pairs"
        last = (2,) if self.form in ("sum", "pairs") else ()
        if stats.shape not in ((tokens, heads, *last), (heads, tokens, *last)):
            stats = stats.squeeze()
        if stats.shape == (heads, tokens, *last):
            self.lse_layout, stats = "heads x tokens", stats.swapaxes(0, 1)
        if stats.shape != (tokens, heads, *last):
            wanted = f"[{tokens}, {heads}] nor [{heads}, {tokens}]"
            raise _Fault("lse_shape", f"lse is {list(stats.shape)}, and neither {wanted}")
        self.layouts += [self.lse_layout, self.form]
        if last:
            self.m, self.d = stats[..., 0], stats[..., 1]
        else:
            self.lse = stats

    def natural(self, base: str) -> np.ndarray:
        """Returns lse in base e, if it is in `base`, in double precision."""
        unit = _LOG2 if base == "2" else 1.0
        if self.form == "lse":
            return self.lse.astype(np.float64) * unit
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.d == 0, -np.inf, self.m.astype(np.float64) * unit + np.log(self.d.astype(np.float64)))


def _plain(array: Any) -> tuple[np.ndarray, str]:
    """Returns a copy in f32, and the name of the dtype."""
    name = str(array.dtype).replace("torch.", "").replace("bfloat", "bf").replace("float", "f")
    if hasattr(array, "detach"):
        return array.detach().float().cpu().numpy().copy(), name
    return np.array(array, np.float32), name


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: Any, scale: float, window: Any, sinks: Any) -> Any:
    """Returns o, lse and m of the definition, in double precision."""
    o, lse, top = np.zeros(q.shape), np.full(q.shape[:2], -np.inf), np.full(q.shape[:2], -np.inf)
    k, v = (array.astype(np.float64).repeat(q.shape[1] // k.shape[1], 1) for array in (k, v))
    end = 0
    for i, length in enumerate(lengths):
        begin, end = end, end + length
        if length:
            seen = slice(max(begin, end - window) if window else begin, end)
            logits = scale * np.einsum("hd,khd->hk", q[i].astype(np.float64), k[seen])
            top[i] = logits.max(1) if sinks is None else np.maximum(logits.max(1), sinks)
            weight = np.exp(logits - top[i][:, None])
            total = weight.sum(1) + (0 if sinks is None else np.exp(sinks - top[i]))
            o[i] = np.einsum("hk,khd->hd", weight, v[seen]) / total[:, None]
            lse[i] = top[i] + np.log(total)
    return o, lse, top


@dataclass
class _Judge:
    """The arguments of check(), and what is found."""

    kernel: Callable[..., Any]
    framework: str
    device: str | None
    dtype: str
    heads: int
    kv_heads: int
    dim: int
    form: str
    window: int | None
    sinks: bool
    preset: str | None
    allow: Iterable[str]
    base: str = "e"
    values: str = "normalised"
    marks: dict[str, str] = field(default_factory=dict)  # mark: where it was found
    error: float = 0  # the largest of an lse
    exact: list[np.ndarray] = field(default_factory=list)  # each lse
    masked: bool = False  # rows without keys are to be masked
    first: _Rows | None = None  # what the first problem gave

    def __post_init__(self) -> None:
        self.report, self.scale = KernelReport(), self.dim**-0.5
        self.tolerance = 1e-3 if self.dtype == "f32" else 2e-2

    # ---- calls -------------------------------------------------------------------------------------------------------

    def given(self, array: np.ndarray, whole: bool = False) -> Any:
        """Returns the array in the framework of the kernel. `whole`: it stays in its dtype."""
        if self.framework == "numpy":
            return array if whole else array.astype({"f32": np.float32, "f16": np.float16}[self.dtype])
        import torch

        kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        made = torch.from_numpy(array) if whole else torch.from_numpy(array).to(kinds[self.dtype])
        return made.to(self.device) if self.device else made

    def draw(self, lengths: tuple[int, ...], kind: str, seed: int) -> list[Any]:
        """Returns q [sequences, heads, dim] and the ragged k and v of a problem, as the kernel gets them."""
        draw = np.random.default_rng([seed, *lengths])
        shape = (sum(lengths), self.kv_heads, self.dim)
        q = draw.standard_normal((len(lengths), self.heads, self.dim), np.float32) * (60 if kind == "far" else 2)
        k, v = draw.standard_normal((2, *shape), np.float32)
        if kind == "ones":
            v[:] = 1
        if kind == "ties":
            k = k[np.repeat(np.cumsum([0, *lengths])[:-1], lengths)]
        return [self.given(array) for array in (q, k, v)]

    def invoke(self, lengths: tuple[int, ...], arrays: list[Any], **more: Any) -> _Rows:
        q, k, v = arrays
        if self.form == "padded":  # what is behind the last key is large, so that reading it shows
            ragged = np.stack([_plain(k)[0], _plain(v)[0]])
            padded = np.full((2, len(lengths), max(*lengths, 1), *k.shape[1:]), 50, np.float32)
            for i, (end, length) in enumerate(zip(np.cumsum(lengths), lengths)):
                padded[:, i, :length] = ragged[:, end - length : end]
            k, v = map(self.given, padded)
        before = [_plain(array)[0] for array in (q, k, v)]
        counts = self.given(np.array(lengths, np.int32), whole=True)
        try:
            result = self.kernel(q, k, v, counts, self.scale, **more)
        except Exception as error:
            raise _Fault("raises", f"{type(error).__name__}: {error}") from error
        if any(not np.array_equal(_plain(array)[0], old) for array, old in zip((q, k, v), before)):
            raise _Fault("writes_input", "the kernel writes to q, k or v")
        return _Rows(result, len(lengths), self.heads, self.dim)

    # ---- what is found -----------------------------------------------------------------------------------------------

    def fault(self, name: str, text: str) -> None:
        if name not in self.allow:
            self.report.faults.setdefault(name, text)
        elif name in ("empty_mark", "lse_of_another", "marks_differ", "unwritten"):
            self.masked = True

    def near(self, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        """Returns which statistics are equal but for rounding to bf16."""
        with np.errstate(invalid="ignore"):
            return np.abs(got - want) <= 0.02 + np.abs(want) / 100

    def identify(self, rows: _Rows, want: Any) -> None:
        """Finds the base of lse, and whether values are normalised, from a problem without empty sequences."""
        o, lse, top = want
        base = next((base for base in ("e", "2") if self.near(rows.natural(base), lse).all()), "")
        if not base and rows.form == "lse":
            got = rows.lse.astype(np.float64)
            texts = {
                "it is in base 10": lse / np.log(10),
                "it is the maximum, without the sum": top,
                "it is the maximum in base 2, without the sum": top / _LOG2,
                "it is the logarithm of the sum, without the maximum": lse - top,
                "it is the sum, and no logarithm": np.exp(lse - top),
                "it is exp(lse), and no logarithm": np.exp(lse),
                "its sign is reversed": -lse,
            }
            for text, wanted in texts.items():
                if self.near(got, wanted).all():
                    raise _Fault("lse_wrong", text)
            turned = np.ascontiguousarray(got if rows.lse_layout == "tokens x heads" else got.T)
            turned = turned.reshape(turned.shape[::-1]).T if turned.shape == lse.shape else turned.reshape(lse.shape)
            if any(self.near(turned * unit, lse).all() for unit in (1, _LOG2)):
                raise _Fault("lse_layout", f"its shape is {rows.lse_layout}, and its memory has the other order")
            off = [abs(float(np.median(got * unit / lse)) - 1) for unit in (1, _LOG2)]
            base = "e" if off[0] < off[1] else "2"
        self.base, self.first = base or "e", rows
        if rows.form != "lse" and not self.alike(rows.o, o).all() and self.alike(rows.o / rows.d[..., None], o).all():
            self.values = "numerator"

    def alike(self, got: np.ndarray, want: np.ndarray, more: float = 0) -> np.ndarray:
        """Returns which rows of values are equal but for rounding."""
        with np.errstate(invalid="ignore"):
            most = max(1.0, float(np.abs(want).max(initial=0)))
            return (np.abs(got - want) <= (self.tolerance + more) * most).all(-1)

    def values_of(self, rows: _Rows) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return rows.o / rows.d[..., None] if self.values == "numerator" else rows.o

    def compare(self, name: str, lengths: tuple[int, ...], rows: _Rows, want: Any) -> None:
        """Compares the rows with keys to the reference, and says which other rows they are equal to."""
        o, lse, top = want
        full = np.array(lengths) > 0
        got, values = rows.natural(self.base), self.values_of(rows)
        near, alike = self.near(got, lse), self.alike(values, o)
        for i in np.flatnonzero(full & ~near.all(1)):
            other = [j for j in np.flatnonzero(full) if j != i and self.near(got[i], lse[j]).all()]
            said = f"{name}: sequence {i} of {len(lengths)} ({lengths[i]} keys) has lse {got[i][:3].round(3)}"
            if other:
                self.fault("lse_of_another", f"{said} in base e, which is that of sequence {other[0]}")
            else:
                self.fault("lse_wrong", f"{said} in base e, and not {lse[i].round(3)[:3]}")
        for i in np.flatnonzero(full & ~alike.all(1)):
            said = f"{name}: sequence {i} of {len(lengths)} ({lengths[i]} keys)"
            if self.alike(values[i] / np.exp(lse[i] - top[i])[:, None], o[i]).all():
                self.fault("unnormalised", f"{said} has values times the sum, and no sums: return (out, m, d)")
            elif name == "V of ones" and np.isfinite(values[i]).all():
                self.fault("mass", f"{said} has values of {values[i].min():.4g} to {values[i].max():.4g}, and not 1")
            elif any(self.alike(values[i], o[j]).all() for j in np.flatnonzero(full) if j != i):
                self.fault("out_of_another", f"{said} has the values of another sequence")
            else:
                self.fault("out_wrong", f"{said} is off by {np.abs(values[i] - o[i]).max():.3g}")
        good = near & full[:, None]
        if good.any() and rows.form == "lse" and name != "far logits":
            self.error = max(self.error, float(np.abs(got[good] - lse[good]).max()))
            self.exact.append(rows.lse[good])

    def mark(self, name: str, lengths: tuple[int, ...], rows: _Rows, again: _Rows, want: Any) -> None:
        """Names the marks of the rows without keys. `again`: the same problem after another one."""
        got, later = rows.natural("e"), again.natural("e")
        full = np.flatnonzero(np.array(lengths) > 0)
        unit = _LOG2 if self.base == "2" else 1.0
        for i in np.flatnonzero(np.array(lengths) == 0):
            where = f"{name}: sequence {i} of {len(lengths)}"
            if not np.array_equal(got[i], later[i], equal_nan=True):
                self.fault("unwritten", f"{where} has no keys, and its lse is what was in memory before")
                continue
            if not np.array_equal(rows.o[i], again.o[i], equal_nan=True):
                self.note("values of rows without keys are left unwritten, which no merge reads")
            other = [j for j in full if self.near(got[i] * unit, want[1][j]).all()]
            if other:
                self.fault("lse_of_another", f"{where} has no keys, and its lse is that of sequence {other[0]}")
                continue
            for number in got[i]:
                if np.isnan(number) or np.isinf(number):
                    self.marks.setdefault("nan" if np.isnan(number) else f"{number:+}", where)
                elif number <= -1e4:
                    self.marks.setdefault(f"{number:.7g}", where)
                else:
                    text = f"{where} has no keys and lse {number:.4g}, as a row with keys may have"
                    self.fault("empty_mark", f"{text}: mend it, or pass seq_lens to combine()")

    def note(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes.append(text)

    def sized(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Returns as many sequences that shapes tell tokens and heads apart."""
        return (*lengths, 2) if len(lengths) == self.heads else lengths

    # ---- the problems ------------------------------------------------------------------------------------------------

    def solve(self, name: str, lengths: tuple[int, ...], kind: str, **more: Any) -> tuple[list[Any], _Rows, Any]:
        """Calls the kernel on a problem, on another one of its shape, and on the first again."""
        arrays = self.draw(lengths, kind, 1)
        rows = self.invoke(lengths, arrays, **more)
        dirty = tuple(max(length, 1) for length in reversed(lengths))
        self.invoke(dirty, self.draw(dirty, kind, 2), **more)
        again = self.invoke(lengths, arrays, **more)
        plain = [_plain(array)[0] for array in arrays]
        return plain, rows, again

    def judge(self) -> None:
        for name, (lengths, kind) in PROBLEMS.items():
            lengths = self.sized(lengths)
            try:
                arrays, rows, again = self.solve(name, lengths, kind)
                want = _reference(*arrays, lengths, self.scale, None, None)
                if self.first is None:
                    self.identify(rows, want)
                elif rows.layouts != self.first.layouts:
                    raise _Fault("layout", f"it is {rows.layouts}, and {self.first.layouts} for ragged lengths")
                self.compare(name, lengths, rows, want)
                self.mark(name, lengths, rows, again, want)
            except _Fault as fault:
                self.fault(fault.args[0], f"{name}: {fault.args[1]}")
                if self.first is None:  # nothing else can be judged, so that this fault cannot be allowed
                    self.report.faults[fault.args[0]] = f"{name}: {fault.args[1]}"
                    return
        for name, words in (
            *([("a window", {"window": self.window})] if self.window else []),
            *([("sinks", {"sinks": np.linspace(-1, 3, self.heads, dtype=np.float32)})] if self.sinks else []),
        ):
            try:
                self.extra(name, self.sized((5, 130, 33)), words)
            except _Fault as fault:
                self.fault(fault.args[0], f"{name}: {fault.args[1]}")

    def extra(self, name: str, lengths: tuple[int, ...], words: dict[str, Any]) -> None:
        sinks, window = words.get("sinks"), words.get("window")
        given = {key: self.given(word, whole=True) if key == "sinks" else word for key, word in words.items()}
        arrays, rows, _ = self.solve(name, lengths, "", **given)
        plain = _reference(*arrays, lengths, self.scale, None, None)
        want = _reference(*arrays, lengths, self.scale, window, sinks)
        if self.alike(want[0], plain[0]).all() and self.near(want[1], plain[1]).all():
            return self.note(f"{name} was not judged, as it changes nothing for sequences of up to {max(lengths)} keys")
        lse, o = rows.natural(self.base), self.values_of(rows)
        if self.alike(o, plain[0]).all() and self.near(lse, plain[1]).all():
            raise _Fault("ignored", f"the result is that without {name}")
        if sinks is not None and self.alike(o, want[0]).all() and self.near(lse, plain[1]).all():
            raise _Fault("sink_mass", "values contain the sinks, and lse does not: their weight is too small")
        if sinks is not None and self.alike(o, plain[0]).all() and self.near(lse, want[1]).all():
            raise _Fault("sink_mass", "lse contains the sinks, and values do not: their weight is too large")
        self.compare(name, lengths, rows, want)
        if sinks is not None:
            self.note("lse contains the sinks: let one rank alone have them")

    # ---- the verdict -------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        first, report = self.first, self.report
        if first is None:
            return
        precision = first.lse_dtype
        if self.exact and precision == "f32":
            every = np.concatenate(self.exact)
            if not (every.view(np.uint32) & 0xFFFF).any():
                precision = "f32, rounded to bf16"
            elif (every.astype(np.float16) == every).all():
                precision = "f32, rounded to f16"
        if precision != "f32":
            self.fault("lse_rounded", f"lse is {precision}: it is off by up to {self.error:.2g}, and weights by e^that")
        elif self.error > 2e-3:
            self.fault("lse_inexact", f"lse is off by up to {self.error:.2g} in base e")
        marks = [mark for mark in self.marks if mark != "-inf"]
        numbers = [float(mark) for mark in marks if mark not in ("+inf", "nan")]
        if numbers and len(numbers) < len(marks):
            self.fault("marks_differ", f"rows without keys are marked by {' and '.join(self.marks)}, in turns")
        empty: Any = max(numbers) if numbers else "|".join(marks) or "-inf"
        said = {"lse": "lse", "pairs": "pairs of (m, d)", "rows": "(m, d) before the values", "sum": "m and d"}
        report.found.update(
            out=f"{first.out_layout} x dim, {first.out_dtype}, {self.values}",
            statistics=f"{said[first.form]}, {first.lse_layout}, base {self.base}, {precision}",
            empty_rows=" and ".join(self.marks) or "not marked",
        )
        if first.lse_dtype == "f32" and (self.values == "numerator") == (first.form == "rows"):
            key = first.form, first.lse_layout, self.base, str(empty)
            report.preset = next((name for name, preset in PRESETS.items() if preset == key), None)
        words: dict[str, Any] = {"preset": report.preset} if report.preset else {"base": self.base, "empty": empty}
        if self.values == "numerator" and not report.preset:
            words["values"] = "numerator"
        if report.ok:
            self.prove(first, words)
        if self.preset and self.preset != report.preset:
            self.fault("preset", f"{report.preset or 'none'} fits, and {self.preset} is wanted")
        if report.ok:
            o = "out" if first.out_layout == "tokens x heads" else "out.transpose(1, 0, 2)"
            names = {"sum": ["m", "d"], "pairs": ["lse[..., 0]", "lse[..., 1]"]}.get(first.form, ["lse"])
            if report.preset:
                names = ["None" if first.form == "rows" else "lse"]
            elif first.lse_layout == "heads x tokens":
                names = [f"{name}.T" for name in names]
            arguments = [o, names[0], *(f"sum={name}" for name in names[1:])]
            arguments += [f"{name}={word!r}" for name, word in words.items()]
            arguments += ["token_mask=lengths > 0"] if self.masked else []
            report.call = f"comm.combine({', '.join(arguments)})"

    def prove(self, first: _Rows, words: dict[str, Any]) -> None:
        """Merges the kernel's partials of three shards by these words, and compares them with the whole."""
        lengths, cuts = self.sized((9, 0, 130, 40)), (0, 3, 50, 1 << 30)
        arrays, index = self.draw(lengths, "", 3), np.cumsum([0, *lengths])
        parts: list[Any] = []
        masks: list[Any] = []
        for begin, end in zip(cuts, cuts[1:]):
            counts = tuple(max(min(length, end) - begin, 0) for length in lengths)
            mine = [index[i] + begin + np.arange(count) for i, count in enumerate(counts)]
            at = np.concatenate(mine).astype(np.int64)
            try:
                rows = self.invoke(counts, [arrays[0], arrays[1][at], arrays[2][at]])
            except _Fault as fault:
                return self.note(f"partials of shards were not merged: {fault.args[1]}")
            stats = [rows.lse] if first.form == "lse" else [rows.m, rows.d]
            if "preset" not in words or first.form == "lse":
                by_head = "preset" in words and first.lse_layout == "heads x tokens"
                parts.append((rows.o, *(array.T if by_head else array for array in stats)))
            elif first.form == "pairs":
                parts.append((rows.o, np.stack(stats, -1)))
            else:
                parts.append((np.concatenate([np.stack(stats, -1), rows.o], -1), None))
            masks.append({"token_mask": np.array(counts) > 0} if self.masked else {})

        def merge(comm: Communicator) -> Any:
            o, lse, *total = parts[comm.rank]
            more = {"sum": total[0], "out_values": "normalised"} if total else {}
            return comm.combine(np.ascontiguousarray(o), lse, **words, **more, **masks[comm.rank])[0]

        want = _reference(*[_plain(array)[0] for array in arrays], lengths, self.scale, None, None)[0]
        try:
            got = run(merge, ranks=3, start="thread", timeout=60)[0]
        except RankError as error:
            return self.fault("merge", f"partials of shards cannot be merged: {str(error).splitlines()[-1]}")
        if not self.alike(got, want, 2 * self.error).all():
            self.fault("merge", f"merged over three ranks the result is off by {np.abs(got - want).max():.3g}")


def check(
    kernel: Callable[..., Any],
    *,
    framework: str = "numpy",
    device: str | None = None,
    dtype: str = "f32",
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 64,
    form: str = "ragged",
    window: int | None = None,
    sinks: bool = False,
    preset: str | None = None,
    allow: str | Iterable[str] = (),
) -> KernelReport:
    """Calls an attention kernel on drawn problems, and says what it returns. Local: three threads merge its partials.

    kernel(q, k, v, lengths, scale) returns (out, lse), or (out, m, d), or (rows, None) as ggml has them. q is
    [sequences, heads, dim]: each sequence has one query, which sees all its keys. lengths [sequences] int32 may be 0.
    k and v are [keys of all sequences, kv_heads, dim]; with form="padded" they are [sequences, keys, kv_heads, dim].
    framework: "numpy" or "torch", whose tensors may be on a `device`. dtype: "f32", "f16" or "bf16", of q, k and v.
    window: the kernel takes window=, so many last keys are seen. sinks: it takes sinks=, an f32 array [heads].
    preset: the preset that has to fit. allow: the names of faults that are none here, or one name.

    Returns a KernelReport. Raises ValueError for wrong arguments. What the kernel raises is a fault of it.
    """
    choices = {
        "framework": (framework, ("numpy", "torch")),
        "dtype": (dtype, ("f32", "f16", "bf16")),
        "form": (form, ("ragged", "padded")),
        "preset": (preset, (None, *PRESETS)),
    }
    for name, (word, known) in choices.items():
        if word not in known:
            raise ValueError(f"{name}: {word!r}: it is one of {', '.join(map(str, known))}")
    allowed = frozenset([allow] if isinstance(allow, str) else allow)
    if not callable(kernel):
        raise TypeError(f"kernel: it is a function, and not a {type(kernel).__name__}")
    if framework == "numpy" and (dtype == "bf16" or device):
        raise ValueError("dtype, device: numpy has no bf16 and no devices: framework is torch")
    if window is not None and window < 1:
        raise ValueError(f"window: {window}: it is the number of keys that are seen, at least 1")
    if min(heads, kv_heads, dim) < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads: {kv_heads} does not divide {heads} heads")
    judge = _Judge(kernel, framework, device, dtype, heads, kv_heads, dim, form, window, sinks, preset, allowed)
    judge.judge()
    judge.conclude()
    return judge.report
