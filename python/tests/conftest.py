# SPDX-License-Identifier: Apache-2.0
"""What tests share: references in double precision, and partials of random keys."""

import os

import numpy as np
import pytest

for name in [name for name in os.environ if name.startswith("BANYAN_")]:
    del os.environ[name]
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)


def partials(rank, shape, dtype=np.float32, empty=True):
    """Random normalised rows and their lse, the same on each call. A fifth of the rows have no keys on a rank."""
    draw = np.random.default_rng(rank)
    o = draw.standard_normal(shape).astype(dtype)
    lse = draw.uniform(-4, 4, shape[:2]).astype(np.float32)
    if empty:
        lse[draw.uniform(size=shape[:2]) < 0.2] = -np.inf
    return o, lse


def merged(parts):
    """The merge of [(o, lse)] by the definition, in double precision."""
    o = np.stack([part[0].astype(np.float64) for part in parts])
    lse = np.stack([part[1].astype(np.float64) for part in parts])
    top = lse.max(0)
    finite = np.where(np.isinf(top), 0, top)
    weight = np.exp(lse - finite)
    total = weight.sum(0)
    rows = np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        return (weight[..., None] * o).sum(0) / rows[..., None], np.where(total > 0, finite + np.log(total), -np.inf)


def all_close(results, want, tolerance=1e-5):
    """Each result (o, lse) is close to the one that is wanted."""
    for result in results:
        assert len(result) == len(want)
        for got, expected in zip(result, want):
            close(got, expected, tolerance)


def close(got, want, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance)


def rejected(argument, text, call, *given, **settings):
    """The call raises ArgumentError, which names the argument at its start, and says `text`."""
    import banyan

    with pytest.raises(banyan.ArgumentError, match=text) as caught:
        call(*given, **settings)
    assert caught.value.argument == argument and str(caught.value).startswith(argument + ": ")


def run(body, ranks=2, start="thread"):
    import banyan

    return banyan.run(body, ranks=ranks, start=start, timeout=60)


@pytest.fixture
def lone():
    """A communicator of one rank."""
    import banyan

    with banyan.Communicator.from_threads(banyan.Threads(1), 0) as comm:
        yield comm
