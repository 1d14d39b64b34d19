import types

import jax
import jax.numpy as jnp
import pytest

from luthier.parallel import array_bytes, bytes_per_device, format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1288490189, "1.2 GiB"),
        (1024**2 - 1, "1.0 MiB"),
        (15.75 * 1024**3, "15.8 GiB"),
        (3 * 1024**5, "3.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


def test_array_bytes():
    assert array_bytes((3, 4), jnp.bfloat16) == 24
    assert array_bytes((), "float64") == 8
    assert array_bytes((0, 5), jnp.int8) == 0
    key = jax.random.key(0)
    assert array_bytes(key.shape, key.dtype) == 8


def test_bytes_per_device_is_the_sum():
    placed = [types.SimpleNamespace(bytes_per_device=n) for n in (3, 4)]
    assert bytes_per_device(placed) == 7
    assert bytes_per_device(()) == 0
