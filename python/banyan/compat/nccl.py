# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's proposal, nccl-extensions#10, which has no release yet."""

from ._merge import EMPTY, communicator

_SCATTER = {"TOKEN": "tokens", "HEAD": "heads", "NONE": "none"}


def nccl_cp_combine(
    handle, partial_out, partial_lse, combined_out, combined_lse=None, *, lse_base="e", scatter="NONE", stream=None
):
    """ncclCpCombine: handle is a group; scatter is TOKEN, HEAD or NONE; combined_lse may be None."""
    comm = communicator(handle)
    if str(scatter).upper() not in _SCATTER or str(lse_base).lower() not in ("e", "2"):
        comm._reject("scatter", f"it is TOKEN, HEAD or NONE, and lse_base e or 2, not {scatter!r} and {lse_base!r}")
    comm.combine(
        partial_out,
        partial_lse,
        base=str(lse_base).lower(),
        empty=EMPTY,
        scatter=_SCATTER[str(scatter).upper()],
        out=(combined_out, combined_lse),
        stream=stream,
    )


def ncclCpCombine(handle, partial_out, partial_lse, combined_out, combined_lse, config=None, stream=None):
    """nccl_cp_combine() with the arguments in the order of the C call. config: a dict with lse_base and scatter."""
    nccl_cp_combine(handle, partial_out, partial_lse, combined_out, combined_lse, **(config or {}), stream=stream)
