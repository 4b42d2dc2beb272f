# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a token at several context lengths: decode context parallelism by banyan-vllm, and stock vLLM by
tensor parallelism. All engines exist at once, with ranks of one thread, and take short turns. Medians of rounds.

    bench.py --lengths 4096,16384,65536 --first 8192
    bench.py --room 8192                               # prefixes that fit one cache and not the other
    bench.py --nodes 2x1 --nodes 2x2 --delay 0.1ms     # sums and gathers between nodes: gloo and banyan, as root
    bench.py --nodes 1x2 --nodes 1x4                   # within a node: vLLM's shared memory and banyan

A Llama of 2 layers has 8 heads on one KV head of 128 values, in bf16, and one sequence. Attention is left out of long
prompts, where it would take minutes; their tokens are then decoded over random keys. --first measures a prompt, whole.

--room sends 16 requests at once, of 4 prefixes in turns: with that many tokens in common, and 64 of their own. The ranks'
memory holds three of these prefixes if each rank keeps all keys, and six if each keeps its share. A rank that is alone
has the memory of both.
"""

import argparse
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback

# Name: ranks, DCP ranks, and whether it has the plugin.
ENGINES = {"banyan-vllm, DCP 2": (2, 2, True), "stock vLLM, TP 2": (2, 1, False)}
ALONE = {"stock vLLM, 1 rank of 2 threads": (1, 1, False)}
PREFIXES, REQUESTS, OWN_TOKENS = 4, 16, 64
TOKEN_BYTES = 2 * 2 * 128 * 2  # layers, keys and values, their length, and bf16


def send_all(llm, length, new, turn):
    """Sends requests of several prefixes at once. Returns what the table of --room says of them."""
    import check

    def count():
        return {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}.get("vllm:num_preemptions", 0)

    core, before, cached, first = llm.llm_engine, count(), {}, {}
    began = time.perf_counter()
    for number in range(REQUESTS):
        seed = turn * PREFIXES + number % PREFIXES
        tokens = [3 + (seed * 7919 + i * i) % 500 for i in range(length)]
        own = [3 + (seed + number * 31 + i * 17) % 500 for i in range(OWN_TOKENS)]
        core.add_request(f"{turn} {number}", {"prompt_token_ids": tokens + own}, check.greedy(new))
    while core.has_unfinished_requests():
        for output in core.step():
            cached[output.request_id] = output.num_cached_tokens or 0
            if output.outputs and output.outputs[0].token_ids:
                first.setdefault(output.request_id, time.perf_counter() - began)
    took = time.perf_counter() - began
    return dict(
        fit=core.vllm_config.cache_config.kv_cache_size_tokens,
        hits=sum(cached.values()) / (REQUESTS * (length + OWN_TOKENS)),
        preemptions=count() - before,
        rate=REQUESTS / took,
        first=sorted(first.values())[len(first) // 2],
    )


def rank_of(engine, rank, port, cpus, args, reads, writes):
    ranks, dcp, plugin = engine
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), VLLM_PLUGINS="banyan" if plugin else "",
    )
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]} if ranks > 1 else cpus[:2])
    import check
    import torch

    torch.set_num_threads(1 if ranks > 1 else 2)
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
    from vllm.v1.attention.backends import cpu_attn

    name = _CPUSHMDistributed.make_group_name  # the same for all engines of this launcher on a node
    _CPUSHMDistributed.make_group_name = staticmethod(lambda communicator: f"{name(communicator)}-{port}")
    llm = check.engine(
        args.path, ranks, dcp, dict(dtype="bfloat16", max_model_len=max(args.lengths + [args.first]) + 512, block_size=128,
                                    max_num_batched_tokens=2048, enable_prefix_caching=True,
                                    kv_cache_memory_bytes=args.bytes * 2 // ranks))
    core = llm.llm_engine
    impl = cpu_attn.CPUAttentionBackendImpl if not plugin else __import__("banyan_vllm.attention").attention.Impl
    whole = impl.forward
    skip, filled = False, set()

    def forward(self, layer, query, key, value, kv_cache, metadata, output, *more, **words):
        if kv_cache.numel() and kv_cache.data_ptr() not in filled:  # memory that was never written would all be one page
            filled.add(kv_cache.data_ptr())
            kv_cache.normal_()
        if skip and query.shape[0] > 1024:
            return output.zero_()
        return whole(self, layer, query, key, value, kv_cache, metadata, output, *more, **words)

    impl.forward = forward
    number = 0
    prefer(args.nice)
    for line in reads:
        length, new, seed, skip = json.loads(line)
        if args.room:
            writes.write(json.dumps(send_all(llm, length, new, seed)) + "\n")
            writes.flush()
            continue
        number += 1
        prompt = check.prompts([length])[0] if not seed else {"prompt_token_ids": [3 + (seed + i) % 500 for i in range(length)]}
        core.add_request(str(number), prompt, check.greedy(new))
        steps, first = [], None
        began = time.perf_counter()
        while core.has_unfinished_requests():
            before = time.perf_counter()
            outputs = core.step()
            now = time.perf_counter()
            if outputs and outputs[0].outputs and len(outputs[0].outputs[0].token_ids) > 1:
                steps.append(now - before)
            elif outputs:
                first = now - began
        writes.write(json.dumps([sorted(steps)[len(steps) // 2] if steps else 0, first]) + "\n")
        writes.flush()


def clean(before):
    for name in set(os.listdir("/dev/shm")) - before:
        if "cpushm" in name:  # vLLM's tensor parallelism leaves this file behind
            os.unlink("/dev/shm/" + name)


class Engine:
    """The processes of an engine's ranks, which wait for work at pipes."""

    def __init__(self, engine, args):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes, self.children = [], []
        cpus = sorted(os.sched_getaffinity(0))
        for rank in range(engine[0]):
            there, here = os.pipe(), os.pipe()
            self.children.append(os.fork())
            if self.children[-1] == 0:
                try:
                    rank_of(engine, rank, port, cpus, args, os.fdopen(there[0]), os.fdopen(here[1], "w"))
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(there[0]), os.close(here[1])
            self.pipes.append((os.fdopen(there[1], "w"), os.fdopen(here[0])))

    def end(self):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def run(self, *what):
        for write, _ in self.pipes:
            write.write(json.dumps(what) + "\n")
            write.flush()
        said = [read.readline() for _, read in self.pipes]
        if not all(said):
            sys.exit("a rank has ended")
        return json.loads(said[0])


