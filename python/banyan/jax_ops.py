# SPDX-License-Identifier: Apache-2.0
"""combine() within functions that JAX compiles, on the CPU.

    jax.jit(lambda o, lse: banyan.jax_ops.combine(o, lse, comm))

XLA calls the library by its foreign function interface: no Python runs, and no array is copied. Each process has one
rank, or a function that is mapped over devices of one process has a communicator for each of them.

If a call fails, JAX raises its own error with the library's text when the returned array is read.
comm.failed_rank has the rank.
"""

import atexit
import sys
import weakref

import jax
import numpy as np

from . import _core

_prepared: "weakref.WeakKeyDictionary[object, dict]" = weakref.WeakKeyDictionary()  # key: the first communicator
_previous: "weakref.WeakKeyDictionary[object, object]" = weakref.WeakKeyDictionary()  # the lse of its last combine
jax.ffi.register_ffi_target("banyan_combine", _core.jax_target(), platform="cpu")


@atexit.register
def _end():
    """Prints a failure once. JAX's own handlers, which run later, raise it in two tracebacks, even if it was handled."""
    try:
        jax.effects_barrier()
    except Exception as error:
        if str(error) != str(getattr(sys, "last_value", None)):  # JAX has printed that one
            print(f"a compiled function of JAX has failed: {error}", file=sys.stderr)
        tokens = getattr(getattr(jax._src, "dispatch", None), "runtime_tokens", None)
        if hasattr(tokens, "clear"):
            tokens.clear()


def _number(comms, settings):
    """Returns the number by which compiled code identifies communicators and settings. Equal ones have one number."""
    known = _prepared.setdefault(comms[0], {})
    key = (tuple(weakref.ref(comm) for comm in comms[1:]), settings)
    if key not in known:
        known[key] = _core.jax_prepare(list(comms), *settings)
    return known[key]


def combine(
    o,
    lse,
    comm,
    *,
    axis_name=None,
    after=None,
    base="e",
    empty="-inf",
    out_base=None,
    out_empty="-inf",
    scatter="none",
    order="plan",
    wire="f32",
    algorithm=None,
    tag=-1,
):
    """Merges o [tokens, heads, dim] and lse [tokens, heads] over ranks: Communicator.combine() for compiled functions.

    comm: a Communicator. With `axis_name`, the name of an axis that jax.shard_map maps over devices of this process, a
    list of one for each device, in their order along the axis.
    after: an array. The combine runs after it is computed. By default that is the result of the previous combine of this
    communicator in the same function, because all ranks must run combines in one order, and XLA could choose another.
    Pass it between a loop and combines outside of the loop that do not depend on each other.
    tag: an integer from 0 on, which ranks compare. Two combines that pair up although their tags differ are an error.
    scatter: "none", "heads" or "tokens". With axis_name the devices divide them evenly.

    Returns (out, lse). Gradients do not pass.
    """
    if o.ndim != 3 or lse.shape != o.shape[:2]:
        raise ValueError(f"o is [tokens, heads, dim] and lse is [tokens, heads], and not {o.shape} and {lse.shape}")
    for name, array in (("o", o), ("lse", lse)):
        if array.dtype not in (np.float32, np.float16, jax.numpy.bfloat16):
            raise ValueError(f"{name}: {array.dtype}: banyan takes float32, float16 and bfloat16")
    if scatter == "root":
        raise ValueError('scatter: "root" has no result on other ranks, which a compiled function must have')
    comms = (comm,) if axis_name is None else tuple(comm)
    if not all(isinstance(one, _core.Comm) for one in comms):
        raise TypeError(f"comm: it is a banyan.Communicator, or with axis_name a list of them, and not {comm!r}")
    if axis_name is not None and any(one.nranks != len(comms) or one.rank != i for i, one in enumerate(comms)):
        raise ValueError("comm: with axis_name it is a list of the communicators of all ranks, in the order of ranks")
    number = _number(comms, (base, empty, out_base, out_empty, scatter, order, wire, algorithm, tag))
    rows = list(o.shape[:2])
    if scatter in ("heads", "tokens"):
        dim = ("tokens", "heads").index(scatter)
        if axis_name is not None and rows[dim] % len(comms):
            raise ValueError(f"o: {rows[dim]} {scatter}, which {len(comms)} devices of a mapped axis do not divide evenly")
        rows[dim] = _core.split(rows[dim], comms[0].nranks, comms[0].rank)[1]
    given = [o, lse]
    if len(comms) > 1:
        given.append(jax.lax.axis_index(axis_name).astype(jax.numpy.int32))
    if after is None:
        after = _after(comms[0])
    if after is not None:
        given.append(after)
    shapes = (_result(o, (*rows, o.shape[2])), _result(o, tuple(rows), lse.dtype))
    result = tuple(jax.ffi.ffi_call("banyan_combine", shapes, has_side_effect=True)(*given, call=np.int64(number)))
    if not jax.config.jax_check_tracer_leaks:  # that check sees the entry as a leak
        _previous[comms[0]] = result[1]
    return result


def _after(comm):
    """Returns the lse of this communicator's previous combine if the function that is being traced contains it."""
    latest = _previous.get(comm)
    trace = getattr(getattr(jax._src.core, "trace_ctx", None), "trace", None)
    return latest if trace is not None and getattr(latest, "_trace", None) is trace else None


def _result(like, shape, dtype=None):
    """Describes a result that varies over the same axes as `like`."""
    dtype = like.dtype if dtype is None else dtype
    axes = getattr(jax.typeof(like), "vma", None) if hasattr(jax, "typeof") else None
    return jax.ShapeDtypeStruct(shape, dtype, vma=axes) if axes else jax.ShapeDtypeStruct(shape, dtype)
