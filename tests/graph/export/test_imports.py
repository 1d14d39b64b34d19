from __future__ import annotations

import jax.nn
import pytest
from graph_toys import recorded

from luthier.graph.export.names import Imports, find, split


def _imports(*names):
    imports = Imports(names)
    return [imports.name(name) for name in names], imports.lines()


def test_rooms_of_luthier_are_short_and_others_whole():
    import luthier.optim

    assert luthier.optim
    names = ["luthier.optim.adamw", "jax.nn.silu", "jax.numpy.float32", "builtins.int"]
    assert _imports(*names) == (
        ["optim.adamw", "jax.nn.silu", "jnp.float32", "int"],
        ["import jax.nn", "import jax.numpy as jnp", "from luthier import optim"],
    )


def test_standard_modules_stand_apart():
    imports = Imports(["luthier.graph.values.constant"])
    imports.module("pathlib")
    imports.member("luthier.graph", "value")
    assert imports.name("luthier.graph.values.constant") == "values.constant"
    assert imports.lines() == ["import pathlib", "", "from luthier.graph import value, values"]


def test_two_modules_of_one_name():
    names = ["luthier.graph.export.names.Names", "luthier.graph.grammar.names.x"]
    assert _imports(*names)[0] == ["names.Names", "luthier.graph.grammar.names.x"]


def test_only_what_is_used_is_imported():
    assert Imports(["luthier.optim.adamw"]).lines() == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jax.nn.gelu", ("jax.nn", "gelu")),
        ("graph_toys.recorded.Holder.Inner", ("graph_toys.recorded", "Holder.Inner")),
    ],
)
def test_the_module_of_a_name(name, parts):
    assert split(name) == parts


def test_the_object_of_a_name():
    assert find("graph_toys.recorded.Holder.Inner") is recorded.Holder.Inner
    assert find("jax.nn.gelu") is jax.nn.gelu
