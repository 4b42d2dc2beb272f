# SPDX-License-Identifier: Apache-2.0
"""Input of every kind that a caller may give: the result is right, or an exception names the argument."""

import array
import ctypes

import numpy as np
import pytest
from conftest import rejected

import banyan

SHAPE = (2, 4, 8)


def arrays(shape=SHAPE):
    draw = np.random.default_rng(7)
    return draw.standard_normal(shape).astype(np.float32), draw.uniform(-4, 4, shape[:2]).astype(np.float32)


class Named(np.ndarray):
    pass


def turned(o, lse):
    return o[::-1, ::-1], lse[::-1, ::-1]


def spread(o, lse):
    return np.repeat(o, 3, 1)[:, ::3], np.asfortranarray(lse)


def mapped(o, lse):
    return o, lse


@pytest.mark.parametrize("form", [turned, spread, mapped])
def test_layouts(lone, form, tmp_path):
    o, lse = arrays()
    if form is mapped:
        file = np.memmap(tmp_path / "o", np.float32, "w+", shape=SHAPE)
        file[:] = o
        given = np.memmap(tmp_path / "o", np.float32, "r", shape=SHAPE), lse.view(Named)
    else:
        given = form(o, lse)
    out, merged = lone.combine(*given)
    assert type(out) is np.ndarray and type(merged) is np.ndarray
    np.testing.assert_allclose(out, given[0], rtol=1e-6)
    np.testing.assert_allclose(merged, given[1], rtol=1e-5, atol=1e-6)
    written = np.full_like(o, 7)
    lone.combine(*given, out=(written[::-1], None))
    np.testing.assert_allclose(written[::-1], given[0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0), (1, 1, 1)])
def test_small_and_empty_shapes(shape, lone):
    o, lse = arrays(shape)
    for given in (o, np.repeat(o, 2, 2)[:, :, ::2]) if o.size == 0 else (o,):  # no element has a stride
        out, merged = lone.combine(given, lse)
        np.testing.assert_allclose(out, o, rtol=1e-6)
        np.testing.assert_allclose(merged, lse, rtol=1e-5, atol=1e-6)


def test_values_that_are_not_finite_pass(lone):
    o, lse = arrays()
    o[0], o[1, 0] = np.nan, np.inf
    out, _ = lone.combine(o, lse)
    assert np.isnan(out[0]).all() and (out[1, 0] == np.inf).all()
    np.testing.assert_allclose(out[1, 1:], o[1, 1:], rtol=1e-6)


def test_objects_say_what_they_are(lone):
    assert repr(banyan.Threads(2)) == "<banyan.Threads, 2 ranks>"
    assert repr(banyan.Ownership("blocks", 3, block=4)) == "<banyan.Ownership, 3 ranks, blocks of 4>"
    rule = banyan.Ownership("ranges", 2, tokens=9, weights=[1, 2])
    assert repr(rule) == "<banyan.Ownership, 2 ranks, ranges of 9 tokens in blocks of 1, with weights>"
    op = lone.barrier_init()
    assert repr(op).startswith("<banyan.Operation, ")
    op.free()
    assert repr(op) == "<banyan.Operation, freed>"
    for each in (lone, op, rule, banyan.Threads(2), banyan.Prune(None)):
        for name in ("tag", "deadline"):  # tag and deadline are set by calls
            with pytest.raises(AttributeError):
                setattr(each, name, 7)


def test_memory_without_strides(lone):
    """ctypes provides no strides, even on request."""
    o, lse = arrays()
    raw = (ctypes.c_float * 8 * 4 * 2).from_buffer(o)
    out = np.empty_like(o)
    lone.combine(raw, memoryview(lse), out=memoryview(out))
    np.testing.assert_allclose(out, o, rtol=1e-6)
    np.testing.assert_allclose(lone.combine(raw, memoryview(lse))[0], o, rtol=1e-6)  # the result is a numpy array
    rejected("o", "1 dimensions", lone.combine, array.array("f", [1.0]), lse)


def test_integers_that_are_arrays(lone):
    rejected("root", "it is an integer", lone.combine, *arrays(), scatter="root", root=np.array([0, 1]))
    for name in ("root", "wire"):  # no line for each row of an array
        rejected(name, "^.*ndarray: it is .*$", lone.combine, *arrays(), **{name: np.zeros((9, 9))})


@pytest.mark.parametrize("dtype", ["i4", "i8", "?", "c8", "f8", "g", "O", "U3", "M8[s]", [("a", "f4")]])
def test_other_dtypes(lone, dtype):
    o, lse = arrays()
    rejected("o", "banyan takes", lone.combine, np.zeros(SHAPE, dtype), lse)
    rejected("lse", "banyan takes", lone.combine, o, np.zeros(SHAPE[:2], dtype))
    rejected("out", "banyan takes", lone.combine, o, lse, out=(np.zeros(SHAPE, dtype), None))


