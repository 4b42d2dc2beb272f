# SPDX-License-Identifier: Apache-2.0
"""Describes the machine that check-gpu runs on, and has a process that keeps its devices awake."""
import json
import os
import platform
import select
import shutil
import subprocess

from gpu_programs import run, tail

SMI_FIELDS = ("name", "driver_version", "vbios_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm",
              "clocks.max.mem", "clocks_throttle_reasons.active", "persistence_mode", "compute_mode",
              "mig.mode.current", "power.limit", "temperature.gpu")


def ask_smi(fields):
    """A line for each device, or none. nvidia-smi takes seconds where no other program keeps the driver awake."""
    status, out, _ = run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"], 20)
    return [[value.strip() for value in line.split(",")] for line in out.strip().splitlines()] if status == 0 else []


def nvidia_smi():
    """Asks nvidia-smi about each device. An older one, which does not know all fields, is asked field by field."""
    if not shutil.which("nvidia-smi"):
        return []
    lines = ask_smi(SMI_FIELDS)
    if lines and all(len(line) == len(SMI_FIELDS) for line in lines):
        return [dict(zip(SMI_FIELDS, line)) for line in lines]
    devices = []
    for field in SMI_FIELDS:
        for number, line in enumerate(ask_smi([field])):
            while len(devices) <= number:
                devices.append({})
            devices[number][field] = line[0]
    return devices


def banyan_info(tools):
    """The library's own report of what it finds: look there first if something is missing."""
    _, out, err = run([os.path.join(tools, "banyan-info"), "build", "devices", "transports"], 30)
    return (out + err).splitlines()


def machine():
    return {"kernel": platform.release(), "processor": platform.machine(), "cpus": os.cpu_count(),
            "libc": " ".join(platform.libc_ver()), "python": platform.python_version(), "nvidia_smi": nvidia_smi(),
            "mps": bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or os.path.exists("/tmp/nvidia-mps/control")}


class Held:
    """A program that keeps a context on each device until this one ends. Otherwise the driver starts again for each test,
    which takes seconds. It prints the first device. It is not used if only one process may have a context."""

    def __init__(self, program, seconds):
        self.device, self.text, self.status = None, "", None
        self.process = subprocess.Popen([program, "--hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
        line = ""
        if select.select([self.process.stdout], [], [], seconds)[0]:
            line = self.process.stdout.readline()
        try:
            self.device = json.loads(line)
        except ValueError:
            self.release()
            self.text = tail(line) or "%s says nothing for %d s" % (os.path.basename(program), seconds)

    def is_held(self):
        return self.process.poll() is None

    def release(self):
        try:
            self.process.stdin.close()
            self.status = self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.status = self.process.wait()
