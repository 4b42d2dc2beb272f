# SPDX-License-Identifier: Apache-2.0
"""Arrays of other frameworks, and ranks that other launchers have started."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest
from conftest import partials, rejected

import banyan

SHAPE = (2, 4, 16)


def reserved_port():
    """A socket that is bound and does not listen, so that rank 0 can listen at its port and no other program can."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch(lone, name):
    torch = pytest.importorskip("torch")
    o, lse = partials(0, SHAPE)
    tensor = torch.from_numpy(o).to(getattr(torch, name))
    out, stats = lone.combine(tensor, torch.from_numpy(lse))
    assert isinstance(out, torch.Tensor) and out.dtype == tensor.dtype and stats.dtype == torch.float32
    keys = torch.from_numpy(~np.isinf(lse))
    assert torch.allclose(out[keys].float(), tensor[keys].float(), rtol=1e-6)
    kept = torch.empty_like(tensor)
    assert lone.combine(tensor, torch.from_numpy(lse), out=(kept, None))[0] is kept
    assert torch.equal(kept, out)
    # Heads before tokens, as a view.
    turned = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(lone.combine(turned, torch.from_numpy(lse))[0], out)


def test_parameters_without_gradients(lone):
    torch = pytest.importorskip("torch")
    o, out = torch.nn.Parameter(torch.randn(SHAPE)), torch.nn.Parameter(torch.zeros(SHAPE))
    with torch.no_grad():
        got, _ = lone.combine(o, torch.zeros(SHAPE[:2]), out=out)
        op = lone.combine_init(o, torch.zeros(SHAPE[:2]))
    assert got is out and torch.equal(got, o) and torch.equal(op()[0], o)
    assert not op.outputs[0].requires_grad


def test_torch_rejections(lone):
    torch = pytest.importorskip("torch")
    o, lse = torch.zeros(SHAPE), torch.zeros(SHAPE[:2])
    rejected("o", "float64", lone.combine, o.double(), lse)
    wrapper = type("Wrapper", (torch.Tensor,), {"__torch_dispatch__": None})
    rejected("o", "wraps another", lone.combine, torch.Tensor._make_wrapper_subclass(wrapper, SHAPE), lse)
    freed = torch.zeros(SHAPE)
    freed.untyped_storage().resize_(0) if hasattr(freed, "untyped_storage") else freed.storage().resize_(0)
    rejected("o", "memory", lone.combine, freed, lse)


def test_jax(lone):
    jax = pytest.importorskip("jax")
    o, lse = partials(0, SHAPE, empty=False)
    for dtype in (jax.numpy.float32, jax.numpy.bfloat16):
        given = jax.numpy.asarray(o).astype(dtype)
        out, stats = lone.combine(given, jax.numpy.asarray(lse))
        assert isinstance(out, jax.Array) and out.dtype == dtype
        np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(given, np.float32), rtol=1e-6)
    rejected("out", "JAX", lone.combine, given, lse, out=(given, None))


class Exporter:
    """An array with DLPack only. It counts how often its memory is released."""

    def __init__(self, array):
        self.array = array
        self.given = 0

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is None
        self.given += 1
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_any_exporter(lone):
    o, lse = partials(0, SHAPE, empty=False)
    out = np.empty_like(o)
    source = Exporter(o)
    references = sys.getrefcount(o)
    lone.combine(source, Exporter(lse), out=(out, None))
    np.testing.assert_allclose(out, o, rtol=1e-6)
    assert source.given == 1 and sys.getrefcount(o) == references
    rejected("o", "give out=", lone.combine, source, Exporter(lse))


class Elsewhere(Exporter):
    def __dlpack_device__(self):
        return (2, 3)

    def __dlpack__(self, *, stream=None, max_version=None):
        raise BufferError("it was freed")


def test_an_exporter_that_rejects(lone):
    o, lse = partials(0, SHAPE)
    with pytest.raises(banyan.ArgumentError, match="o: .*freed") as caught:
        lone.combine(Elsewhere(o), lse)
    assert isinstance(caught.value.__cause__, BufferError)
    for pair in (7, (), ("host", 0)):
        wrong = type("Wrong", (Exporter,), {"__dlpack_device__": lambda self, pair=pair: pair})
        rejected("o", "its framework does not give its memory", lone.combine, wrong(o), lse)


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
Give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Managed)))
Delete = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))


