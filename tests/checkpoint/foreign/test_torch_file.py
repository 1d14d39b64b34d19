"""Files are written here as torch.save writes them, by a pickler that knows its names."""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from luthier.checkpoint.foreign.torch_file import read_torch_file
from luthier.errors import CheckpointError

KINDS = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "BoolStorage": np.bool_,
}


class Storage:
    """Stands for a storage while it is pickled."""

    def __init__(self, key, array):
        self.key, self.array = key, array.reshape(-1)


class Tensor:
    """Stands for a tensor while it is pickled."""

    def __init__(self, storage, offset, shape, strides):
        self.storage, self.window = storage, (offset, shape, strides)

    def __reduce__(self):
        import torch._utils as rebuilders

        empty = collections.OrderedDict()
        return rebuilders._rebuild_tensor_v2, (self.storage, *self.window, False, empty)


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        kinds = {np.dtype(kind): name for name, kind in KINDS.items()}
        kind = getattr(sys.modules["torch"], kinds[value.array.dtype])
        return ("storage", kind, value.key, "cpu", value.array.size)


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """Names of torch, so that the pickler can refer to them; the reader must not need them."""
    module, utilities = types.ModuleType("torch"), types.ModuleType("torch._utils")
    module._utils = utilities

    def _rebuild_tensor_v2(*arguments):
        raise AssertionError("the reader called torch")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utilities._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in KINDS:
        setattr(module, name, type(name, (), {"__module__": "torch"}))
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch._utils", utilities)


def dumps(content):
    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue()


def archive(path, content, storages, byteorder=b"little"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("model/data.pkl", dumps(content))
        file.writestr("model/byteorder", byteorder)
        for storage in storages:
            file.writestr(f"model/data/{storage.key}", storage.array.tobytes())


def bare(path, content, storages, little_endian=True):
    system = {"protocol_version": 1001, "little_endian": little_endian, "type_sizes": {}}
    with open(path, "wb") as file:
        for head in (0x1950A86A20F9469CFC6C, 1001, system):
            file.write(pickle.dumps(head, protocol=2))
        file.write(dumps(content))
        file.write(pickle.dumps([storage.key for storage in storages], protocol=2))
        for storage in storages:
            file.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())


@pytest.fixture(params=[archive, bare], ids=lambda write: write.__name__)
def write(request, tmp_path):
    def call(content, *storages, **settings):
        path = tmp_path / "pytorch_model.bin"
        request.param(path, content, storages, **settings)
        return path

    return call


def numbers(*shape, kind=np.float32):
    return np.arange(np.prod(shape)).reshape(shape).astype(kind)


def whole(storage, *shape):
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return Tensor(storage, 0, shape, tuple(strides))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: np.dtype(kind).name)
def test_every_type_is_read_bit_by_bit(kind, write):
    array = numbers(2, 3, kind=kind)
    storage = Storage("0", array)
    found = read_torch_file(write({"w": whole(storage, 2, 3)}, storage))
    assert found.keys() == {"w"}
    assert found["w"].dtype == array.dtype
    assert found["w"].tobytes() == array.tobytes()


def test_windows_on_a_shared_storage(write):
    storage = Storage("17", numbers(12))
    content = collections.OrderedDict(
        slice=Tensor(storage, 4, (2, 2), (4, 1)),
        transposed=Tensor(storage, 0, (4, 3), (1, 4)),
        scalar=Tensor(storage, 11, (), ()),
        repeated=Tensor(storage, 2, (3, 2), (0, 1)),
        empty=Tensor(storage, 0, (0, 3), (3, 1)),
    )
    found = read_torch_file(write(content, storage))
    np.testing.assert_array_equal(found["slice"], [[4, 5], [8, 9]])
    np.testing.assert_array_equal(found["transposed"], numbers(3, 4).T)
    np.testing.assert_array_equal(found["scalar"], 11)
    np.testing.assert_array_equal(found["repeated"], [[2, 3]] * 3)
    assert found["empty"].shape == (0, 3)


def test_nested_dictionaries_are_joined_and_other_values_left_out(write):
    storages = [Storage("0", numbers(3)), Storage("1", numbers(2))]
    first, second = (whole(s, s.array.size) for s in storages)
    content = {"model": {"a.weight": first, "b": {"bias": second}}, "step": 7, "name": "x"}
    found = read_torch_file(write(content, *storages))
    assert found.keys() == {"model.a.weight", "model.b.bias"}


def test_nothing_but_tensors_is_ever_called(write, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "called"),)

    with pytest.raises(CheckpointError, match=r"asks for (posix|nt)\.mkdir"):
        read_torch_file(write({"w": Evil()}))
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "window", [(0, (3, 3), (3, 1)), (7, (2,), (1,)), (-1, (2,), (1,)), (3, (2,), (-1,))], ids=str
)
def test_windows_beyond_the_storage_are_refused(window, write):
    storage = Storage("0", numbers(8))
    with pytest.raises(CheckpointError, match="reaches beyond its storage '0'"):
        read_torch_file(write({"w": Tensor(storage, *window)}, storage))


def test_a_missing_storage_is_named(write):
    with pytest.raises(CheckpointError, match="storage '5' is missing"):
        read_torch_file(write({"w": whole(Storage("5", numbers(2)), 2)}))


@pytest.mark.parametrize(
    ("form", "settings"), [(archive, {"byteorder": b"big"}), (bare, {"little_endian": False})]
)
def test_another_byte_order_is_refused(form, settings, tmp_path):
    storage = Storage("0", numbers(2))
    form(tmp_path / "w.bin", {"w": whole(storage, 2)}, [storage], **settings)
    with pytest.raises(CheckpointError, match="not little-endian"):
        read_torch_file(tmp_path / "w.bin")


def test_a_file_that_is_cut_off_is_an_error_at_every_length(write):
    storage = Storage("0", numbers(4))
    path = write({"w": whole(storage, 4)}, storage)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            read_torch_file(path)


def test_what_is_no_such_file_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_torch_file(tmp_path / "none.bin")
    for content in (b"", b"hello", pickle.dumps([1, 2]), b"\x80\x02]q\x00."):
        (tmp_path / "w.bin").write_bytes(content)
        with pytest.raises(CheckpointError, match="convert it to safetensors"):
            read_torch_file(tmp_path / "w.bin")
    with zipfile.ZipFile(tmp_path / "w.bin", "w") as file:
        file.writestr("other", "x")
    with pytest.raises(CheckpointError, match=r"without a single data\.pkl"):
        read_torch_file(tmp_path / "w.bin")
