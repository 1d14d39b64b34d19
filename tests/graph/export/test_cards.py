from __future__ import annotations

import fiddle as fdl
from graph_toys import parts, recorded

from luthier.graph import copy_graph, values
from luthier.graph.export.picture import MOST_ROWS, deal


def _rows(card):
    return [(row.label, row.text) for row in card.rows]


def test_a_card_has_what_is_set():
    card = deal(parts.experiment().optimizer).root
    assert (card.title, card.note, card.room) == ("Optimizer", "", "other")
    assert _rows(card) == [("learning_rate", ""), ("b2", "0.99")]
    (schedule,) = card.children()
    assert _rows(schedule) == [("peak #Rate", "0.001"), ("total_steps", "1000")]
    assert schedule.whole == "learning_rate: graph_toys.parts.Cosine"


def test_containers_of_nodes_are_rows_and_sharing_is_no_card():
    card = deal(parts.experiment()).root
    assert [row.label for row in card.rows] == [
        *("name", "model", "optimizer", "data", "evaluations.held_out"),
        "evaluations['long text']",
    ]
    model = card.rows[1].card
    assert [row.label for row in model.rows] == ["dim", "layers[0]", "layers[1]", "layers[2]"]
    assert model.rows[3].same is model.rows[1].card


def test_alike_entries_are_one_row():
    layer = fdl.Partial(parts.Layer, dim=3)
    graph = fdl.Config(
        recorded.Part,
        size=[*(copy_graph(layer) for _ in range(12)), fdl.Config(parts.Layer), layer, layer],
    )
    card = deal(graph).root
    assert [row.label for row in card.rows] == ["size[0…11]", "size[12]", "size[13…14]"]
    assert card.rows[0].card.note == "partial × 12"


def test_long_things_are_cut():
    graph = fdl.Config(
        recorded.keywords, **{f"a{i}" * 20: "x" * 99 for i in range(40)}, z={"a": "b" * 99}
    )
    rows = deal(graph).root.rows
    assert len(rows) == MOST_ROWS + 1
    assert (rows[-1].label, rows[-1].text) == ("…", "25 more")
    assert max(len(row.label + row.text) for row in rows) <= 56
    assert rows[0].whole.endswith("= '" + "x" * 99 + "'")
    graph = fdl.Config(recorded.keywords, z={"a": "b" * 99}, y=list(range(99)))
    assert _rows(deal(graph).root) == [("y", "99 entries"), ("z", "1 entries")]


def test_constants():
    size, unnamed = values.value(256, name="size"), values.value(3)
    graph = fdl.Config(
        recorded.Part,
        size=size,
        rate=values.multiply(size, unnamed),
        other=[fdl.Config(parts.Layer), unnamed],
        extra=values.value(5),
    )
    deck = deal(graph)
    assert [(c.name, c.text) for c in deck.constants] == [("size", "256"), ("", "3")]
    assert _rows(deck.root)[:2] == [("size", "256"), ("rate", "size * 3 = 768")]
    assert deck.root.rows[1].constants == deck.constants
    assert deck.root.rows[-1].constants == []


def test_rooms():
    from luthier import optim

    assert deal(fdl.Config(optim.adamw)).root.room == "optim"