class Exchange(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("give", Give),
        ("to_object", ctypes.c_void_p),
        ("borrow", Borrow),
        ("stream", ctypes.c_void_p),
    ]


class Exchanged:
    """An array whose type has only DLPack's exchange API in C."""

    alive = []
    calls = []

    def __init__(self, array):
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))

    def tensor(self):
        # The address is split, so the reader must add byte_offset.
        return Tensor(self.array.ctypes.data - 64, 1, 0, self.array.ndim, 2, 32, 1, self.shape, self.strides, 64)


@Borrow
def borrow(owner, out):
    Exchanged.calls.append("borrow")
    out[0] = owner.tensor()
    return 0


@Delete
def delete(managed):
    Exchanged.alive.remove(ctypes.addressof(managed[0]))


@Give
def give(owner, out):
    managed = Managed(Version(1, 2), None, ctypes.cast(delete, ctypes.c_void_p), 0, owner.tensor())
    owner.managed = managed
    Exchanged.calls.append("give")
    Exchanged.alive.append(ctypes.addressof(managed))
    out[0] = ctypes.pointer(managed)
    return 0


def test_exchange_interface_of_c(lone):
    table = Exchange(Version(1, 3), None, None, give, None, borrow, None)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Exchanged.__dlpack_c_exchange_api__ = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    o, lse = partials(0, SHAPE, empty=False)
    out = np.empty_like(o)
    given = Exchanged(o.transpose(1, 0, 2).copy().transpose(1, 0, 2)), Exchanged(lse)
    lone.combine(*given, out=(out, None))
    np.testing.assert_allclose(out, o, rtol=1e-6)
    assert Exchanged.calls == ["borrow"] * 2
    # An operation outlives the call, so it must own a reference to the memory.
    op = lone.combine_init(*given, out=(Exchanged(out), None))
    assert Exchanged.calls[2:] == ["give"] * 3 and len(Exchanged.alive) == 3
    out[:] = 0
    op()
    np.testing.assert_allclose(out, o, rtol=1e-6)
    op.free()
    del op
    assert Exchanged.alive == []


