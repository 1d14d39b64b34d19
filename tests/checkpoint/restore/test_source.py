import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier.checkpoint.restore import SourcePiece, Target, assemble


def _piece(array, read):
    def take(index):
        read.append(tuple((part.start, part.stop) for part in index))
        return array[index]

    return SourcePiece("t", str(array.dtype), take)


def test_each_device_reads_its_own_part_once():
    array = np.arange(32, dtype=np.float32).reshape(8, 4)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))
    target = Target((8, 4), np.float32, NamedSharding(mesh, PartitionSpec("a")))
    read = []
    found = assemble(target, _piece(array, read))
    np.testing.assert_array_equal(found, array)
    assert sorted(read) == [((start, start + 2), (0, 4)) for start in (0, 2, 4, 6)]


def test_layers_are_stacked_and_only_those_of_the_shard_are_read():
    arrays = [np.full((3,), layer, np.float32) for layer in range(4)]
    reads = [[] for _ in arrays]
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    target = Target((4, 3), np.float32, NamedSharding(mesh, PartitionSpec("a")), is_stacked=True)
    found = assemble(target, [_piece(a, r) for a, r in zip(arrays, reads, strict=True)])
    np.testing.assert_array_equal(found, np.stack(arrays))
    assert [len(read) for read in reads] == [1, 1, 1, 1]


def test_the_dtype_is_that_of_the_target():
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    found = assemble(Target((4,), np.float32), _piece(array, []))
    assert found.dtype == np.float32


def test_the_arrays_may_be_donated():
    array = np.arange(64, dtype=np.float32)
    found = assemble(Target((64,), np.float32), _piece(array, []))
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    np.testing.assert_array_equal(add(found), np.arange(64) + 1)
    np.testing.assert_array_equal(array, np.arange(64))
