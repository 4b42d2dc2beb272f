# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks of a node and between nodes, which are network namespaces (tests/hosts/hosts)."""
import contextlib
import functools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

from frame import BUILD, CPUS, DECODE, PERF, TOP, TOPO, Skipped, Times, cell, json_in, json_of, low, run, table

sys.path.insert(0, os.path.join(TOP, "tests", "hosts"))
import bed  # noqa: E402


def record(options):
    """The time that one round in ten stays below: on a machine that others use, too, most rounds are disturbed."""
    command = [PERF, "combine", "--ranks", 2, "--sizes", "520,16640,133120", "--in-a-row", "--no-check", "--iterations", 20000]
    with tempfile.TemporaryDirectory() as folder:
        modes = {"without": {"BANYAN_FLIGHT": "off"}, "recorder": {}, "and trace": {"BANYAN_TRACE": folder + "/trace"}}
        times = Times()

        def form(mode):
            return {(row["bytes"], mode): row["banyan_us"] for row in json_of(command, modes[mode])["rows"]}

        times.turns(None, {mode: functools.partial(form, mode) for mode in modes}, options.rounds)

    def rows():
        for size in (520, 16640, 133120):
            us = [times(None, (size, mode), low) for mode in modes]
            yield [size, *(cell(value, 3) for value in (*us, us[1] / us[0], us[2] / us[0]))]

    table(options, ["bytes", *(f"{mode}, us" for mode in modes), "recorder / without", "and trace / without"], rows())


EXCHANGE = os.path.join(BUILD, "tests", "bench", "bench_exchange")
EXCHANGE_MOST = 61440  # one active message
MPI_FORMS = ("mpi_allgather_us", "mpi_op_us", "mpi_allreduce3_us")
MPI_TRANSPORTS = {"ob1": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"},
                  "ucx": {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any",
                          "UCX_TLS": "tcp,self"}}
PERFTEST = ["sh", "-c", 'if [ "$RANK" = 0 ]; then exec ucx_perftest "$@" >/dev/null; fi; sleep 0.3; '
            'exec ucx_perftest "$MASTER_ADDR" "$@"', "sh"]


def pinned(command):
    """Each of two ranks on a CPU of its own."""
    return ["sh", "-c", 'case ${OMPI_COMM_WORLD_RANK:-$RANK} in 0) cpu=$1 ;; *) cpu=$2 ;; esac; shift 2; '
            'exec taskset -c "$cpu" "$@"', "sh", CPUS[0], CPUS[min(1, len(CPUS) - 1)], *command]


