from __future__ import annotations

import pytest

from luthier.checkpoint import store


def test_current_names_what_decides():
    assert set(store.current()) == {
        *("flax", "grain", "jax", "jaxlib", "luthier", "numpy", "optax", "orbax-checkpoint"),
    }
    assert "unknown" not in store.current().values()


def test_the_same_versions_are_no_notice():
    assert store.notices(store.current()) == []


@pytest.mark.parametrize("package", ["grain", "orbax-checkpoint"])
def test_another_version_is_a_notice(package):
    (notice,) = store.notices({**store.current(), package: "0.0.1"})
    assert f"{package} 0.0.1" in notice
    assert store.current()[package] in notice


def test_packages_that_are_no_longer_recorded_are_passed_over():
    assert store.notices({"gone": "1"}) == []
