"""Random bits are those of JAX, whichever way they are compiled."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from luthier.parallel import random_bits

# Vectors of the authors' own test, `kat_vectors`: key, counter, words.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "count", "words"), KNOWN)
def test_known_vectors(key, count, words):
    found = random_bits.threefry(*(jnp.uint32(word) for word in (*key, *count)))
    assert tuple(map(int, found)) == words


@pytest.mark.parametrize(("key", "count", "words"), KNOWN)
def test_it_is_what_jax_compiles_on_a_cpu(key, count, words):
    found = jax.jit(threefry_2x32)(jnp.array(key, jnp.uint32), jnp.array(count, jnp.uint32))
    assert tuple(map(int, found)) == words


# Draws with JAX alone, or with luthier installed.
DRAW = """
import sys
if sys.argv[1] == "luthier":
    import luthier; luthier.install()
import jax, jax.numpy as jnp, numpy as np
def draw(key):
    keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(3))
    return jax.vmap(lambda k: jax.random.normal(k, (5, 7)))(keys), jax.random.bits(key, (11,))
key = jax.random.key(7)
print(*(np.asarray(part).tobytes().hex() for part in (*jax.jit(draw)(key), *draw(key))))
print(jax.jit(draw).lower(key).as_text().count("stablehlo.while"))
"""


@pytest.mark.full
def test_the_bits_are_those_of_jax_alone_without_its_loops():
    def drawn(*words):
        command = [sys.executable, "-c", DRAW, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    (own, own_loops), (jaxs, jax_loops) = drawn("luthier"), drawn("jax")
    assert own == jaxs
    assert own_loops == "0"
    assert int(jax_loops) > 0


def test_dropout_of_a_million_bits_is_uniform():
    bits = np.asarray(jax.random.bits(jax.random.key(0), (2**20,), jnp.uint32))
    assert len(np.unique(bits >> 24)) == 256
    assert abs(float(np.mean(bits / 2**32)) - 0.5) < 1e-3