def exchanged(array, device_type=1, flags=0, has_shape=True):
    """Returns an object whose __dlpack__ exports `array` as device memory, with flags."""
    shape, strides = (ctypes.c_int64 * array.ndim)(*array.shape), (ctypes.c_int64 * array.ndim)()
    strides[:] = [stride // array.itemsize for stride in array.strides]
    shape, strides = (shape, strides) if has_shape else (None, None)
    tensor = Tensor(array.ctypes.data, device_type, 0, array.ndim, 2, 32, 1, shape, strides, 0)
    managed = Managed(Version(1, 0), None, None, flags, tensor)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Given:
        kept = array, shape, strides, managed
        streams = []

        def __dlpack__(self, *, stream=None, max_version=None):
            self.streams.append(stream)
            return new(ctypes.addressof(managed), b"dltensor_versioned", None)

        def __dlpack_device__(self):
            return device_type, 0

    return Given()


def test_read_only_and_devices_of_dlpack(lone):
    o, lse = partials(0, SHAPE, empty=False)
    out = np.empty_like(o)
    lone.combine(exchanged(o, flags=1), lse, out=(exchanged(out), None))
    np.testing.assert_allclose(out, o, rtol=1e-6)
    rejected("out", "read-only", lone.combine, o, lse, out=(exchanged(out, flags=1), None))
    rejected("o", "without a shape", lone.combine, exchanged(o, has_shape=False), lse)
    on_device = exchanged(o, device_type=2)
    rejected("o", "the array is on a device", lone.combine, on_device, lse)
    assert on_device.streams == [1]  # DLPack's number for the default stream
    rejected("lse", "the array is on a device", lone.combine, o, exchanged(lse, device_type=2))
    managed_memory = exchanged(o, device_type=13)
    lone.combine(managed_memory, lse, out=(out, None))


def test_arrays_of_cupy_by_their_protocol(lone, monkeypatch):
    """No GPU is here: a module that has what CuPy's arrays have, in managed memory, which the host reads as well."""
    cupy = types.ModuleType("cupy")

    class Array:
        def __init__(self, array):
            self.array, self.given = array, exchanged(array, device_type=13)
            self.dtype, self.shape = array.dtype, array.shape
            self.__cuda_array_interface__ = {"version": 3, "data": (array.ctypes.data, False), "shape": array.shape}

        def __dlpack__(self, **settings):
            return self.given.__dlpack__(**settings)

        def __dlpack_device__(self):
            return self.given.__dlpack_device__()

    Array.__module__, Array.__qualname__, Array.__name__ = "cupy", "ndarray", "ndarray"
    cupy.empty = lambda shape, dtype: Array(np.empty(shape, dtype))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    o, lse = partials(0, SHAPE, empty=False)
    out, merged_lse = lone.combine(Array(o), Array(lse))
    assert type(out) is Array and type(merged_lse) is Array
    np.testing.assert_allclose(out.array, o, rtol=1e-6)
    np.testing.assert_allclose(merged_lse.array, lse, rtol=1e-5, atol=1e-6)
    assert type(lone.shift(out)) is Array
    op = lone.combine_init(Array(o), Array(lse))
    assert op()[0] is op.outputs[0]
    np.testing.assert_allclose(op.outputs[0].array, o, rtol=1e-6)

    class Numba:
        __cuda_array_interface__ = Array(o).__cuda_array_interface__

    rejected("o", "a .*Numba is not an array: it has no __dlpack__", lone.combine, Numba(), lse)


def test_eight_bit_floats_are_known_by_their_code():
    """The values reach the library, which decides itself whether it accepts them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    o, lse = partials(0, SHAPE, empty=False)
    with banyan.Communicator.from_threads(banyan.Threads(1), 0) as comm:
        for name in ("float8_e4m3fn", "float8_e5m2"):
            given = o.astype(getattr(ml_dtypes, name))
            try:
                out, _ = comm.combine(given, lse, values_scale=2.0)
            except banyan.Error as error:
                assert "values_dtype" in str(error)
                continue
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, given.astype(np.float32) * 2, rtol=1e-5)
        with pytest.raises(banyan.ArgumentError, match="lse: float8"):
            comm.combine(o, lse.astype(ml_dtypes.float8_e5m2))


FROM_ENV = """
import numpy, banyan
with banyan.Communicator.from_env(timeout=120) as comm:
    print(comm.combine(numpy.full((1, 1, 4), comm.rank, "f4"), numpy.zeros((1, 1), "f4"))[0][0, 0, 0])
"""


def launched(program, ranks, **more):
    with reserved_port() as held:
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(held.getsockname()[1]), **more)
        children = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=dict(environment, RANK=str(rank), WORLD_SIZE=str(ranks)),
            )
            for rank in range(ranks)
        ]
        said = [child.communicate(timeout=300) for child in children]
    assert all(child.returncode == 0 for child in children), said
    return [out.split() for out, _ in said]


def test_from_env():
    assert launched(FROM_ENV, 2) == [["0.5"]] * 2


FROM_TORCH = """
import datetime, torch, torch.distributed as dist, banyan
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
def mean(comm):
    return comm.combine(torch.full((1, 1, 4), float(comm.rank)), torch.zeros(1, 1))[0][0, 0, 0].item()
with banyan.Communicator.from_torch() as comm:
    print(mean(comm))
mesh = None  # torch 1.13 has none
if hasattr(dist, "init_device_mesh"):
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "context"))["context"]
with banyan.Communicator.from_torch(mesh) as comm:
    print(mean(comm))
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
with banyan.Communicator.from_torch(store=store, rank=dist.get_rank(), nranks=2) as comm:
    print(mean(comm))
