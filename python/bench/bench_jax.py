# SPDX-License-Identifier: Apache-2.0
"""Times jax_ops.combine over devices of one process, next to a pmax and two psums in turns: bench_jax.py [DEVICES]"""

import os
import sys
import threading
import time

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import banyan  # noqa: E402
from banyan import jax_ops  # noqa: E402

group, comms = banyan.Threads(RANKS), [None] * RANKS


def make(rank):
    comms[rank] = banyan.Communicator.from_threads(group, rank)


def reductions(o, lse):
    top = jax.lax.pmax(lse, "x")
    weight = jnp.exp(lse - top)
    numerator, total = jax.lax.psum(o * weight[..., None], "x"), jax.lax.psum(weight, "x")
    return numerator / total[..., None], top + jnp.log(total)


threads = [threading.Thread(target=make, args=(rank,)) for rank in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
mesh, spec = jax.sharding.Mesh(jax.devices(), ("x",)), jax.sharding.PartitionSpec("x")
where = jax.sharding.NamedSharding(mesh, spec)
o, lse = (jax.device_put(np.ones((RANKS, *shape), np.float32), where) for shape in ((32, 128), (32,)))
calls, times = {"combine": lambda o, lse: jax_ops.combine(o, lse, comms, axis_name="x"), "reductions": reductions}, {}
for name, call in calls.items():
    mapped = jax.shard_map(call, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec), check_vma=False)
    calls[name], times[name] = jax.jit(mapped), []
for _ in range(60):
    for name, call in calls.items():
        begin = time.perf_counter()
        for _ in range(30):
            call(o, lse)[0].block_until_ready()
        times[name].append((time.perf_counter() - begin) / 30)
for name, taken in times.items():
    print(f"{name:<11} {np.median(taken) * 1e6:.0f} us, median of 60 rounds")
