# SPDX-License-Identifier: Apache-2.0
"""Rules that assign tokens to ranks, and the moves between layouts."""

import copy
import pickle
import random

import numpy as np
import pytest

import banyan

ONES = np.ones((1, 1, 1, 4), np.float32)


def random_rule(kind, draw):
    nranks, length = draw.randint(1, 9), draw.randint(1, 300)
    weights = draw.choice([None, [draw.randint(0, 3) for _ in range(nranks - 1)] + [1]])
    tokens = length if kind == "ranges" else 0
    return banyan.Ownership(kind, nranks, block=draw.randint(0, 7), tokens=tokens, weights=weights), length


@pytest.mark.parametrize("kind", ["ranges", "blocks"])
def test_rules_agree_with_themselves(kind):
    draw = random.Random(kind)
    for _ in range(200):
        rule, length = random_rule(kind, draw)
        owners = [rule.of_token(t) for t in range(length)]
        for again in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
            assert type(again) is type(rule) and repr(again) == repr(rule)
            assert [again.of_token(t) for t in range(length)] == owners
        some = [draw.randrange(length) for _ in range(draw.randint(0, 40))]
        ranks, places = rule.of_tokens(some)
        assert list(zip(ranks.tolist(), places.tolist())) == [owners[t] for t in some]
        for rank in range(rule.nranks):
            mine = [t for t in range(length) if owners[t][0] == rank]
            assert [owners[t][1] for t in mine] == list(range(len(mine)))
            assert [rule.token(rank, place) for place in range(len(mine))] == mine
            assert rule.keys(rank, length) == len(mine)
            start, block, stride = rule.queries(rank)
            block, stride = block or 1 << 20, stride or 1 << 20
            assert [start + i // block * stride + i % block for i in range(len(mine))] == mine
        if kind == "ranges":
            assert [rank for rank, _ in owners] == sorted(rank for rank, _ in owners)


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

    for o, lse in banyan.run(body, 3, start="thread", timeout=60):
        np.testing.assert_allclose(o, want[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-5)


def test_moves_to_even_shares():
    draw = random.Random(8)
    for _ in range(100):
        pages = [draw.randint(0, 50) for _ in range(draw.randint(1, 8))]
        weights = [draw.randint(0, 3) for _ in pages[1:]] + [1]
        after = list(pages)
        for source, to, count in banyan.page_moves(pages, weights=weights):
            assert count > 0 and weights[to] > 0
            after[source] -= count
            after[to] += count
        share = [sum(pages) * weight / sum(weights) for weight in weights]
        assert all(abs(have - want) < 1 for have, want in zip(after, share)), (pages, weights, after)
    assert banyan.page_moves([4, 4]) == []


def test_layouts_have_moves():
    eight = banyan.Ownership("blocks", 8, block=16, weights=[3] * 8)
    ranges = banyan.Ownership("ranges", 3, tokens=5000, block=7)
    owner = [ranges.of_token(token)[0] for token in range(5000)]
    for first, end, source, to in ranges.moves_to(eight, 5000):
        for token in range(first, end):
            assert owner[token] == source != to
            owner[token] = to
    assert owner == [eight.of_token(token)[0] for token in range(5000)]


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
