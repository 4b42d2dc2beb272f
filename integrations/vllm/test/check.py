# SPDX-License-Identifier: Apache-2.0
"""Compares vLLM under banyan-vllm with stock vLLM: tokens, logprobs, capacity. See ./run. bench.py measures times.

vLLM is imported once, and each rank is a fork of that process. `--serve` and `--nodes` start servers as users do.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback

import models
import server

os.environ.update(
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    PYTHONWARNINGS="ignore",
)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")

PROMPTS = (300, 37, 129, 5)  # tokens of each
NEW, PAUSE_S = 16, 35
DEFAULTS = dict(max_num_batched_tokens=128, block_size=32, kv_cache_memory_bytes=8 << 20, enable_prefix_caching=False)


def interleave(size, **more):
    return dict(cp_kv_cache_interleave_size=size, **more)


DRAFTS = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3, prompt_lookup_min=1)

# name: model, tensor parallel ranks, DCP ranks, and differences from DEFAULTS. Keys for this script: again repeats the
# prompts; like is the number of ranks of stock vLLM; bound is the bound of logprobs; fails is a part of the error;
# cache is the type of both caches, whose errors are compared; lengths are those of prompts.
CASES = {
    "Llama": ("llama", 2, 2, {}),
    "Llama, interleaved by 16": ("llama", 2, 2, interleave(16)),
    "Llama, cached prefixes": ("llama", 2, 2, interleave(16, again=True, enable_prefix_caching=True)),
    "Llama, preemption": ("llama", 2, 2, interleave(4, num_gpu_blocks_override=9, lengths=(120, 125, 126, 60))),
    "Llama, n-gram drafts": ("llama", 2, 2, interleave(8, speculative_config=DRAFTS)),
    "Llama, four ranks": ("llama", 4, 4, interleave(8)),
    "Llama, tensor 4 by context 2": ("llama-8-2", 4, 2, interleave(16)),
    "Llama, bf16": ("llama", 2, 2, dict(dtype="bfloat16", bound=0.1)),
    "Llama, cache of fp8": ("llama", 2, 2, dict(cache="fp8")),
    "Llama, cache of fp8_e5m2": ("llama", 2, 2, dict(cache="fp8_e5m2")),
    "Llama, no context parallelism": ("llama", 2, 1, {}),
    "Qwen3": ("qwen3", 2, 2, {}),
    "Gemma 2: windows, soft cap": ("gemma2", 2, 2, interleave(16)),
    "Gemma 3: windows": ("gemma3", 2, 2, {}),
    "Mistral: windows alone": ("mistral", 2, 2, interleave(16)),
    "gpt-oss: sinks, windows": ("gpt-oss", 2, 2, interleave(16)),
    "DeepSeek-V2: MLA": ("deepseek-v2", 2, 2, interleave(16, like=2)),
    "DeepSeek-V2: MLA, queries replicated": ("deepseek-v2", 2, 2, dict(dcp_q_replicate=True)),
    "DeepSeek-V2: MLA, n-gram drafts": (
        "deepseek-v2",
        2,
        2,
        dict(speculative_config=DRAFTS, fails="banyan-vllm: speculative decoding with MLA has no decode context"),
    ),
    "Falcon: ALiBi": ("falcon", 2, 2, dict(fails="banyan-vllm: ALiBi has no decode context parallelism")),
    "Llama 4: chunks": ("llama4", 2, 2, dict(fails="banyan-vllm: attention in chunks has no decode context")),
    "Llama, as many KV heads as ranks": (
        "llama-8-2",
        2,
        2,
        dict(fails="greater than the model's total number of KV heads"),
    ),
}
OWN = ("again", "like", "bound", "fails", "cache", "lengths")


def prompts(lengths):
    draw = random.Random(5)
    return [{"prompt_token_ids": [draw.randrange(3, 512) for _ in range(n)]} for n in lengths]


def engine(path, tp, dcp, words):
    from vllm import LLM

    return LLM(
        model=path,
        skip_tokenizer_init=True,
        enforce_eager=True,
        tensor_parallel_size=tp,
        seed=0,
        max_num_seqs=8,
        distributed_executor_backend="external_launcher",
        disable_log_stats=False,
        decode_context_parallel_size=dcp,
        **{"dtype": "float32", "max_model_len": 512, **DEFAULTS, **words},
    )


def greedy(tokens, **words):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **words)


def generate(path, tp, dcp, words, lengths=PROMPTS, again=False):
    """Returns the tokens of one rank, their logprobs, and figures of the cache."""
    llm = engine(path, tp, dcp, words)
    for _ in range(2 if again else 1):
        out = llm.generate(prompts(lengths), greedy(NEW, logprobs=1), use_tqdm=False)
    cache = llm.llm_engine.vllm_config.cache_config
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    return dict(
        tokens=[list(o.outputs[0].token_ids) for o in out],
        logprobs=[[next(iter(each.values())).logprob for each in o.outputs[0].logprobs] for o in out],
        cached=sum(o.num_cached_tokens or 0 for o in out),
        capacity=cache.kv_cache_size_tokens,
        preemptions=counters.get("vllm:num_preemptions"),
        accepted=counters.get("vllm:spec_decode_num_accepted_tokens"),
    )


def ranks(tp, work, plugin):
    """Forks a process for each rank, calls work(rank), and returns what each returned, or the text of its error."""
    port = server.free_port()
    shared = set(os.listdir("/dev/shm"))
    children, files = [], [tempfile.NamedTemporaryFile("r") for _ in range(tp)]
    for rank, result in enumerate(files):
        child = os.fork()
        if child:
            children.append(child)
            continue
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(tp),
            LOCAL_WORLD_SIZE=str(tp),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            VLLM_PLUGINS="banyan" if plugin else "",
        )
        try:
            said = work(rank)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            if rank == 0 and "-v" in sys.argv:
                traceback.print_exc()
        with open(result.name, "w") as out:
            json.dump(said, out)
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    for name in set(os.listdir("/dev/shm")) - shared:
        if "cpushm" in name:  # vLLM's tensor parallelism leaves this file behind
            os.unlink("/dev/shm/" + name)
    return [json.loads(file.read() or '"it ended without a word"') for file in files]


def furthest(one, other, first=None):
    pairs = zip(one["logprobs"], other["logprobs"])
    return max(abs(x - y) for a, b in pairs for x, y in zip(a[:first], b[:first]))


class Comparison:
    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def stock(self, kind, tp=1, lengths=PROMPTS, **words):
        key = json.dumps([kind, tp, lengths, words])
        if key not in self.known:
            path = models.save(self.folder, kind)
            self.known[key] = ranks(tp, lambda _: generate(path, tp, 1, words, lengths), False)[0]
            if isinstance(self.known[key], str):
                raise AssertionError(f"stock vLLM: {self.known[key]}")
        return self.known[key]

    def case(self, name):
        """Returns the columns of the case's line: logprobs, capacity, and a note."""
        kind, tp, dcp, words = CASES[name]
        own = {key: words[key] for key in OWN if key in words}
        words = {key: value for key, value in words.items() if key not in OWN}
        path = models.save(self.folder, kind)
        if "cache" in own:
            words["kv_cache_dtype"] = own["cache"]
        lengths = own.get("lengths", PROMPTS)
        made = ranks(tp, lambda _: generate(path, tp, dcp, words, lengths, own.get("again")), True)
        if "fails" in own:
            assert isinstance(made[0], str) and own["fails"] in made[0], f"not rejected: {made[0]}"
            return "", "", f'rejected: "... {own["fails"]} ..."'
        for one in made:
            assert not isinstance(one, str), one
            assert one["tokens"] == made[0]["tokens"], "ranks have other tokens"
        same = {key: words[key] for key in ("dtype",) if key in words}
        wanted = self.stock(kind, own.get("like", 1), lengths, **same)
        more, alone = made[0]["capacity"], self.stock(kind, 1, lengths, **same)["capacity"]
        more = f"{more:,}" + (f" ({more / alone:.3g} times)" if "num_gpu_blocks_override" not in words else "")
        if "cache" in own:
            # Rounded keys change later tokens, so only each first token is compared with an unrounded cache.
            rounded = self.stock(kind, kv_cache_dtype=own["cache"])
            theirs = furthest(rounded, wanted, 1)
            far = furthest(made[0], wanted, 1)
            more = f"{made[0]['capacity']:,} ({made[0]['capacity'] / rounded['capacity']:.3g} times)"
            assert far <= 1.5 * theirs, f"off by {far:.2g}, and stock vLLM by {theirs:.2g}"
            return f"{far:.2g}", more, f"first tokens, from those of f32; stock vLLM's are off by {theirs:.2g}"
        assert made[0]["tokens"] == wanted["tokens"], f"tokens: {made[0]['tokens']}, stock vLLM's {wanted['tokens']}"
        far = furthest(made[0], wanted)
        assert far <= own.get("bound", 1e-3), f"logprobs differ by {far:.1e}"
        notes = [
            f"{made[0][what]:g} {text}"
            for what, text in (
                ("cached", "tokens from the cache"),
                ("preemptions", "preemptions"),
                ("accepted", "drafts accepted"),
            )
            if made[0][what]
        ]
        for word, what in (("enable_prefix_caching", "cached"), ("num_gpu_blocks_override", "preemptions"),
                           ("speculative_config", "accepted")):
            assert word not in words or made[0][what], f"the case is about {what}, and there were none"
        if "like" in own:
            notes.append(f"against stock vLLM with {own['like']} tensor parallel ranks")
        return f"{far:.1e}", more, ", ".join(notes)


