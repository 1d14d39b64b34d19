"""What the tests of contrib share."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _exact_products():
    with jax.default_matmul_precision("highest"):
        yield
