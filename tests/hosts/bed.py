# SPDX-License-Identifier: Apache-2.0
"""Hosts that are up (tests/hosts/hosts), for programs that start ranks on them."""
import os
import subprocess
import tempfile

HOSTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts")


class Bed:
    """Hosts that are up."""

    def __init__(self, layout, *options):
        self.layout = layout
        with tempfile.TemporaryFile("w+") as said:  # a file, because a background process would keep a pipe open
            made = subprocess.run([HOSTS, "up", "--owner", str(os.getpid()), *options, layout], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=said)
            said.seek(0)
            if made.returncode == 77:
                raise LookupError(made.stdout.strip() or "no test bed")
            if made.returncode != 0:
                raise RuntimeError(said.read())
        self.name = made.stdout.strip()
        counts = [int(layout.split("x")[1])] * int(layout.split("x")[0]) if "x" in layout else [int(n) for n in layout.split("+")]
        self.nnodes = len(counts)
        self.node_of = [host for host, count in enumerate(counts) for _ in range(count)]

    def environment(self, rank, secret, **variables):
        """The variables that torchrun would set for a rank."""
        near = [r for r, host in enumerate(self.node_of) if host == self.node_of[rank]]
        made = {k: v for k, v in os.environ.items() if not k.startswith("BANYAN_")}
        return {**made, "RANK": str(rank), "WORLD_SIZE": str(len(self.node_of)), "LOCAL_RANK": str(near.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(near)), "MASTER_ADDR": "10.77.0.1", "BANYAN_SECRET": secret,
                "UCX_LOG_LEVEL": "fatal", **variables}

    def command(self, host, words):
        return [HOSTS, "exec", self.name, str(host), *words]

    def link(self, host, state):
        subprocess.run([HOSTS, "link", self.name, str(host), state], check=True)

    def output(self, host, words):
        return subprocess.run(self.command(host, words), text=True, capture_output=True, check=False).stdout

    def shared(self):
        """Files in the shared memory of hosts."""
        return {f"host {host}: /dev/shm/{name}" for host in range(self.nnodes)
                for name in self.output(host, ["ls", "-A", "/dev/shm"]).splitlines()}

    def down(self):
        subprocess.run([HOSTS, "down", self.name], check=False)
