# SPDX-License-Identifier: Apache-2.0
"""Combines within functions that JAX compiles. Each test has a process of its own, because XLA reads the number of
devices at its start."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

TESTS = os.path.dirname(os.path.abspath(__file__))
DEVICES = 2
START = f"""
import sys
sys.path.insert(0, {TESTS!r})
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from conftest import all_close, close, merged, partials
import banyan
from banyan import jax_ops
SHAPE = (4, 6, 16)
def alone():
    return banyan.Communicator.from_threads(banyan.Threads(1), 0, timeout=60)
"""


def ends(code, *command, **environment):
    """Runs Python with these arguments, which ends with this code, and returns what it said."""
    done = subprocess.run(
        [sys.executable, *command],
        env=dict(os.environ, JAX_PLATFORMS="cpu", **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def passes(program, **environment):
    ends(0, "-c", START + program, **environment)


def test_jit():
    passes("""
with alone() as comm:
    o, lse = partials(0, SHAPE, empty=False)
    @jax.jit
    def step(o, lse):
        out, merged_lse = jax_ops.combine(o * 2, lse, comm, out_base="2")
        return out + 1, merged_lse
    for _ in range(3):
        out, merged_lse = step(o, lse)
        close(out, o * 2 + 1)
        close(merged_lse, lse * np.log2(np.e))
    half, _ = jax.jit(lambda o, lse: jax_ops.combine(o, lse, comm))(jnp.asarray(o, jnp.bfloat16), lse)
    assert half.dtype == jnp.bfloat16
    # The second of two that do not depend on each other takes a result of the first, and so runs after it.
    def two(o, lse):
        first, _ = jax_ops.combine(o, lse, comm)
        second, _ = jax_ops.combine(-o, lse, comm, tag=7)
        return first, second
    for function in (two, jax.checkpoint(two)):
        first, second = jax.jit(function)(o, lse)
        close(first, o)
        close(second, -o)
    equations = [each for each in jax.make_jaxpr(two)(o, lse).eqns if each.primitive.name == "ffi_call"]
    assert equations[0].outvars[1] in equations[1].invars and len(equations[0].invars) == 2
    assert len(jax.make_jaxpr(two)(o, lse).eqns[0].invars) == 2       # a new trace takes nothing of an old one
    batch = jax.jit(jax.vmap(two))(np.stack([o, o * 3]), np.stack([lse, lse + 1]))
    close(batch[0], np.stack([o, o * 3])), close(batch[1], -np.stack([o, o * 3]))
    # A loop of the compiled function.
    def body(carry, _):
        return jax_ops.combine(carry, jnp.asarray(lse), comm)[0] + 1, None
    close(jax.jit(lambda o: jax.lax.scan(body, o, None, length=5)[0])(jnp.asarray(o)), o + 5)
""")


def test_sums():
    passes("""
with alone() as comm:
    o, lse = partials(0, SHAPE, empty=False)
    def layer(o, lse):
        out, merged_lse = jax_ops.combine(o, lse, comm)
        part = jax_ops.allreduce(jnp.asarray(o[0], jnp.bfloat16), comm, scatter="heads", tag=3)
        return jax_ops.allreduce(-out, comm), part, jax_ops.allreduce(lse[0], comm, wire="e4m3")
    total, part, line = jax.jit(layer)(o, lse)
    close(total, -o)
    close(line, lse[0], 0.07)
    assert part.dtype == jnp.bfloat16 and part.shape == SHAPE[1:]
    calls = [each for each in jax.make_jaxpr(layer)(o, lse).eqns if each.primitive.name == "ffi_call"]
    assert [len(each.invars) for each in calls] == [2, 2, 2, 2]            # a sum takes a result of the call before it
    for before, each in zip(calls, calls[1:]):
        assert before.outvars[-1] in each.invars
""")


def test_selections():
    passes("""