dist.barrier()
"""


def test_from_torch():
    pytest.importorskip("torch")
    assert launched(FROM_TORCH, 2) == [["0.5"] * 3] * 2


def test_from_mpi():
    pytest.importorskip("mpi4py")
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not there")
    program = FROM_ENV.replace("from_env(timeout=120)", "from_mpi()")
    as_root = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    command = ["mpirun", "-n", "2", sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **as_root}, timeout=300, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and done.stdout.count("0.5") == 2


def test_info():
    done = subprocess.run([sys.executable, "-m", "banyan", "info"], stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0 and f"libbanyan {banyan.version()}" in done.stdout and "one rank" in done.stdout
    end, start = os.pipe()
    os.close(end)  # as in `info | head -0`
    done = subprocess.run([sys.executable, "-m", "banyan", "info"], stdout=start, stderr=subprocess.PIPE, timeout=120)
    os.close(start)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("change", ["del", "set_", "data"])
def test_operations_keep_memory_that_tensors_lose(lone, change):
    """Those of parts in a dict too. Other tensors would get the memory if it were freed."""
    torch = pytest.importorskip("torch", "2.0")
    q, shape = torch.randn(1, 4, 16), (1, 2, 3000, 16)
    for in_parts in (False, True):
        given = {"k": torch.randn(shape), "v": torch.randn(shape)}
        want = banyan.attention(q, **given)[0]
        words = {"k": None, "v": None, "parts": [given]} if in_parts else given
        op = lone.attention_combine_init(q, **words, keys_max=3000)
        for tensor in given.values():
            if change == "set_":
                tensor.set_(torch.zeros(shape))
            elif change == "data":
                tensor.data = torch.zeros(shape)
        del tensor
        given.clear()
        others = [torch.full(shape, 1e9) for _ in range(20)]
        torch.testing.assert_close(op()[0], want, rtol=1e-5, atol=1e-5)
        assert len(others) == 20


@pytest.mark.parametrize("end", ["free", "close"])
def test_operations_give_up_arrays_at_their_end(end):
    draw, lens = np.random.default_rng(1), np.array([3], np.int32)
    with banyan.Communicator.from_threads(banyan.Threads(1), 0) as comm:
        shapes = (1, 2, 8), (1, 1, 3, 8), (1, 2, 8), (4,)
        q, k, o, mine = (draw.standard_normal(shape, np.float32) for shape in shapes)
        ops = [
            comm.attention_combine_init(q, k, k, seq_lens=lens, keys_max=3),
            comm.combine_init(o, o[:, :, 0], tokens=1),
            comm.allgather_init(mine),
            comm.shift_init(mine),
            comm.allgather_heads_init(o),
        ]
        held = [weakref.ref(array) for array in (q, k, lens, o, mine)]
        del q, k, o, mine, lens
        outputs = [op() for op in ops]
        assert all(ref() is not None for ref in held)
        for op in ops if end == "free" else ():
            op.free()
            op.free()
        if end == "close":
            comm.close()
        assert all(ref() is None for ref in held)
        for op, output in zip(ops, outputs):
            assert op.outputs is output or op.outputs[0] is output[0]
            with pytest.raises(banyan.StateError, match="freed"):
                op.tokens = 1


def test_tensors_that_are_made_own_their_memory():
    """A view outlives its tensor and the communicator. Unreferenced memory is freed."""
    torch = pytest.importorskip("torch")
    resource = pytest.importorskip("resource")
    o, lse = torch.ones(64, 32, 128, dtype=torch.bfloat16), torch.zeros(64, 32)
    with banyan.Communicator.from_threads(banyan.Threads(1), 0) as comm:
        view = comm.combine(o, lse)[0].view(-1)[1000:]
        comm.combine(o * 2, lse)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(500):
            made, made_lse = comm.combine(o, lse)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 64 * 1024  # all results take 256 MiB
    assert made.is_contiguous() and made.data_ptr() % 64 == 0 and made.dtype == torch.bfloat16
    assert (view == 1).all() and (made + 1 == 2).all() and (made_lse == 0).all()
    assert comm.is_open is False and made[:, 0].clone().shape == (64, 128)
