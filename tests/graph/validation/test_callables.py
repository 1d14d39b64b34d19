from __future__ import annotations

import functools
import sys
import types

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from graph_toys import parts
from graph_toys.names import case_name

from luthier.graph.validation import foreign_package, not_listed, unrecordable


def from_module(name: str) -> object:
    module = types.ModuleType(name)
    exec("def function(): pass\nclass Class: pass", vars(module))
    sys.modules[name] = module
    return module.function


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        None,
        0.5,
        parts.Mlp,
        parts.relu,
        parts.Kind.FAST,
        jax.nn.relu,
        jnp.bfloat16,
        optax.adamw,
        np.dtype("int8"),
        dict,
        jax.sharding.PartitionSpec("data"),
    ],
    ids=case_name,
)
def test_what_can_be_recorded(value):
    assert unrecordable(value) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, "a lambda has no name to record; give it a name with def, in a module"),
        (jax.nn.initializers.lecun_normal(), "is local to a function"),
        (functools.partial(parts.relu, 1), "a functools.partial cannot be recorded"),
        (np.zeros(3), "an array of float64[3] cannot be recorded"),
        (object(), "cannot be recorded; use fdl.Config("),
        (from_module("configs.some_experiment"), "configs.some_experiment.function is defined in "),
        (
            from_module("sweeps.some_sweep"),
            "defined in sweeps, which a recorded graph cannot rely on",
        ),
    ],
    ids=["lambda", "local", "partial", "array", "object", "configs", "sweeps"],
)
def test_what_cannot(value, message):
    assert message in str(unrecordable(value))


def test_a_private_module_gives_no_public_names():
    assert "__main__x.function has no public name" in str(unrecordable(from_module("__main__x")))


def test_what_is_defined_in_main():
    function = types.FunctionType((lambda: 0).__code__, {}, "f")
    function.__module__, function.__qualname__ = "__main__", "f"
    assert "__main__.f is defined in __main__" in str(unrecordable(function))


def test_packages_of_the_user_are_listed():
    assert foreign_package(parts.Mlp, ()) == "graph_toys"
    assert foreign_package(parts.Kind.FAST, ()) == "graph_toys"
    assert foreign_package(parts.Mlp, ("graph_toys",)) == ""
    assert foreign_package(optax.adamw, ()) == foreign_package(fdl.Config, ("fiddle",)) == ""
    assert foreign_package(dict, ()) == foreign_package("text", ()) == ""
    assert 'add it: [tool.luthier] packages = ["graph_toys"]' in str(
        not_listed(parts.Mlp, "graph_toys")
    )