def serve(path, wanted):
    """The server on one node, whose second rank pauses for longer than banyan's own deadline of 30 s."""
    prompt = prompts([300])[0]["prompt_token_ids"]
    with server.Server(path) as served:
        assert served.ask(prompt, NEW) == wanted, "other tokens"
        worker = served.workers()[1]
        os.kill(worker, signal.SIGSTOP)
        threading.Timer(PAUSE_S, os.kill, (worker, signal.SIGCONT)).start()
        began = time.monotonic()
        assert served.ask(prompt, NEW) == wanted, "other tokens after a pause"
        assert time.monotonic() - began >= PAUSE_S, "the rank did not pause"
    return "", "", f"the same tokens, also after one of {PAUSE_S} s in which a rank was paused"


def serve_nodes(path, wanted):
    """The server by the two commands of docs/vllm.md, on network namespaces. Then node 1 is lost."""
    with server.Server(path, 2) as served:
        assert served.ask(prompts([300])[0]["prompt_token_ids"], NEW) == wanted, "other tokens"
        served.kill(1)
        began = time.monotonic()
        status = served.wait(0, 60)
        took = time.monotonic() - began
        assert status == 1, f"node 0 ended with {status}"
        assert re.search("node 1 at 10.77.0.2, ranks 1 to 1, is lost", served.log(0)), served.log(0)
    return "", "", f"the same tokens; when node 1 is killed, node 0 names it and ends with 1 (after {took:.1f} s)"