def room(engines, args):
    """Prints medians of rounds, whose prefixes differ. A round of short prefixes comes before them."""
    made = {name: [] for name in engines}
    for turn in range(args.rounds + 1):
        for name, engine in engines.items():
            made[name].append(engine.run(args.room if turn else 512, args.new if turn else 4, turn, False))
    print("| | tokens that fit | from the cache | preemptions | requests/s | first token |\n|---|---|---|---|---|---|")
    for name, each in made.items():
        middle = {key: sorted(one[key] for one in each[1:])[args.rounds // 2] for key in each[0]}
        print(f"| {name} | {middle['fit']:,} | {middle['hits']:.0%} | {middle['preemptions']:g} | {middle['rate']:.2f} "
              f"| {middle['first']:.2f} s |", flush=True)


def prefer(nice):
    """Gives all threads of this rank a priority, on a machine that other programs use too."""
    for thread in os.listdir("/proc/self/task") if nice else ():
        os.setpriority(os.PRIO_PROCESS, int(thread), nice)


class Timed:
    """Adds up the time in sums and gathers of a module."""

    def __init__(self, module):
        self.module, self.spent = module, 0.0

    def __getattr__(self, name):
        function = getattr(self.module, name)

        def timed(*arguments, **words):
            began = time.perf_counter()
            function(*arguments, **words)
            self.spent += time.perf_counter() - began

        return timed


def rank_of_nodes(args):
    """One rank of tensor parallelism between nodes. The engine's sums take turns. Rank 0 prints the line."""
    ranks = int(os.environ["WORLD_SIZE"])
    here = os.environ["LOCAL_WORLD_SIZE"]
    os.environ.update(VLLM_PLUGINS="banyan", VLLM_HOST_IP=f"10.77.0.{int(os.environ['GROUP_RANK']) + 1}")
    import check

    check.prepare()
    llm = check.engine(args.path, ranks, 1, dict(dtype="bfloat16", kv_cache_memory_bytes=64 << 20))
    from vllm.distributed import get_tp_group

    group = get_tp_group().device_communicator
    import torch.distributed

    if int(here) < ranks:
        ways = {"own": Timed(torch.distributed), "banyan": Timed(group.dist_module)}
    else:
        from banyan_vllm.sums import Between

        ways = {"own": Timed(group.dist_module), "banyan": Timed(Between(group))}
    steps = {name: [] for name in ways}
    shares = {name: [] for name in ways}
    prefer(args.nice)
    for turn in range(args.rounds):
        for name, way in ways.items():
            group.dist_module = way
            llm.llm_engine.add_request(f"{turn} {name}", check.prompts([32])[0], check.greedy(args.new))
            while llm.llm_engine.has_unfinished_requests():
                way.spent, before = 0.0, time.perf_counter()
                llm.llm_engine.step()
                took = time.perf_counter() - before
                if turn:
                    steps[name].append(took), shares[name].append(way.spent / took)
    if os.environ["RANK"] == "0":
        middle = {name: sorted(each)[len(each) // 2] * 1e3 for name, each in steps.items()}
        share = {name: sorted(each)[len(each) // 2] for name, each in shares.items()}
        print(f"| {ranks // int(here)} x {here}, {args.delay[0] if args.delay else 'no'} delay | "
              + " | ".join(f"{middle[name]:.1f} ms ({share[name]:.0%})" for name in ways)
              + f" | {middle['own'] / middle['banyan']:.2f} |", flush=True)


def nodes(args):
    """Sums between nodes, which are network namespaces, or within one."""
    hosts = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/hosts/hosts")
    print("| nodes x ranks | gloo, or shared memory on one node (share of the step) | banyan | ratio |\n|---|---|---|---|", flush=True)
    for layout in args.nodes:
        for delay in [[], *([each] for each in args.delay)]:
            command = [hosts, "--timeout", "900", *(["--delay", *delay] if delay else []), layout, "--", sys.executable, __file__,
                       "--rank", "--models", args.models, "--rounds", str(args.rounds), "--new", str(args.new), "--nice", str(args.nice),
                       *(["--delay", *delay] if delay else [])]
            subprocess.run(command, env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "BANYAN_INTERFACE": "eth0"})


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--models", default="models", help="folder of the models, which are made")
    parse.add_argument("--lengths", default="4096,16384,65536", help="tokens of the contexts")
    parse.add_argument("--first", type=int, default=0, help="tokens of a prompt whose first token is timed; 0: none")
    parse.add_argument("--rounds", type=int, default=15)
    parse.add_argument("--new", type=int, default=24, help="tokens of a round")
    parse.add_argument("--room", type=int, default=0, help="tokens of a prefix: requests whose prefixes fit or not instead")
    parse.add_argument("--nodes", action="append", default=[], help="nodes x ranks, such as 2x2: sums between nodes instead")
    parse.add_argument("--delay", action="append", default=[], help="delay of packets between nodes, such as 0.1ms, as well")
    parse.add_argument("--nice", type=int, default=0, help="priority of the ranks while they are timed, such as -15, as root")
    parse.add_argument("--rank", action="store_true", help="run as one rank that tests/hosts/hosts has started")
    args = parse.parse_args()
    args.models = os.path.abspath(args.models)
    args.lengths = [int(each) for each in args.lengths.split(",") if each]
    args.bytes = TOKEN_BYTES * (max(args.lengths + [args.first]) + 8192) * 2
    if args.room:
        args.lengths, args.bytes = [args.room + 512], TOKEN_BYTES * (args.room + 256) * 3
    import check
    import models

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    args.path = models.save(args.models, "llama-16" if args.nodes or args.rank else "llama-long")
    if args.nodes or args.rank:
        return nodes(args) if args.nodes else rank_of_nodes(args)
    check.prepare()
    atexit.register(clean, set(os.listdir("/dev/shm")))
    engines = {name: Engine(engine, args) for name, engine in ({**ENGINES, **ALONE} if args.room else ENGINES).items()}
    for engine in engines.values():
        atexit.register(engine.end)
    if args.room:
        return room(engines, args)
    print("| tokens | " + " | ".join(ENGINES) + " | ratio |\n|---|" + "---|" * (len(ENGINES) + 1), flush=True)

    def report(what, work):
        made = {name: [] for name in ENGINES}
        for turn in range(args.rounds):
            for name, engine in engines.items():
                made[name].append(work(engine, turn))
        middle = [sorted(each)[len(each) // 2] * 1e3 for each in made.values()]
        print(f"| {what} | " + " | ".join(f"{each:.2f} ms" for each in middle) + f" | {middle[1] / middle[0]:.2f} |", flush=True)

    for length in args.lengths:
        for engine in engines.values():
            engine.run(length, 2, 0, True)
        report(f"{length:,}", lambda engine, turn, length=length: engine.run(length, args.new, 0, True)[0])
    if args.first:
        args.rounds = 3
        report(f"first token, {args.first:,}", lambda engine, turn: engine.run(args.first, 1, turn + 1, False)[1])


if __name__ == "__main__":
    main()