def test_numbers_that_travel_as_they_are(lone):
    given = [np.frombuffer(bytes(range(64)), np.uint8).view(code) for code in "bhilqBHILQefdgFDG"]
    given += [np.array([True, False]), memoryview(b"abc"), b"abc", bytearray(b"abc")]
    for mine in given:
        dtype = getattr(mine, "dtype", np.uint8)
        for got in (lone.allgather(mine)[0], lone.shift(mine)):
            assert got.dtype == dtype and got.tobytes() == bytes(mine), dtype
    rejected("mine", "banyan takes", lone.allgather, np.array(["2020"], "M8[Y]"))


def test_arrays_that_are_none(lone):
    o, lse = arrays()
    rejected("o", "0 dimensions", lone.combine, np.float32(1), lse)
    rejected("o", "a float is not an array", lone.combine, 1.0, lse)
    rejected("o", "not contiguous", lone.combine, o[:, :, ::-1], lse)
    rejected("o", "not contiguous", lone.combine, np.asfortranarray(o), lse)
    rejected("o", "masked", lone.combine, np.ma.masked_array(o, mask=o > 0), lse)
    rejected("o", "six dimensions", lone.combine, o.reshape((1,) * 4 + SHAPE), lse)
    odd = np.zeros(o.nbytes + 4, np.uint8)[1 : 1 + o.nbytes].view(np.float32).reshape(SHAPE)
    rejected("o", "aligned", lone.combine, odd, lse)
    rejected("out", "aligned", lone.combine, o, lse, out=(odd, None))
    rejected("out", "overlap", lone.combine, o, lse, out=(np.lib.stride_tricks.as_strided(o, SHAPE, (0, 0, 4)), None))
    rejected("mine", "it is None", lone.allgather, None)


def test_words(lone):
    o, lse = arrays()
    rejected("scatter", "None: it is one of", lone.combine, o, lse, scatter=None)
    rejected("root", r"must be 0\.\.0", lone.combine, o, lse, scatter="root", root=5)
    rejected("root", "0.5: it is an integer", lone.combine, o, lse, scatter="root", root=0.5)
    rejected("empty", "does not fit", lone.combine, o, lse, empty=-(10**400))
    rejected("empty", "not a bool", lone.combine, o, lse, empty=True)
    rejected("tokens", "not a bool", lone.combine, o, lse, tokens=True)
    with pytest.raises(TypeError, match="fn: it is a function, and not a str"):
        banyan.run("body", ranks=2)
    rejected("empty", "UTF-8", lone.combine, o, lse, empty="\ud800")
    rejected("values_scale", "does not fit", lone.combine, o, lse, values_scale=10**400)
    rejected("values_scale", "E4M3", lone.combine, o, lse, values_scale=2.0)
    rejected("tokens", "0 to 2", lone.combine, o, lse, tokens=3)
    rejected("seq_lens", "negative", lone.combine, o, lse, seq_lens=np.array([1, -1], np.int32))
    rejected("distance", "32 bits", lone.shift, o, distance=2**40)
    rejected("root", r"must be 0\.\.0", lone.broadcast, o, root=3)
    rejected("counts", "list of", lone.allgather, o, counts=4)
    rejected("algorithm", "not a str", lone.combine, o, lse, algorithm=3)
    np.testing.assert_allclose(lone.combine(o, lse, tokens=np.int64(1))[0][0], o[0], rtol=1e-6)
    assert lone.combine(o, lse, scatter="root", root=np.int64(0))[0].shape == SHAPE


def test_words_without_a_communicator():
    rejected("index", "parts - 1", banyan.split, 4, 2, 5)
    rejected("count", "at least 0", banyan.split, -1, 2, 0)
    rejected("weights", "negative", banyan.Ownership, "blocks", 3, weights=[1, -1, 1])
    rejected("pages", "must be 0", banyan.page_moves, [-1, 2], weights=[1, 1])
    rejected("timeout", "seconds", banyan.Communicator.from_threads, banyan.Threads(1), 0, timeout=float("nan"))
    with pytest.raises(ValueError, match="start: 'x'"):
        banyan.run(print, start="x")