with alone() as comm:
    scores = jnp.asarray([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    indices = jnp.asarray([[10, 11, 12], [21, 20, 22]])
    def layer(scores, indices):
        best = jax_ops.select(scores * 2, indices, comm, k=4)
        return best, jax_ops.allreduce(best[0], comm)
    (best, chosen, own, counts), total = jax.jit(layer)(scores, indices)
    close(best, [[6, 4, 2, -jnp.inf], [10, 10, 2, -jnp.inf]])
    close(total, best)
    assert chosen.tolist() == [[11, 12, 10, -1], [20, 21, 22, -1]] and counts.tolist() == [3, 3]
    assert own.tolist() == [[1, 2, 0, -1], [1, 0, 2, -1]]
    assert chosen.dtype == indices.dtype
    calls = [each for each in jax.make_jaxpr(layer)(scores, indices).eqns if each.primitive.name == "ffi_call"]
    assert calls[0].outvars[-1] in calls[1].invars
    for wrong in ((scores, indices[0]), (scores > 0, indices), (scores, scores)):
        try:
            jax_ops.select(*wrong, comm)
        except ValueError:
            continue
        raise AssertionError("not rejected")
""")


def test_rejections_and_errors():
    passes("""
import gc, pytest
comm = alone()
o, lse = (jnp.asarray(array) for array in partials(0, SHAPE, empty=False))
with pytest.raises(ValueError, match="o is"):
    jax_ops.combine(o[0], lse, comm)
with pytest.raises(TypeError, match="x: it is an array, and not a list"):
    jax_ops.allreduce([1.0], comm)
with pytest.raises(ValueError, match="float64|int32"):
    jax_ops.combine(o.astype(jnp.int32), lse, comm)
with pytest.raises(banyan.ArgumentError, match="wire"):
    jax_ops.combine(o, lse, comm, wire="f64")
with pytest.raises(ValueError, match="root"):
    jax_ops.combine(o, lse, comm, scatter="root")
for x, how, text in ((o, {"scatter": "root"}, "root"), (o, {"scatter": "heads"}, "tokens, dim"), (o > 0, {}, "bool")):
    with pytest.raises(ValueError, match=text):
        jax_ops.allreduce(x, comm, **how)
with pytest.raises(ValueError, match="all ranks"):
    jax_ops.combine(o, lse, [comm, comm], axis_name="x")
step = jax.jit(lambda o, lse: jax_ops.combine(o, lse, comm))
with pytest.raises(Exception, match="banyan bad data: rank 0"):
    jax.block_until_ready(step(o, lse * np.nan))
comm.close()
with pytest.raises(Exception, match="closed"):
    jax.block_until_ready(step(o, lse))
with pytest.raises(Exception, match="gradient|differentiat"):
    with alone() as other:
        jax.grad(lambda o: jax_ops.combine(o, lse, other)[0].sum())(o)
""")


AT_EXIT = START + """
comm = alone()
step = jax.jit(lambda o, lse: jax_ops.combine(jnp.sin(o @ o.transpose(0, 2, 1)) @ o, lse, comm))
out = step(jnp.ones((200, 8, 160)), jnp.full((200, 8), jnp.nan))
"""


@pytest.mark.parametrize("end, code", [("", 0), ("out[0].block_until_ready()", 1)])
def test_a_failure_is_printed_once(end, code):
    """Both exit handlers of JAX raise the failure too."""
    assert ends(code, "-c", AT_EXIT + end).count("banyan bad data") == 1


MAPPED = """
from jax.sharding import Mesh, PartitionSpec as P
shard_map = jax.shard_map if hasattr(jax, "shard_map") else __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
group = banyan.Threads(%d)
import threading
comms = [None] * %d
def make(rank):
    comms[rank] = banyan.Communicator.from_threads(group, rank, timeout=60)
makers = [threading.Thread(target=make, args=(rank,)) for rank in range(%d)]
[maker.start() for maker in makers]
[maker.join() for maker in makers]
mesh = Mesh(np.array(jax.devices()), ("x",))
parts = [partials(r, SHAPE) for r in range(%d)]
o, lse = (jnp.asarray(np.stack(arrays)) for arrays in zip(*parts))
want = merged(parts)
def local(o, lse, scatter="none"):
    out, merged_lse = jax_ops.combine(o[0] + 0, lse[0], comms, axis_name="x", scatter=scatter)
    return out[None], merged_lse[None]
for _ in range(20):
    out, merged_lse = jax.jit(shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(o, lse)
    for r in range(len(comms)):
        close(out[r], want[0])
        close(merged_lse[r], want[1])
heads, _ = jax.jit(shard_map(partial(local, scatter="heads"), mesh=mesh, in_specs=P("x"), out_specs=P("x")))(o, lse)
close(np.concatenate(list(heads), 1), want[0])
summed = jax.jit(shard_map(lambda x: jax_ops.allreduce(x[0] + 0, comms, axis_name="x")[None], mesh=mesh, in_specs=P("x"), out_specs=P("x")))(jnp.full((len(comms), 4, 3), 2.0))
assert (summed == 2 * len(comms)).all()
for comm in comms:
    comm.close()
"""


@pytest.mark.parametrize("devices", [2, 3])
def test_mapped_over_devices_of_a_process(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    passes(MAPPED % ((devices,) * 4), XLA_FLAGS=flags)


def test_ranks_as_processes(tmp_path):
    """Processes are spawned, because XLA requires that."""
    program = tmp_path / "ranks.py"
    program.write_text(START + """
def body(comm):
    step = jax.jit(lambda o, lse: jax_ops.combine(o, lse, comm))
    return [np.asarray(array) for array in step(*partials(comm.rank, SHAPE))]

if __name__ == "__main__":
    want = merged([partials(r, SHAPE) for r in range(2)])
    all_close(banyan.run(body, ranks=2, start="spawn", timeout=60), want)
""")
    ends(0, str(program))
