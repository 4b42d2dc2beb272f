# SPDX-License-Identifier: Apache-2.0
"""combine(), allreduce() and select() within functions that JAX compiles, on the CPU.

    jax.jit(lambda o, lse: banyan.jax_ops.combine(o, lse, comm))
    jax.jit(lambda x: banyan.jax_ops.allreduce(x, comm))

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
_previous: "weakref.WeakKeyDictionary[object, object]" = weakref.WeakKeyDictionary()  # a result of its last call
for _name in ("banyan_combine", "banyan_allreduce", "banyan_select"):
    jax.ffi.register_ffi_target(_name, _core.jax_target(_name), platform="cpu")


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


def _number(comms, prepare, settings):
    """Returns the number by which compiled code identifies communicators and settings. Equal ones have one number."""
    known = _prepared.setdefault(comms[0], {})
    key = (tuple(weakref.ref(comm) for comm in comms[1:]), prepare, settings)
    if key not in known:
        known[key] = prepare(list(comms), *settings)
    return known[key]


def _comms(comm, axis_name, scatter):
    """Returns the communicators of a call, and checks them."""
    if scatter == "root":
        raise ValueError('scatter: "root" has no result on other ranks, which a compiled function must have')
    comms = (comm,) if axis_name is None else tuple(comm)
    if not all(isinstance(one, _core.Comm) for one in comms):
        raise TypeError(f"comm: it is a banyan.Communicator, or with axis_name a list of them, and not {comm!r}")
    if axis_name is not None and any(one.nranks != len(comms) or one.rank != i for i, one in enumerate(comms)):
        raise ValueError("comm: with axis_name it is a list of the communicators of all ranks, in the order of ranks")
    return comms


def _part(size, comms, axis_name, name, what):
    """Returns how many of `size` things a rank gets."""
    if axis_name is not None and size % len(comms):
        raise ValueError(f"{name}: {size} {what}, which {len(comms)} devices of a mapped axis do not divide evenly")
    return _core.split(size, comms[0].nranks, comms[0].rank)[1]


def _call(target, given, shapes, comms, axis_name, after, number):
    """Calls a target after the previous call of this communicator, and returns its results."""
    if len(comms) > 1:
        given.append(jax.lax.axis_index(axis_name).astype(jax.numpy.int32))
    if after is None:
        after = _after(comms[0])
    if after is not None:
        given.append(after)
    how = {"has_side_effect": True, "vmap_method": "sequential"}  # all ranks make the calls of a vmap in its order
    result = tuple(jax.ffi.ffi_call(target, shapes, **how)(*given, call=np.int64(number)))
    if not jax.config.jax_check_tracer_leaks:  # that check sees the entry as a leak
        _previous[comms[0]] = result[-1]
    return result


def _check_dtype(name, array):
    if not hasattr(array, "dtype"):
        raise TypeError(f"{name}: it is an array, and not a {type(array).__name__}")
    if array.dtype not in (np.float32, np.float16, jax.numpy.bfloat16):
        raise ValueError(f"{name}: {array.dtype}: banyan takes float32, float16 and bfloat16")


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
    Pass it between a loop, or a jax.vmap, and combines outside of it that do not depend on each other.
    Under jax.vmap, the combines of the batch run one after another.
    tag: an integer from 0 on, which ranks compare. Two combines that pair up although their tags differ are an error.
    scatter: "none", "heads" or "tokens". With axis_name the devices divide them evenly.

    Returns (out, lse). Gradients do not pass.
    """
    _check_dtype("o", o)
    _check_dtype("lse", lse)
    if o.ndim != 3 or lse.shape != o.shape[:2]:
        raise ValueError(f"o is [tokens, heads, dim] and lse is [tokens, heads], and not {o.shape} and {lse.shape}")
    comms = _comms(comm, axis_name, scatter)
    settings = (base, empty, out_base, out_empty, scatter, order, wire, algorithm, tag)
    rows = list(o.shape[:2])
    if scatter in ("heads", "tokens"):
        dim = ("tokens", "heads").index(scatter)
        rows[dim] = _part(rows[dim], comms, axis_name, "o", scatter)
    shapes = (_result(o, (*rows, o.shape[2])), _result(o, tuple(rows), lse.dtype))
    number = _number(comms, _core.jax_prepare, settings)
    return _call("banyan_combine", [o, lse], shapes, comms, axis_name, after, number)


def allreduce(
    x, comm, *, axis_name=None, after=None, scatter="none", order="plan", wire="f32", algorithm=None, tag=-1
):
    """Sums x of all ranks: Communicator.allreduce() for compiled functions, with `axis_name`, `after` and `tag` as in
    combine().

    x: [tokens, dim], or [dim] as one token; more dimensions count as columns. scatter: "none", "tokens" (a range of the
    first dimension) or "heads" (a range of the columns).

    Returns the sums. Gradients do not pass.
    """
    _check_dtype("x", x)
    comms = _comms(comm, axis_name, scatter)
    shape = list(x.shape)
    if scatter == "tokens" and x.ndim < 2 or scatter == "heads" and x.ndim not in (1, 2):
        raise ValueError(f"x: it is [tokens, dim] with this scatter, and not {x.shape}")
    if scatter in ("heads", "tokens"):
        dim = 0 if scatter == "tokens" else -1
        shape[dim] = _part(shape[dim], comms, axis_name, "x", "tokens" if scatter == "tokens" else "columns")
    number = _number(comms, _core.jax_prepare_sum, (scatter, order, wire, algorithm, tag))
    return _call("banyan_allreduce", [x], (_result(x, tuple(shape)),), comms, axis_name, after, number)[0]


def select(scores, indices, comm, *, k=None, axis_name=None, after=None, algorithm=None, tag=-1):
    """Selects the k best keys of all ranks: Communicator.select() for compiled functions, with `axis_name`, `after` and
    `tag` as in combine().

    scores: f32, [keys] or with more dimensions before the keys; indices: int32 or int64, of the same shape, negative for
    no key. k: as many as the offers, unless given.

    Returns (scores, indices, own, own_counts). Gradients do not pass.
    """
    if scores.ndim < 1 or scores.shape != indices.shape:
        raise ValueError(f"scores and indices are of one shape, and not {scores.shape} and {indices.shape}")
    if scores.dtype != np.float32 or indices.dtype not in (np.int32, np.int64):
        raise ValueError(f"scores are float32 and indices int32 or int64, and not {scores.dtype} and {indices.dtype}")
    comms = _comms(comm, axis_name, "none")
    k = scores.shape[-1] if k is None else k
    rows = scores.shape[:-1]
    shapes = (_result(scores, (*rows, k)), _result(indices, (*rows, k)), _result(scores, (*rows, k), np.int32))
    shapes += (_result(scores, rows, np.int32),)
    number = _number(comms, _core.jax_prepare_select, (k, algorithm, tag))
    return _call("banyan_select", [scores, indices], shapes, comms, axis_name, after, number)


def _after(comm):
    """Returns a result of this communicator's previous call if the function that is being traced contains it."""
    latest = _previous.get(comm)
    trace = getattr(getattr(jax._src.core, "trace_ctx", None), "trace", None)
    return latest if trace is not None and getattr(latest, "_trace", None) is trace else None


def _result(like, shape, dtype=None):
    """Describes a result that varies over the same axes as `like`."""
    dtype = like.dtype if dtype is None else dtype
    axes = getattr(jax.typeof(like), "vma", None) if hasattr(jax, "typeof") else None
    return jax.ShapeDtypeStruct(shape, dtype, vma=axes) if axes else jax.ShapeDtypeStruct(shape, dtype)