class Nodes(bed.Bed):
    """Nodes, which are taken away at the end."""

    def __init__(self, layout, *options):
        for program in PERF, DECODE, TOPO:
            if not os.access(program, os.X_OK):
                raise Skipped(f"{program} has not been built")
        try:
            super().__init__(layout, *options)
        except LookupError as why:
            raise Skipped(why) from why
        real_time = subprocess.run(["chrt", "-r", "10", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        self.priority = ["chrt", "-r", "10"] if real_time else []
        for pid in run(["ip", "netns", "pids", f"banyan-{self.name}-switch"]).split() if real_time and options else ():
            subprocess.run(["chrt", "-f", "-p", "20", pid], check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down()

    def all_ranks(self, command, *options):
        return [*self.priority, bed.HOSTS, "run", "--timeout", 120, *options, self.name, "--", *command]

    def perf(self, sizes, *options, mpirun=False, pin=False, env=None, iterations=1000):
        command = [PERF, "combine", "--in-a-row", "--iterations", iterations, "--sizes", ",".join(map(str, sizes)), *options]
        found = json_of(self.all_ranks(pinned(command) if pin else command, *(["--mpirun"] if mpirun else [])), env)
        return {row["bytes"]: row for row in found["rows"]}


def add_both_ways(times, nodes, sizes):
    for line in run(nodes.all_ranks(pinned([EXCHANGE, *sizes]))).splitlines():
        size, _, both = re.match(r"(\d+) bytes: one way ([\d.]+) us, both ways at once ([\d.]+)", line).groups()
        times.add(int(size), "both ways", float(both))


def latency(options):
    sizes, times = (520, 16640), Times()
    with Nodes("2x1") as nodes:
        for _ in range(options.rounds):
            add_both_ways(times, nodes, sizes)
            for size in sizes if shutil.which("ucx_perftest") else ():
                text = run(nodes.all_ranks(pinned([*PERFTEST, "-t", "ucp_am_lat", "-s", size, "-n", 5000])), {"UCX_TLS": "tcp,self"})
                times.add(size, "one way", float(re.search(r"^Final:\s+\d+\s+([\d.]+)", text, re.M).group(1)))
            for size, row in nodes.perf(sizes, pin=True).items():
                times.add(size, "banyan", row["banyan_us"])
            for name, env in MPI_TRANSPORTS.items():
                for size, row in nodes.perf(sizes, "--against", "mpi", mpirun=True, pin=True, env=env).items():
                    times.add(size, name, min(row[form] for form in MPI_FORMS))
                    times.add(size, f"beside {name}", row["banyan_us"])

    def rows():
        for size in sizes:
            ratios = [times.ratio(size, name, f"beside {name}") for name in MPI_TRANSPORTS]
            yield [size, times(size, "banyan"), times(size, "one way"), times.ratio(size, "banyan", "one way"),
                   times(size, "both ways"), times.ratio(size, "banyan", "both ways"), times(size, "ob1"), times(size, "ucx"),
                   min((ratio for ratio in ratios if ratio is not None), default=None)]

    table(options, ["bytes", "banyan, us", "one way", "banyan / that", "both ways", "banyan / those", "ob1", "MPI on UCX", "best of MPI / banyan"], rows())


# Rank by rank: the times of sums in torch, as JSON on the first.
TORCH_SUMS = """
import json, os, re, subprocess, sys, time
import torch, torch.distributed as dist
rank, ranks = (int(os.environ.get("OMPI_COMM_WORLD_" + b) or os.environ[a]) for a, b in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE")))
said = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True).stdout
os.environ["GLOO_SOCKET_IFNAME"] = (re.findall(r"(\\S+)\\s+inet 10[.]77[.]", said) or ["lo"])[0]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=ranks)
forms = {"gloo": dist.all_reduce}
try:
    if sys.argv[2] == "0":
        raise ImportError("it has shared memory alone, and does not yield a core")
    import vllm._C
    ops = torch.ops._C
    name = sys.argv[1].replace("/", "-")[1:]
    handle = ops.init_shm_manager(name, ranks, rank, 1)
    dist.barrier()
    ops.join_shm_manager(handle, name)
    dist.barrier()
    forms["vLLM"] = lambda x: ops.shm_allreduce(handle, x)
except (ImportError, AttributeError):
    pass
try:
    import banyan
    comm = banyan.Communicator.from_torch()
    forms["in Python"] = lambda x: comm.allreduce(x, out=x)
except (ImportError, AttributeError):
    pass
found = {}
for size in map(int, sys.argv[3:]):
    x = torch.zeros(1, size // 4)
    for name, form in forms.items():
        calls = max(5, min(100, (4 << 20) // size))
        for timed in range(2):
            dist.barrier()
            since = time.perf_counter()
            for _ in range(calls):
                form(x)
            spent = torch.tensor([time.perf_counter() - since])
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        found.setdefault(name, {})[size] = 1e6 * spent.item() / calls
if rank == 0:
    print(json.dumps(found))
"""


def sums(options):
    sizes, names = [1 << n for n in range(10, 23, 2)], ("banyan", "in Python", "Open MPI", "vLLM", "gloo", "both ways")

    def measure(times, start, start_mpi, transports, spins, folder):
        for number in range(options.rounds):
            for env in transports:
                perf = [PERF, "allreduce", "--no-check", "--against", "mpi", "--sizes", ",".join(map(str, sizes))]
                for row in json_of([*start_mpi, *perf], env)["rows"]:
                    times.add(row["bytes"], "banyan", row["banyan_us"])
                    times.add(row["bytes"], "Open MPI", row["mpi_allreduce_us"])
            with contextlib.suppress(Skipped):
                said = run([*start, sys.executable, "-c", TORCH_SUMS, f"{folder}/store{number}", int(spins), *sizes])
                for name, row in json_in(said).items():
                    for size, us in row.items():
                        times.add(int(size), name, us)

    def rows():
        real_time = subprocess.run(["chrt", "-r", "10", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        for layout in options.layouts:
            times, ranks = Times(), int(layout[0]) * int(layout[2:])
            with tempfile.TemporaryDirectory() as folder:
                if layout.startswith("1"):
                    here = [*(["chrt", "-r", "10"] if real_time else []), "mpirun", "-n", ranks, "--oversubscribe", "--bind-to",
                            "core" if ranks <= len(CPUS) else "none"]
                    measure(times, here, here, [{}], ranks <= len(CPUS), folder)
                else:
                    with Nodes(layout, *(["--delay", options.delay] if options.delay else [])) as nodes:
                        for _ in range(options.rounds if layout == "2x1" else 0):
                            add_both_ways(times, nodes, [size for size in sizes if size <= EXCHANGE_MOST])
                        yields = {"OMPI_MCA_mpi_yield_when_idle": str(int(ranks > len(CPUS)))}
                        measure(times, nodes.all_ranks([]), nodes.all_ranks([], "--mpirun"),
                                [{**env, **yields} for env in MPI_TRANSPORTS.values()], False, folder)
            for size in sizes:
                least = {name: min(times.found.get((size, name), [math.nan])) for name in names}
                yield [layout, size, *(cell(None if math.isnan(us) else us, 1 if us > 10 else 2) for us in least.values()),
                       *(None if math.isnan(least[name]) else least[name] / least["banyan"] for name in names[2:])]

    table(options, ["nodes x ranks", "bytes", *names, *(f"{name} / banyan" for name in names[2:])], rows())


def levels(options):
    def rows():
        for layout in "2x4", "4x2":
            times, sizes = Times(), (16640, 133120)
            with Nodes(layout, "--delay", "0.1ms", "--rate", "1gbit") as nodes:
                for _ in range(options.rounds):
                    for name in names:
                        for size, row in nodes.perf(sizes, "--algorithm", name, iterations=200).items():
                            times.add(size, name, row["banyan_us"])
                            times.add(size, name + " sends", row["bytes_between_nodes_per_rank"])
            for size in sizes:
                yield [layout, size, *(cell(times(size, name + what), 0) for name in names for what in ("", " sends")),
                       times.ratio(size, *reversed(names))]

    names = ("levels", "recursive_doubling")
    table(options, ["nodes x ranks", "bytes", "levels, us", "levels send", "doubling, us", "doubling sends", "ratio"], rows())


NETWORKS = {"10 Gbit/s": ("--delay", "0.02ms", "--rate", "10gbit"), "1 Gbit/s": ("--delay", "0.1ms", "--rate", "1gbit")}
SLICES = (0, 2, 4, 8)  # 0: by predicted cost


def save_costs(nodes, folder):
    """A file of costs with the price of a message between the nodes, which is measured, since nothing there says it."""
    path = os.path.join(folder, "costs.json")
    if subprocess.run([TOPO, "--seconds", "1", "--save-costs", path], stdout=subprocess.DEVNULL,
                      check=False).returncode not in (0, 1):  # 1: a result is slow
        raise Skipped("banyan-topo --save-costs failed")
    rows = nodes.perf((520, 266240), "--algorithm", "oneshot", pin=True, iterations=100)
    small, large = (1e3 * rows[size]["banyan_us"] for size in rows)
    with open(path, encoding="utf-8") as stream:
        costs = json.load(stream)
    costs["links"].append({"class": "tcp", "alpha_ns": small, "beta_ns_per_byte": (large - small) / 266240, "source": "banyan-perf"})
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(costs, stream)
    return path


def overlap(options):
    def rows():
        for network, words in NETWORKS.items():
            with Nodes("2x1", *words) as nodes, tempfile.TemporaryDirectory() as folder:
                costs, times = save_costs(nodes, folder), Times()
                for shape in (16, 512), (16, 2048), (64, 512), (64, 2048):
                    for slices in SLICES * options.rounds:
                        found = json_of(nodes.all_ranks(pinned([DECODE, "--method", "overlap", "--dtype", "f16", "--repeat", 30, "--batch",
                                                            shape[0], "--tokens", shape[1]])),
                                        {"BANYAN_SLICES": str(slices), "BANYAN_COSTS": costs})
                        one, several = found["results"]
                        times.add(shape, "one", one["latency_us"]["p50"])
                        times.add(shape, slices, one["latency_us"]["p50"] / several["latency_us"]["p50"])
                        times.add(shape, f"chosen {slices}", several["slices"])
                    yield [network, *shape, cell(times(shape, "one"), 0), *(times(shape, n) for n in SLICES[1:]),
                           cell(times(shape, "chosen 0"), 0), times(shape, 0)]

    table(options, ["network", "batch", "keys", "one piece, us", "2", "4", "8", "chosen", "ratio"], rows())


# Milliseconds of prompts over keys of the ranks, which own blocks in turn, and by which algorithm.
PASSES = """
import json, time
import banyan, numpy as np
comm = banyan.Communicator.from_env()
heads, kv_heads, dim = 32, 8, 128
rule, found = banyan.Ownership("blocks", comm.nranks, block=16), []
for queries, keys in (2048, 2048), (512, 2048), (512, 8192), (64, 8192):
    draw = np.random.default_rng(comm.rank)
    length = int((rule.of_tokens(np.arange(keys))[0] == comm.rank).sum())
    q, k, v = (draw.standard_normal(shape, np.float32).astype(np.float16)
               for shape in ((queries, heads, dim), (1, kv_heads, length, dim), (1, kv_heads, length, dim)))
    start, block, stride = rule.queries(comm.rank)
    words = {"query_start_loc": np.array([0, queries], np.int32), "query_start": np.array([keys - queries], np.int32),
             "key_start": np.array([start], np.int32), "key_block": block, "key_stride": stride, "keys_max": length}
    for scatter in "none", "tokens":
        op, best = comm.attention_combine_init(q, k, v, scatter=scatter, **words), 1e9
        for _ in range(4):
            comm.barrier()
            since = time.perf_counter()
            op()
            comm.barrier()
            best = min(best, time.perf_counter() - since)
        found.append([queries, keys, scatter, 1e3 * best, op.info()["algorithm"]])
if comm.rank == 0:
    print(json.dumps({"rows": found}))
"""


def passes(options):
    def rows():
        with Nodes("2x1", "--rate", "1gbit", "--delay", "0.1ms") as nodes, tempfile.TemporaryDirectory() as folder:
            costs, times, chosen = save_costs(nodes, folder), Times(), {}
            for way in ("queries", "keys", "auto") * options.rounds:
                said = run(nodes.all_ranks([sys.executable, "-c", PASSES]), {"BANYAN_PASS": way, "BANYAN_COSTS": costs})
                for *key, ms, algorithm in json_in(said)["rows"]:
                    times.add(tuple(key), way, ms)
                    chosen[tuple(key)] = "keys" if algorithm == "pass_kv" else "partials"
            for key, taken in chosen.items():
                yield [f"{key[0]:,} x {key[1]:,}", "all" if key[2] == "none" else key[2],
                       *(cell(times(key, way), 0) for way in ("queries", "keys")), times.ratio(key, "queries", "keys"), taken,
                       cell(times(key, "auto"), 0)]

    table(options, ["queries x keys", "a rank gets", "partials, ms", "keys, ms", "partials / keys", "chosen", "ms"], rows())
