from __future__ import annotations

import fiddle as fdl
import graph_toys.fiddlers
import pytest
from graph_toys import parts

from luthier.graph import (
    apply,
    evaluate,
    fiddlers_of,
    find_fiddler,
    history,
    origin_of,
    run_fiddler,
)
from luthier.graph.grammar import Unreadable

SHELF = ("graph_toys.fiddlers",)
WHERE = "argument 2: fiddler:x"


def fiddled(written, graph=None):
    return run_fiddler(graph or parts.experiment(), written, WHERE, SHELF)


def test_the_graph_that_is_given_is_never_changed():
    graph = parts.experiment()
    assert fiddled("shrink(1)", graph).model.layers == [fdl.Config(parts.Mlp, hidden=64)]
    assert graph == parts.experiment()


def test_what_it_returns_is_copied(monkeypatch):
    kept = parts.experiment()
    monkeypatch.setattr(graph_toys.fiddlers, "widen", lambda graph: kept)
    made = run_fiddler(parts.experiment(), "graph_toys.fiddlers.widen", WHERE, ())
    assert made == kept
    assert made is not kept


def test_what_it_set_carries_the_word_and_the_line():
    graph = fiddled("widen(3)")
    origin = origin_of(graph, "model.dim")
    assert origin.startswith(f"{WHERE}, ")
    assert origin.endswith("graph_toys/fiddlers.py:15")
    assert not origin_of(graph, "model.layers").startswith(WHERE), "it was set before"


def test_what_fiddle_does_not_see_carries_the_word():
    graph = fiddled("shrink(1, kind=exact)")
    assert origin_of(graph, "kind").startswith(f"{WHERE}, ")
    graph = run_fiddler(parts.experiment(), "graph_toys.fiddlers.add_key", WHERE, ())
    assert origin_of(graph, "evaluations.new").startswith(WHERE)


def test_the_chain_is_in_order():
    words = ["model.dim=4", "fiddler:widen", "model.dim+=1", "fiddler:widen"]
    graph = apply(parts.experiment(), words, shelves=SHELF)
    entries = history(graph)["model.dim"]
    assert [entry["value"] for entry in entries] == [16, 4, 8, 9, 18]
    origins = [str(entry["origin"]).split(",")[0] for entry in entries[1:]]
    assert origins == [f"argument {n}: {word}" for n, word in enumerate(words, 1)]


def test_only_functions_of_graphs_stand_on_a_shelf():
    names = [name for name, _ in fiddlers_of(graph_toys.fiddlers)]
    assert {"widen", "shrink", "swap"} <= set(names)
    assert not {"_private", "nothing_to_do_with_graphs", "copy_graph"} & set(names)
    import luthier.recipes

    assert {"freeze", "lora"} <= dict(fiddlers_of(luthier.recipes)).keys()


def test_names():
    widen = graph_toys.fiddlers.widen
    for name in ("widen", "graph_toys.fiddlers.widen", "graph_toys.fiddlers:widen"):
        assert find_fiddler(name, SHELF) is widen
    for name in ("", "a b", "a..b", ".a", "1a", "a:b:c"):
        with pytest.raises(Unreadable, match="is not a valid fiddler name"):
            find_fiddler(name, SHELF)


@pytest.mark.parametrize("name", ["os.system", "importlib:import_module", "graph_toys.parts.np"])
def test_what_may_not_be_called(name):
    with pytest.raises(Unreadable, match=r"(hold no|is not a) fiddler"):
        find_fiddler(name, SHELF)


def test_an_override_that_a_later_fiddler_replaces_is_noted():
    notes = []
    words = ["model.dim=4", "model.dim=5", "fiddler:widen", "kind=exact", "fiddler:shrink(1)"]
    apply(parts.experiment(), words, shelves=SHELF, on_note=notes.append)
    assert notes == [
        "fiddler:widen replaced model.dim=5 by 10; to keep your value, write model.dim=5 after it",
        "fiddler:shrink(1) replaced kind=Kind.EXACT by Kind.FAST; "
        "to keep your value, write kind=exact after it",
    ]
    kept = apply(parts.experiment(), [*words, "model.dim=5"], shelves=SHELF)
    assert evaluate(kept.model.dim) == 5


def test_a_function_without_arguments_is_not_a_fiddler():
    with pytest.raises(Unreadable, match=r"takes no arguments, so it is not a fiddler$"):
        find_fiddler("graph_toys.parts.experiment", SHELF)