def serve_slurm(path, wanted):
    """The server by srun, as docs/vllm.md says, with a private Slurm on two network namespaces."""
    with server.Server(path, 2, slurm=True) as served:
        assert served.ask(prompts([300])[0]["prompt_token_ids"], NEW) == wanted, "other tokens"
    return "", "", "srun with Debian's Slurm: the same tokens"


def launchers():
    """The manifest, and what the command reads from the variables of LeaderWorkerSet and Slurm."""
    import yaml
    from banyan_vllm import command

    with open(os.path.join(server.TOP, "integrations/vllm/leaderworkerset.yaml")) as file:
        manifest, _ = yaml.safe_load_all(file)
    group = manifest["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
    assert leader["args"] == worker["args"] and leader["env"] == worker["env"]
    slurm = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-2]"}
    lws = {"LWS_GROUP_SIZE": str(group["size"]), "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "n1"}
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/scontrol", "w") as file:
            file.write("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
        os.chmod(folder + "/scontrol", 0o700)
        for variables in (lws, slurm):
            os.environ.update(variables, PATH=f"{folder}:{os.environ['PATH']}")
            args = argparse.Namespace(nnodes=1, node_rank=0, master_addr="127.0.0.1", headless=False)
            command.read_launcher(args)
            assert vars(args) == dict(nnodes=2, node_rank=1, master_addr="n1", headless=True), args
            for name in variables:
                del os.environ[name]
    return "", "", "the variables of LeaderWorkerSet and Slurm say the same; the manifest is read"


def other_version():
    """Returns the plugin's message about an unsupported vLLM, which it does not change."""
    import banyan_vllm
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    said = []
    banyan_vllm._logger.warning = lambda text, *words: said.append(text % words)
    vllm = sys.modules["vllm"]
    vllm.__version__ = "0.33.0"
    banyan_vllm.register()
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden(), "the plugin has changed another vLLM"
    return said


def prepare():
    """Imports vLLM, which forks then need not."""
    import torch

    torch.set_num_threads(1)
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()  # vLLM inspects each model in a new process


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--models", default="models", help="folder of the models, which are made")
    parse.add_argument("--only", help="cases whose name matches this expression")
    parse.add_argument("--table", help="file for the result as a table")
    parse.add_argument("--serve", action="store_true", help="the server as well")
    parse.add_argument("--nodes", action="store_true", help="two nodes as well, which are network namespaces: as root")
    parse.add_argument("--slurm", action="store_true", help="two nodes by srun as well, with Debian's slurm-wlm: as root")
    parse.add_argument("-v", action="store_true", help="print tracebacks")
    args = parse.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    path = models.save(args.models, "llama")
    prepare()
    comparison, failed = Comparison(args.models), 0
    lines = ["| case | ranks | logprobs differ by | keys that fit | |", "|---|---|---|---|---|"]

    def report(name, count, work):
        nonlocal failed
        began = time.monotonic()
        try:
            columns = work()
        except AssertionError as error:
            columns = "", "", f"FAILED: {error}"
            failed += 1
        lines.append(f"| {name} | {count} | {' | '.join(columns)} |")
        print(lines[-1], f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)

    def other():
        said = ranks(1, lambda _: other_version(), True)[0]
        assert isinstance(said, list) and "changes nothing in vLLM 0.33.0" in said[0], said
        return "", "", "a warning, and nothing is changed"

    for name, (_, tp, dcp, _) in CASES.items():
        if not args.only or re.search(args.only, name):
            count = f"{tp}, {dcp} by context" if dcp not in (1, tp) else tp
            report(name, count, lambda name=name: comparison.case(name))
    if not args.only or re.search(args.only, "vLLM 0.33"):
        report("vLLM 0.33", 1, other)
    if not args.only or re.search(args.only, "launchers"):
        report("launchers", 2, launchers)
    servers = ((args.serve, "Llama, the server", serve), (args.nodes, "Llama, two nodes", serve_nodes),
               (args.slurm, "Llama, Slurm", serve_slurm))
    for wanted, name, work in servers:
        if wanted:
            report(name, 2, lambda work=work: work(path, comparison.stock("llama")["tokens"][0]))
    if len(lines) == 2:
        print(f"--only {args.only}: no case has such a name: {'; '.join(CASES)}")
        return True
    if args.table:
        with open(args.table, "w") as file:
            file.write("\n".join(lines) + "\n")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
