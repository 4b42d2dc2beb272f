# SPDX-License-Identifier: Apache-2.0
"""Describes the machine that check-gpu runs on, and has a process that keeps its devices awake."""
import json
import os
import platform
import select
import shutil
import subprocess
import sys

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


# Runs in a process of its own, because a driver may hang. Functions come from cuGetProcAddress, as in the library.
HOLD = """
import ctypes, json, os, sys
try:
    driver = ctypes.CDLL(os.environ.get("BANYAN_CUDA_LIBRARY") or "libcuda.so.1")
except OSError as error:
    sys.exit(print(error) or 77)
def call(name, version, *arguments):
    found, outcome = ctypes.c_void_p(), ctypes.c_int()
    driver.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(outcome))
    status = ctypes.CFUNCTYPE(ctypes.c_int)(found.value)(*arguments) if found.value else "there is no such function"
    if status:
        sys.exit(print(name.decode(), "fails:", status) or (77 if name in (b"cuInit", b"cuDeviceGetCount") else 1))
def attribute(which, device):
    value = ctypes.c_int()
    call(b"cuDeviceGetAttribute", 2000, ctypes.byref(value), which, device)
    return value.value
call(b"cuInit", 2000, 0)
count, version, context, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(128)
call(b"cuDeviceGetCount", 2000, ctypes.byref(count))
if count.value == 0:
    sys.exit(print("there is no device") or 77)
driver.cuDriverGetVersion(ctypes.byref(version))
call(b"cuDeviceGetName", 2000, name, 128, 0)
shared = attribute(20, 0) == 0  # the compute mode
print(json.dumps({"name": name.value.decode(), "compute": "%d.%d" % (attribute(75, 0), attribute(76, 0)),
                  "cuda": "%d.%d" % (version.value // 1000, version.value % 1000 // 10), "sms": attribute(16, 0)}), flush=True)
for device in range(count.value if shared else 0):
    call(b"cuDevicePrimaryCtxRetain", 7000, ctypes.byref(context), device)
if shared:
    sys.stdin.read()
"""


class Held:
    """A program that keeps a context on each device until this one ends. Otherwise the driver starts again for each test,
    which takes seconds. It prints the first device. It is not used if only one process may have a context."""

    def __init__(self, seconds):
        self.device, self.text, self.status = None, "", None
        self.process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
        line = ""
        if select.select([self.process.stdout], [], [], seconds)[0]:
            line = self.process.stdout.readline()
        try:
            self.device = json.loads(line)
        except ValueError:
            self.release()
            self.text = tail(line) or "the driver says nothing for %d s" % seconds

    def is_held(self):
        return self.process.poll() is None

    def release(self):
        try:
            self.process.stdin.close()
            self.status = self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.status = self.process.wait()
