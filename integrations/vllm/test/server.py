# SPDX-License-Identifier: Apache-2.0
"""Servers on one node, and on two that are network namespaces (tests/hosts/hosts), by the commands of docs/vllm.md."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
HOSTS, SLURM = (os.path.join(TOP, "tests/hosts", name) for name in ("hosts", "slurm"))
START_S = 900

# Asks for a completion until the server is there. It runs on the node of the server.
ASK = """
import json, sys, time, urllib.error, urllib.request
url, body, patience = sys.argv[1], sys.argv[2].encode(), float(sys.argv[3])
end = time.monotonic() + patience
while True:
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        print(json.dumps(json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]["token_ids"]))
        break
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read()}")
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(str(error))
        time.sleep(0.5)
"""


def commands_of_docs(slurm):
    """Returns the commands of docs/vllm.md that start two nodes."""
    with open(os.path.join(TOP, "docs/vllm.md")) as file:
        found = re.findall(rf"^    ({'srun .*' if slurm else ''}banyan-vllm serve .*{'' if slurm else '--node-rank.*?'})$",
                           file.read(), re.M)
    assert len(found) == (1 if slurm else 2), found
    return found


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """Processes of a server, one command for each node, or srun for all of them."""

    def __init__(self, path, nodes=1, extra="", slurm=False):
        self.path, self.nodes, self.port = path, nodes, free_port()
        self.folder = tempfile.TemporaryDirectory()
        self.logs, self.processes = [], []
        self.name = None
        if nodes > 1:
            made = subprocess.run([HOSTS, "up", "--owner", str(os.getpid()), f"{nodes}x1"], capture_output=True, text=True)
            assert made.returncode == 0, made.stdout + made.stderr
            self.name = made.stdout.strip()
            commands = [each.replace("node1", "host0") for each in commands_of_docs(slurm)]
        else:
            commands = ["banyan-vllm serve MODEL --tensor-parallel-size 2 --decode-context-parallel-size 2"]
        if slurm:
            self.start_slurm()
        extra += f" --port {self.port} --dtype float32 --max-model-len 512 --kv-cache-memory-bytes {8 << 20} --enforce-eager"
        for node, command in enumerate(commands):
            words = shlex.split(command.replace("MODEL", path) + " " + extra)
            at = words.index("banyan-vllm")
            words[at] = os.path.join(os.path.dirname(sys.executable), words[at])
            self.start(node, words)

    def start_slurm(self):
        folder = os.path.join(self.folder.name, "slurm")
        made = subprocess.run([SLURM, self.name, "1", folder], capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        os.environ["SLURM_CONF"] = os.path.join(folder, "slurm.conf")

    def start(self, node, words):
        env = {key: value for key, value in os.environ.items()
               if key not in ("VLLM_ENABLE_V1_MULTIPROCESSING", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP")}
        env["BANYAN_SECRET_FILE"] = os.path.join(self.folder.name, "secret")
        log = open(os.path.join(self.folder.name, f"log.{node}"), "w+")
        self.logs.append(log)
        self.processes.append(subprocess.Popen(
            self.on(node) + words, env=env, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def on(self, node):
        return [HOSTS, "exec", self.name, str(node)] if self.name else []

    def ask(self, prompt, new, patience=START_S):
        """Returns the tokens of a completion. Raises AssertionError with the server's log."""
        body = dict(model=self.path, prompt=prompt, max_tokens=new, temperature=0, ignore_eos=True, return_token_ids=True)
        url = f"http://{'127.0.0.1' if self.nodes == 1 else 'host0'}:{self.port}/v1/completions"
        client = subprocess.Popen(self.on(0) + [sys.executable, "-c", ASK, url, json.dumps(body), str(patience)],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while client.poll() is None and self.processes[0].poll() is None:
            time.sleep(0.1)
        if client.poll() is None:
            client.kill()
        said, error = client.communicate()
        assert client.returncode == 0, f"no answer: {error.strip()}\n{self.log()}"
        return json.loads(said)

    def log(self, node=None):
        text = ""
        for number, file in enumerate(self.logs):
            if node in (None, number):
                file.seek(0)
                text += f"---- node {number} ----\n{file.read()}"
        return text

    def workers(self):
        """Returns the processes of the ranks of the only node, by rank."""
        import psutil

        children = psutil.Process(self.processes[0].pid).children(recursive=True)
        named = {word: child.pid for child in children for word in child.cmdline()[:1] if "VLLM::Worker" in word}
        assert len(named) == 2, [child.cmdline() for child in children]
        return [named[name] for name in sorted(named)]

    def kill(self, node):
        """Ends a node as a loss of power does: nothing of it says a word."""
        spaces = subprocess.run(["ip", "netns", "pids", f"banyan-{self.name}-{node}"], capture_output=True, text=True)
        for pid in spaces.stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def wait(self, node, patience):
        """Returns the exit status of a node's command."""
        return self.processes[node].wait(patience)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self.name:
            subprocess.run([HOSTS, "down", self.name], check=False)
        for file in self.logs:
            file.close()
        self.folder.cleanup()
