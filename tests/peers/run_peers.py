#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tests of other projects with the calls of banyan.compat in place of theirs, and prints passed and failed.

    tests/peers/run_peers.py lucidrains FOLDER             # assert_tree_attn.py of a checkout of ring-attention-pytorch
    tests/peers/run_peers.py flashinfer FOLDER             # tests of merges in a checkout of flashinfer, by pytest
    tests/peers/run_peers.py flashinfer FOLDER FILE... -- -k merge_state

The user provides the checkouts; nothing of them is in this tree. Test files run unmodified. Without a GPU, tensors that
FlashInfer's tests request on "cuda" are made in host memory. Tests that call other parts of FlashInfer fail, or -k
excludes them.
"""

import argparse
import contextlib
import pathlib
import runpy
import subprocess
import sys
import types

SETTINGS = ["--world-size 8", "--world-size 3 --seq-len 64", "--world-size 4 --seq-len 3", "--world-size 2 --batch 3"]
HERE = pathlib.Path(__file__).resolve()
# Tests of merges: of FlashInfer itself, and of its port to AMD's devices.
MERGES = ("merge_state", "merge_states", "merge_state_in_place")
FLASHINFER = [f"tests/trace/test_{name}_reference_correctness.py" for name in MERGES]
FLASHINFER += ["tests/rocm_tests/test_cascade_hip.py"]


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


def install_lucidrains():
    """A module ring_attention_pytorch that has one function."""
    from banyan import compat

    module("ring_attention_pytorch", tree_attn_decode=compat.tree_attn_decode)


def install_flashinfer(folder):
    """A module flashinfer that has three functions. Its references, which are plain Python, come from the checkout."""
    from banyan import compat

    calls = {name: getattr(compat, name) for name in MERGES}
    package = module("flashinfer", **calls)
    package.__path__ = [str(folder / "flashinfer")]
    sys.path.insert(0, str(folder))
    package.cascade = module("flashinfer.cascade", **calls)
    package.utils = module("flashinfer.utils", get_compute_capability=lambda device: (0, 0))
    import torch

    for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"):
        if not hasattr(torch, name):  # torch 1.13: these are names in a table of the checkout, and are not used
            setattr(torch, name, name)
    if not torch.cuda.is_available():
        to_host(torch)


def to_host(torch):
    """Makes tensors in host memory that are requested on "cuda"."""

    def moved(device):
        return "cpu" if str(device).startswith("cuda") else device

    def wrap(function):
        def made(*arguments, **named):
            if "device" in named:
                named["device"] = moved(named["device"])
            return function(*(moved(a) if isinstance(a, (str, torch.device)) else a for a in arguments), **named)

        return made

    for name in ("randn", "rand", "zeros", "ones", "empty", "full", "tensor", "randint", "arange"):
        setattr(torch, name, wrap(getattr(torch, name)))

    class Generator(torch.Generator):
        """A class, because torch's annotations need one."""

        def __new__(cls, device="cpu"):
            return super().__new__(cls, device=moved(device))

    torch.Generator = Generator
    torch.Tensor.to = wrap(torch.Tensor.to)
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.synchronize = lambda *_, **__: None


def run_lucidrains(folder, files, more):
    """Runs each setting as a separate program, because torch starts its ranks."""
    failed = 0
    settings = more or SETTINGS
    for setting in settings:
        for file in files or ["assert_tree_attn.py"]:
            command = [sys.executable, str(HERE), "--child", "lucidrains", str(folder / file), *setting.split()]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
            said = done.stdout.strip().splitlines()
            print(f"{'passed' if done.returncode == 0 else 'FAILED'}: {file} {setting}: {said[-1] if said else ''}")
            if done.returncode:
                print("\n".join("  | " + line for line in said[-15:]))
            failed += done.returncode != 0
    print(f"lucidrains: {len(settings) - failed} passed, {failed} failed")
    return failed


def run_flashinfer(folder, files, more):
    if not files:
        files, more = [file for file in FLASHINFER if (folder / file).exists()], more or ["-k", "merge_state"]
    if not files:
        sys.exit(f"{folder} has none of {', '.join(FLASHINFER)}: name the test files")
    command = [sys.executable, str(HERE), "--child", "flashinfer", str(folder)]
    done = subprocess.run([*command, *(str(folder / file) for file in files), *more])
    return done.returncode


def child(peer, arguments):
    if peer == "lucidrains":
        install_lucidrains()
        if not importable("click"):
            sys.exit("the test needs click: pip install click")
        sys.argv = arguments
        # The ranks are started anew, and import the test as their main module, by the name that it has here.
        spawned(arguments[0])
        return
    folder = pathlib.Path(arguments[0])
    install_flashinfer(folder)
    import pytest

    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(folder), *arguments[1:]]))


def importable(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def spawned(path):
    """Runs a test whose ranks come from torch.multiprocessing: by fork, so that they have this process's module."""
    import torch.multiprocessing as multiprocessing

    multiprocessing.spawn = lambda fn, args=(), nprocs=1, join=True, **_: multiprocessing.start_processes(
        fn, args=args, nprocs=nprocs, join=join, start_method="fork"
    )
    with contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")


def main():
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
        return 0
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("peer", choices=("lucidrains", "flashinfer"))
    parser.add_argument("folder", type=pathlib.Path, help="a checkout")
    parser.add_argument("files", nargs="*", help="test files in it")
    options = parser.parse_args(own)
    run = {"lucidrains": run_lucidrains, "flashinfer": run_flashinfer}[options.peer]
    return 1 if run(options.folder.resolve(), options.files, more) else 0


if __name__ == "__main__":
    sys.exit(main())
