from __future__ import annotations

import pathlib

import fiddle as fdl
import numpy as np
import pytest
from graph_toys import parts

from luthier.graph import UNSET, values
from luthier.graph.formats.gin.lookup import Lookup, constants, key, registered
from luthier.graph.formats.gin.statements import Import
from luthier.graph.formats.gin.values import BindingTarget, check, fit
from luthier.graph.grammar import Unreadable


@pytest.fixture
def lookup():
    found = Lookup(["graph_toys"])
    statement = Import("graph_toys.gin_parts", False, "toys", "here")
    assert found.import_all([statement, Import("__gin__.x", True, "", "")]) == []
    return found


def test_what_is_registered_with_gin_is_found(lookup):
    from graph_toys import gin_parts

    assert lookup.configurable("inverse_root") is gin_parts.inverse_root
    assert lookup.configurable("gin_parts.Trainer") is gin_parts.Trainer
    assert lookup.configurable("renamed_layer") is gin_parts.Registered
    assert lookup.configurable("toys.Trainer") is gin_parts.Trainer
    assert lookup.constant("GOLDEN") == 1.618
    assert not [name for name in (*registered(), *constants()) if name.startswith("gin.")]


def test_a_function_and_what_gin_wraps_are_one(lookup):
    from graph_toys import gin_parts

    assert key(gin_parts.inverse_root) == key(gin_parts.inverse_root.__wrapped__)


def test_classes_of_the_graph_by_the_ends_of_their_names(lookup):
    lookup.add([parts.Mlp, parts.Model])
    assert lookup.configurable("Mlp") is lookup.configurable("parts.Mlp") is parts.Mlp
    assert lookup.configurable("graph_toys.parts.GatedMlp") is parts.GatedMlp
    assert lookup.constant("graph_toys.parts.Kind.FAST") is parts.Kind.FAST


def test_an_ambiguous_name(lookup):
    from graph_toys import modules

    twin = type("Mlp", (), {"__module__": modules.__name__})
    lookup.add([parts.Mlp, twin])
    with pytest.raises(Unreadable) as caught:
        lookup.configurable("Mlp")
    assert str(caught.value.problem) == (
        "'Mlp' may mean graph_toys.modules.Mlp and graph_toys.parts.Mlp; write more of the name"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inverse_rot", "there is nothing called 'inverse_rot'; did you mean inverse_root?"),
        ("zzzzqq", "there is nothing called 'zzzzqq'; give its full name, or import its module"),
        (
            "graph_toys.parts.Kind.FAST",
            "'graph_toys.parts.Kind.FAST' is neither a class nor a function",
        ),
    ],
)
def test_names_that_mean_nothing(lookup, name, message):
    with pytest.raises(Unreadable) as caught:
        lookup.configurable(name)
    assert str(caught.value.problem) == message


def test_an_import_of_a_part_of_a_library_that_no_graph_may_name():
    statement = Import("optax.transforms", False, "", "a.gin:1")
    (problem,) = Lookup().import_all([statement])
    assert problem.what == (
        "'optax.transforms' may not be imported: it holds nothing that a graph may name"
    )
    assert "optax" in problem.remedy.removeprefix("import one of ").split(", ")


def test_an_import_by_another_name_is_found_by_that_name_alone():
    found = Lookup(["graph_toys"])
    statement = Import("graph_toys.parts.gelu", True, "smooth", "a.gin:1")
    assert found.import_all([statement]) == []
    assert found.configurable("smooth") is parts.gelu


def test_imports_that_fail_are_reported():
    statements = [
        Import("os.path", False, "", "a.gin:1"),
        Import("graph_toys.broken_import", False, "", "a.gin:2"),
        Import("graph_toys.nowhere", True, "", "a.gin:3"),
    ]
    errors = [str(problem) for problem in Lookup(["graph_toys"]).import_all(statements)]
    assert errors[0] == (
        "'os.path' may not be imported: 'os' is not on the list [set by a.gin:1]; if it is yours, "
        "add it to packages under [tool.luthier] in pyproject.toml"
    )
    assert [line.split(" failed")[0] for line in errors[1:]] == [
        "importing graph_toys.broken_import",
        "importing graph_toys.nowhere",
    ]


LOOKUP = Lookup()


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1),
        (1e3, int, 1000),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("exact", parts.Kind, parts.Kind.EXACT),
        ("data", pathlib.Path, pathlib.Path("data")),
        ("None", str | None, "None"),
        (None, int | None, None),
    ],
)
def test_values_fit_or_are_converted(value, annotation, expected):
    made = fit(value, annotation, UNSET, LOOKUP)
    assert (made, type(made)) == (expected, type(expected))


def test_dtypes_are_read_by_name():
    assert np.dtype(fit("f32", np.dtype, UNSET, LOOKUP)) == np.dtype("float32")


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("7", int, "'7' is not an int"),
        ("None", int | None, "'None' is not an int or None"),
        (fdl.Config(parts.Mlp), int, "Mlp(...) is not an int"),
        (1.5, int, "1.5 is not an int"),
    ],
)
def test_what_does_not_fit_is_refused(value, annotation, message):
    with pytest.raises(Unreadable) as caught:
        fit(value, annotation, UNSET, LOOKUP)
    assert caught.value.problem.what == message


def test_value_nodes_are_checked_when_all_is_bound():
    node = values.value("x", name="n")
    assert fit(node, int, UNSET, LOOKUP) is node
    with pytest.raises(Unreadable, match="n = 'x' is not an int"):
        check(node, int)


def test_an_argument_and_its_annotation():
    assert BindingTarget(parts.Mlp, "hidden").annotation is int