def test_attention_within_its_tables():
    """Tables are read only within their bounds, whatever the starts of sequences are."""
    draw = np.random.default_rng(5)
    q = draw.standard_normal((2, 8, 64), np.float32)
    k, v = draw.standard_normal((2, 5, 2, 4, 64), np.float32)

    def words(**changed):
        some = dict(page_table=[0, 1, 2], page_indptr=[0, 2, 3], last_page_len=[4, 1])
        some.update(changed)
        return {name: np.array(numbers, np.int32) for name, numbers in some.items()}

    banyan.attention(q, k, v, **words())
    rejected("page_indptr", "3 pages", banyan.attention, q, k, v, **words(page_indptr=[0, 2, 9]))
    rejected("page_indptr", "decrease", banyan.attention, q, k, v, **words(page_indptr=[0, 2, 1]))
    rejected("page_table", "must be 0 to 4", banyan.attention, q, k, v, **words(page_table=[0, 77, 2]))
    rejected("last_page_len", "page_keys", banyan.attention, q, k, v, **words(last_page_len=[0, 1]))
    starts = np.array([1, 1, 2], np.int32)
    rejected("query_start_loc", "begins with 0", banyan.attention, q, k[:2], v[:2], query_start_loc=starts)
    rejected("q", "heads is 7", banyan.attention, q[:, :7], k[:2], v[:2])


def test_columns_and_broadcasts(lone):
    """Lengths and masks are read in order, so a column or one number for all is rejected, and its copy is read."""
    o, lse = arrays()
    q, k, v = o, *np.random.default_rng(5).standard_normal((2, 2, 2, 9, 8)).astype(np.float32)
    column = np.array([[9, 3, 1], [4, 2, 1]], np.int32)[:, 1]
    rejected("seq_lens", "contiguous", banyan.attention, q, k, v, seq_lens=column)
    whole, _ = banyan.attention(q, k, v, seq_lens=column.copy())
    np.testing.assert_allclose(whole[0], banyan.attention(q[:1], k[:1, :, :3], v[:1, :, :3])[0][0], rtol=1e-6)
    masks = np.array([[1, 0], [3, 0]], np.uint64)[:, 0]
    tree = dict(query_start=np.array([5, 3], np.int32), seq_lens=np.array([6, 5], np.int32))
    rejected("tree_mask", "contiguous", banyan.attention, q, k, v, tree_mask=masks, **tree)
    banyan.attention(q, k, v, tree_mask=masks.copy(), **tree)
    for mask in (np.ones((2, 3), bool)[:, 0], np.broadcast_to(np.True_, (2,))):
        rejected("token_mask", "contiguous", lone.combine, o, lse, token_mask=mask)
        np.testing.assert_allclose(lone.combine(o, lse, token_mask=mask.copy())[0], o, rtol=1e-6)


def test_operations_in_order(lone):
    op = lone.combine_init(*arrays())
    with pytest.raises(banyan.StateError, match="not been started"):
        op.wait()
    op.start()
    while not op.test():
        pass
    assert op.wait() is op.outputs
    op.free()
    op.free()
    with pytest.raises(banyan.StateError, match="freed"):
        op()


def test_tensors_of_other_kinds(lone):
    torch = pytest.importorskip("torch")
    o, lse = (torch.from_numpy(given) for given in arrays())

    class Named(torch.Tensor):
        pass

    assert torch.equal(lone.combine(o.as_subclass(Named), lse)[0].as_subclass(torch.Tensor), lone.combine(o, lse)[0])
    rejected("o", "gradient", lone.combine, o.clone().as_subclass(Named).requires_grad_(), lse)
    rejected("lse", "gradient", lone.combine, o, lse.clone().requires_grad_())
    rejected("out", "gradient", lone.combine, o, lse, out=(o.clone().requires_grad_(), None))
    rejected("o", "complex64", lone.combine, o.to(torch.complex64), lse)
    rejected("o", r"does not give.*to_dense\(\)", lone.combine, o.to_sparse(), lse)
    rejected("o", r"does not give its memory \(.*meta", lone.combine, o.to("meta"), lse)
    negated = torch.complex(lse, lse).conj().imag
    rejected("lse", "negation", lone.combine, o, negated)
    rejected("o", "negation", lone.combine, negated[..., None], lse)  # its stride is 1
    rejected("mine", "conjugation", lone.allgather, torch.complex(lse, lse).conj())
    np.testing.assert_allclose(lone.combine(o, torch.complex(lse, lse).imag)[1], lse, rtol=1e-5, atol=1e-6)
    parameter = torch.nn.Parameter(o, requires_grad=False)
    assert torch.equal(lone.combine(parameter, lse)[0], lone.combine(o, lse)[0])


def test_arrays_of_jax_without_memory(lone):
    jax = pytest.importorskip("jax")
    o, lse = (jax.numpy.asarray(given) for given in arrays())
    with pytest.raises(banyan.ArgumentError, match="o: .*jax_ops"):
        jax.jit(lambda o, lse: lone.combine(o, lse)[0])(o, lse)
    gone = o + 1
    gone.delete()
    rejected("o", "freed", lone.combine, gone, lse)
    rejected("o", "complex64", lone.combine, o.astype(jax.numpy.complex64), lse)
