# SPDX-License-Identifier: Apache-2.0
"""Rules that assign tokens to ranks, and the moves between layouts."""

import copy
import pickle

import numpy as np
import pytest
from conftest import all_close

import banyan

ONES = np.ones((1, 1, 1, 4), np.float32)


RULES = [  # a rule, the owner and place of each of nine tokens, and what rank 1 tells attention
    (dict(kind="ranges", tokens=9, weights=[1, 2]), [(t // 3 > 0, t if t < 3 else t - 3) for t in range(9)], (3, 0, 0)),
    (dict(kind="blocks", block=2), [(t // 2 % 2, t // 4 * 2 + t % 2) for t in range(9)], (2, 2, 4)),
]


@pytest.mark.parametrize("words, owners, queries", RULES)
def test_calls_of_a_rule(words, owners, queries):
    """The laws of rules are tested in C: tests/ownership."""
    rule = banyan.Ownership(nranks=2, **words)
    for again in (rule, copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert type(again) is type(rule) and repr(again) == repr(rule) and again.nranks == 2
        assert [again.of_token(t) for t in range(9)] == owners
    ranks, places = rule.of_tokens([7, 2])
    assert list(zip(ranks.tolist(), places.tolist())) == [owners[7], owners[2]]
    assert all(rule.token(*owner) == t for t, owner in enumerate(owners))
    assert [rule.keys(rank, 9) for rank in range(2)] == [sum(rank == r for r, _ in owners) for rank in range(2)]
    assert rule.queries(1) == queries


@pytest.mark.parametrize("weights", [[2, 0, 1], [3, 2, 2]])
def test_attention_over_keys_that_a_rule_deals(weights):
    """Seven queries at the end of 50 keys, in blocks on three ranks with weights."""
    draw = np.random.default_rng(3)
    q, k = draw.standard_normal((7, 4, 16), np.float32), draw.standard_normal((1, 2, 50, 16), np.float32)
    rule = banyan.Ownership("blocks", 3, block=4, weights=weights)
    loc, first = np.array([0, 7], np.int32), np.array([43], np.int32)
    want = banyan.attention(q, k, k, query_start_loc=loc, query_start=first)

    def body(comm):
        count = rule.keys(comm.rank, 50)
        mine = k[:, :, [rule.token(comm.rank, place) for place in range(count)]]
        start, block, stride = rule.queries(comm.rank)
        return comm.attention_combine(
            q,
            mine,
            mine,
            query_start_loc=loc,
            query_start=first,
            key_start=np.array([start], np.int32),
            key_block=block,
            key_stride=stride,
            keys_max=50,
        )

    all_close(banyan.run(body, 3, start="thread", timeout=60), want)


def test_moves_to_even_shares():
    assert banyan.page_moves([4, 4]) == []
    assert banyan.page_moves([7, 1, 0], weights=[1, 1, 0]) == [(0, 1, 3)]


def test_layouts_have_moves():
    blocks, ranges = banyan.Ownership("blocks", 2, block=2), banyan.Ownership("ranges", 2, tokens=8)
    assert ranges.moves_to(blocks, 8) == [(2, 4, 0, 1), (4, 6, 1, 0)]


def test_moves_of_many_sequences_go_to_all_ranks():
    moved = [0, 0, 0]
    for _ in range(100):
        ((source, to, count),) = banyan.page_moves([0, 0, 1], weights=[1, 1, 0], of_moved=moved)
        assert (source, count) == (2, 1)
        moved[to] += 1
    assert moved == [50, 50, 0]


@pytest.mark.parametrize(
    "text, call",
    [
        ("kind", lambda: banyan.Ownership("turns", 2)),
        ("kind", lambda: banyan.Ownership(None, 2)),
        ("nranks", lambda: banyan.Ownership("blocks", 0)),
        ("nranks", lambda: banyan.Ownership("blocks", 2**40)),
        ("block", lambda: banyan.Ownership("blocks", 2, block=-1)),
        ("block", lambda: banyan.Ownership("blocks", 2, block=1.5)),
        ("tokens", lambda: banyan.Ownership("ranges", 2, tokens=None)),
        ("tokens", lambda: banyan.Ownership("blocks", 2).of_tokens([1.5])),
        ("weights", lambda: banyan.Ownership("blocks", 2, weights=[1])),
        ("weights", lambda: banyan.Ownership("blocks", 2, weights=[1, 2**40])),
        ("weights", lambda: banyan.Ownership("blocks", 2, weights=[1, 0.5])),
        ("weights", lambda: banyan.Ownership("blocks", 2, weights=[0, 0])),
        ("token", lambda: banyan.Ownership("ranges", 2, tokens=5).of_token(5)),
        ("key_pattern", lambda: banyan.attention(ONES[0], ONES, ONES, key_pattern=[])),
        ("rank", lambda: banyan.Ownership("blocks", 2).keys(2, 5)),
        ("position", lambda: banyan.Ownership("ranges", 2, tokens=5).token(0, 4)),
        ("of_moved", lambda: banyan.page_moves([1, 2], of_moved=[1])),
        ("pages", lambda: banyan.page_moves([])),
        ("pages", lambda: banyan.page_moves([-1, 3])),
    ],
)
def test_rejections(text, call):
    with pytest.raises(banyan.ArgumentError, match=f"^{text}: ") as caught:
        call()
    assert caught.value.argument == text
