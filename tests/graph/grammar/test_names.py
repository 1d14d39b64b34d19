from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from graph_toys import parts

from luthier import durations, launch
from luthier import study as studies
from luthier.graph.grammar import DTYPES, Unreadable, dtype, find_object


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("optax.sgd", optax.sgd),
        ("jnp.bfloat16", jnp.bfloat16),
        ("np.float32", np.float32),
        ("P", jax.sharding.PartitionSpec),
        ("jax.nn.relu", jax.nn.relu),
        ("jax.nn.initializers.zeros", jax.nn.initializers.zeros),
        ("graph_toys.parts.Kind.FAST", parts.Kind.FAST),
        ("Seconds", durations.Seconds),
        ("durations.Seconds", durations.Seconds),
        # Of packages that import what they export at its first use.
        ("Local", studies.Local),
        ("luthier.launch.Slices", launch.Slices),
    ],
)
def test_names_that_are_known_everywhere(name, expected):
    assert find_object(name, packages=("graph_toys",)) is expected


def test_classes_of_the_annotation_come_first():
    assert find_object("Steps", durations.Steps | None) is durations.Steps
    assert find_object("GatedMlp", parts.Layer) is parts.GatedMlp  # a subclass
    assert find_object("Kind.EXACT", parts.Kind) is parts.Kind.EXACT


def test_what_stands_beside_the_callables_at_hand():
    assert find_object("Constant", near=[parts.Cosine]) is parts.Constant
    assert find_object("gelu", near=[parts.Mlp]) is parts.gelu
    with pytest.raises(Unreadable):
        find_object("dataclasses", near=[parts.Mlp])  # imported there, not of there
    with pytest.raises(Unreadable):
        find_object("np", near=[parts.Mlp])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Secnds", "there is nothing called 'Secnds'; did you mean Seconds?"),
        ("zzzzz", "there is nothing called 'zzzzz'; give its full name (package.module.Name), or "),
        ("zzzzz.y", "there is nothing called 'zzzzz.y'"),
        (
            "optax.sdg",
            "'optax.sdg' is not on the list of names that records may contain; "
            "did you mean optax.sgd?",
        ),
        ("jax.nn.rleu", "names that records may contain; did you mean jax.nn.relu or"),
        ("jax.nn", "'jax.nn' is a module; name the class or function that you need from it"),
        ("os", "there is nothing called 'os'"),
        ("graph_toys.parts", "graph_toys.parts is a module, not a value"),
        (
            "graph_toys.parts.pathlib.Path",
            "'graph_toys.parts.pathlib.Path' may not be used: it is defined in 'pathlib'",
        ),
        ("optax.__builtins__", "'optax.__builtins__' is private"),
        ("os.sytem", "'os.sytem' may not be imported: 'os' is not on the list"),
        ("optax._src.alias.sgd", "'optax._src.alias.sgd' is private"),
        ("graph_toys.broken_import.x", "importing graph_toys.broken_import failed: "),
        ("graph_toys.broken_import.x", "broken_import.py:3: ModuleNotFoundError"),
    ],
)
def test_what_is_not_known(name, message):
    with pytest.raises(Unreadable) as caught:
        find_object(name, packages=("graph_toys",))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SquaredRelMlp", "near_names.deep.layers.SquaredReluMlp"),
        ("SquaredReluMlp", "near_names.deep.layers.SquaredReluMlp"),
        ("layers.SquaredReluMlp", "near_names.deep.layers.SquaredReluMlp"),
        ("near_names.deep.layer.SquaredReluMlp", "near_names.deep.layers"),
        ("Secnds", "Seconds"),
    ],
)
def test_names_of_modules_that_nobody_imported_are_proposed(tmp_path, monkeypatch, name, meant):
    deep = tmp_path / "near_names" / "deep"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").write_text("")
    (deep / "__init__.py").write_text("")
    (deep / "layers.py").write_text("class SquaredReluMlp:\n  pass\n")
    (deep / "damaged.py").write_text("class (")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Unreadable) as caught:
        find_object(name, packages=("near_names",))
    assert f"; did you mean {meant}?" in str(caught.value)
    assert "near_names.deep.layers" not in sys.modules
    monkeypatch.delitem(sys.modules, "near_names.deep", raising=False)
    monkeypatch.delitem(sys.modules, "near_names", raising=False)


def test_dtypes():
    assert dtype("bf16") is jnp.bfloat16
    assert dtype("int32") is jnp.int32
    assert dtype("float33") is None
    for name in DTYPES:
        assert np.dtype(dtype(name)).name == DTYPES[name]


def test_packages_are_named_by_their_last_name_unless_they_hold_no_parts():
    assert find_object("durations.Seconds") is durations.Seconds
    for name in ("graph.apply", "cli.main"):
        with pytest.raises(Unreadable, match="there is nothing called"):
            find_object(name)
