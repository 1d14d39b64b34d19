from __future__ import annotations

import threading

import fiddle as fdl
import pytest
from fiddle import history
from graph_toys import parts

from luthier.graph import apply, origin_of, set_value, value


def test_the_origin_of_a_set_in_code_is_its_file_and_line():
    graph = parts.experiment()
    assert origin_of(graph, "optimizer.b2").startswith(
        "tests/graph/importable/graph_toys/parts.py:"
    )
    graph.optimizer.b2 = 0.5
    line = origin_of(graph, "optimizer.b2").rsplit(":", 1)[1]
    assert origin_of(graph, "optimizer.b2") == f"tests/graph/edits/test_origins.py:{line}"


def test_defaults_come_from_nowhere():
    graph = parts.experiment()
    assert origin_of(graph, "optimizer.b1") == ""
    assert origin_of(graph, "rules.parameters.embed") == ""


def test_the_origin_of_an_override_is_the_argument():
    graph = apply(parts.experiment(), ["steps=5", "optimizer.b2=.9"])
    assert origin_of(graph, "steps") == "argument 1: steps=5"
    assert origin_of(graph, "optimizer.b2") == "argument 2: optimizer.b2=.9"
    assert (
        origin_of(apply(graph, ["steps=6"], "trial 7, value"), "steps")
        == "trial 7, value 1: steps=6"
    )


def test_elements_have_origins_of_their_own():
    graph = parts.experiment()
    graph.data.fields = ("a", "b")
    changed = apply(graph, ["data.fields[1]=c", "rules.parameters.embed=x"])
    assert changed.data.fields == ("a", "c")
    assert origin_of(changed, "data.fields[1]") == "argument 1: data.fields[1]=c"
    assert origin_of(changed, "data.fields[0]").startswith("tests/graph/edits/test_origins.py:")
    assert origin_of(changed, "rules.parameters.embed") == "argument 2: rules.parameters.embed=x"
    assert origin_of(changed, "rules.parameters.vocab") == ""
    whole = apply(changed, ["data.fields=p,q"])
    assert origin_of(whole, "data.fields[1]") == "argument 1: data.fields=p,q"


def test_all_of_a_new_node_comes_from_its_argument():
    graph = apply(parts.experiment(), ["optimizer.learning_rate=Cosine(.1, total_steps=5)"])
    where = "argument 1: optimizer.learning_rate=Cosine(.1, total_steps=5)"
    for path in ("optimizer.learning_rate", "optimizer.learning_rate.peak"):
        assert origin_of(graph, path) == where
    assert origin_of(graph, "optimizer.learning_rate.warmup_steps") == ""
    (made,) = graph.optimizer.learning_rate.__argument_history__["__fn_or_cls__"]
    assert made.location.filename == where


def test_the_origin_of_a_constant_is_its_last_set():
    graph = parts.experiment()
    graph.model.dim = dim = value(8, name="dim")
    assert origin_of(graph, "model.dim").startswith("tests/graph/edits/test_origins.py:")
    set_value(graph, "model.dim", 16, origin="a sweep")
    assert dim.value == 16
    assert origin_of(graph, "model.dim") == "a sweep"


def test_a_reference_leaves_the_origin_of_its_source():
    graph = parts.experiment()
    before = origin_of(graph, "model.dim")
    changed = apply(graph, ["steps=ref:model.dim*2"])
    assert origin_of(changed, "model.dim") == before
    assert origin_of(changed, "steps") == "argument 1: steps=ref:model.dim*2"


def test_the_set_of_a_script_is_the_scripts():
    graph = parts.experiment()
    set_value(graph, "steps", 5)
    assert origin_of(graph, "steps").startswith("tests/graph/edits/test_origins.py:")


def test_nothing_global_is_changed():
    """Fiddle's `custom_location` would leak into other threads."""
    seen = []
    graph = parts.experiment()
    stop = threading.Event()

    def other():
        while not stop.is_set():
            node = fdl.Config(parts.Constant, 0.1)
            seen.append(node.__argument_history__["rate"][0].location.filename)

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(50):
        apply(graph, ["steps=5", "extra=Constant(0.2)"])
    stop.set()
    thread.join()
    assert set(seen) == {__file__}


def test_suspended_tracking_is_respected():
    graph = parts.experiment()
    before = origin_of(graph, "optimizer.b2")
    with history.suspend_tracking():
        changed = apply(graph, ["optimizer.b2=.5", "extra=Constant(1)"])
    assert changed.optimizer.b2 == 0.5
    assert origin_of(changed, "optimizer.b2") == before


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/somewhere/lib/python3/site-packages/optax/x.py", "optax/x.py:3"),
        ("/far/away/from/here/x.py", "from/here/x.py:3"),
        ("<stdin>", "<stdin>:3"),
    ],
)
def test_installed_files_are_shown_relative_to_their_package(file, shown):
    with history.custom_location(lambda: history.Location(file, 3, "f")):
        node = fdl.Config(parts.Constant, 0.1)
    assert origin_of(node, "rate") == shown
