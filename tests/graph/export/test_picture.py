from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.errors import RecordError
from luthier.graph import copy_graph, to_svg, values
from luthier.graph.export.picture import MOST_ROWS, diagram_of, place

SVG = "{http://www.w3.org/2000/svg}"


def _texts(graph):
    root = ElementTree.fromstring(to_svg(graph))
    return [element.text for element in root.iter(f"{SVG}text")]


def _classes(graph, tag="path"):
    root = ElementTree.fromstring(to_svg(graph))
    return [element.get("class") for element in root.iter(SVG + tag)]


def test_it_shows_classes_values_and_the_fingerprint():
    texts = _texts(parts.experiment())
    assert texts[0] == "toy"
    assert any("12 nodes, 0 shared constants, fingerprint " in text for text in texts)
    assert {"Cosine", "peak #Rate", "0.001", "evaluations['long text']"} <= set(texts)


def test_the_three_kinds_of_lines():
    size = values.value(4, name="size")
    layer = fdl.Partial(parts.Layer, dim=size)
    graph = fdl.Config(recorded.Part, size=layer, rate=[layer], other=size)
    # The legend has one of each of the last two kinds.
    kinds = _classes(graph)
    assert [kinds.count(kind) for kind in ("held", "same", "uses", "end")] == [1, 2, 3, 1]
    plain = _classes(fdl.Config(recorded.Part, size=fdl.Config(parts.Layer)))
    assert plain == ["held"]


def test_text_is_escaped():
    graph = fdl.Config(
        recorded.Part, size='<script>"&\x00\udc80', other={"<b>": fdl.Config(parts.Layer)}
    )
    texts = _texts(graph)
    assert any(text.startswith("'<script>\"&") for text in texts)
    assert "other['<b>']" in texts
    assert "<script" not in to_svg(graph)


def test_it_stands_alone_and_knows_the_dark():
    text = to_svg(recorded.everything())
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text
    assert "url(" not in text


@SETTINGS
@hypothesis.given(graphs())
def test_random_graphs_are_valid_and_always_the_same(graph):
    text = to_svg(graph)
    ElementTree.fromstring(text.encode())
    assert to_svg(copy_graph(graph)) == text


def test_large_graphs_stay_small():
    layers = [fdl.Partial(parts.Layer, dim=3) for _ in range(5000)]
    assert len(to_svg(fdl.Config(recorded.Part, size=layers))) < 6000


def test_there_is_no_picture_of_a_value():
    with pytest.raises(RecordError) as caught:
        to_svg(3)
    assert (
        str(caught.value)
        == "only nodes have a picture, and this is of type int; give the path of a node"
    )


def _rows(card):
    return [(row.label, row.text) for row in card.rows]


def test_a_card_has_what_is_set():
    card = diagram_of(parts.experiment().optimizer).root
    assert (card.title, card.note, card.package) == ("Optimizer", "", "other")
    assert _rows(card) == [("learning_rate", ""), ("b2", "0.99")]
    (schedule,) = card.children()
    assert _rows(schedule) == [("peak #Rate", "0.001"), ("total_steps", "1000")]
    assert schedule.whole == "learning_rate: graph_toys.parts.Cosine"


def test_containers_of_nodes_are_rows_and_sharing_is_no_card():
    card = diagram_of(parts.experiment()).root
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
    card = diagram_of(graph).root
    assert [row.label for row in card.rows] == ["size[0…11]", "size[12]", "size[13…14]"]
    assert card.rows[0].card.note == "partial × 12"


def test_long_texts_are_cut():
    graph = fdl.Config(
        recorded.keywords, **{f"a{i}" * 20: "x" * 99 for i in range(40)}, z={"a": "b" * 99}
    )
    rows = diagram_of(graph).root.rows
    assert len(rows) == MOST_ROWS + 1
    assert (rows[-1].label, rows[-1].text) == ("…", "25 more")
    assert max(len(row.label + row.text) for row in rows) <= 56
    assert rows[0].whole.endswith("= '" + "x" * 99 + "'")
    graph = fdl.Config(recorded.keywords, z={"a": "b" * 99}, y=list(range(99)))
    assert _rows(diagram_of(graph).root) == [("y", "99 entries"), ("z", "1 entries")]


def test_labels_of_shared_constants_are_cut():
    graph = fdl.Config(recorded.keywords, **{"a" * 99: values.value(3, name="n")})
    (row,) = diagram_of(graph).root.rows
    assert (row.label, row.text) == ("a" * 25 + "…", "3")


@pytest.mark.parametrize("name", ["", "a", "a name of 20 letters", "x" * 200])
def test_the_lines_above_the_cards_are_inside_of_the_picture(name):
    root = ElementTree.fromstring(to_svg(fdl.Config(dict, a=1, **({"name": name} if name else {}))))
    title, summary, *_ = root.iter(f"{SVG}text")
    for line, letter in ((title, 18 * 0.6), (summary, 12 * 0.6)):
        right = float(line.get("x")) + letter * len(line.text)
        assert right <= float(root.get("width")), line.text


def test_constants():
    size, unnamed = values.value(256, name="size"), values.value(3)
    graph = fdl.Config(
        recorded.Part,
        size=size,
        rate=values.multiply(size, unnamed),
        other=[fdl.Config(parts.Layer), unnamed],
        extra=values.value(5),
    )
    diagram = diagram_of(graph)
    assert [(c.name, c.text) for c in diagram.constants] == [("size", "256"), ("", "3")]
    assert _rows(diagram.root)[:2] == [("size", "256"), ("rate", "size * 3 = 768")]
    assert diagram.root.rows[1].constants == diagram.constants
    assert diagram.root.rows[-1].constants == []


def test_rooms():
    from luthier import optim

    assert diagram_of(fdl.Config(optim.adamw)).root.package == "optim"


def _apart(a, b):
    return a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y


def _check(graph):
    placed = place(diagram_of(graph))
    boxes = [*placed.cards.values(), *placed.constants.values()]
    assert all(_apart(a, b) for a, b in itertools.combinations(boxes, 2))
    assert all(b.x >= 0 and b.right <= placed.width and b.bottom <= placed.height for b in boxes)
    for card, box in placed.cards.items():
        assert all(placed.cards[child].x > box.right for child in card.children())
    return placed


def test_nothing_overlaps():
    placed = _check(parts.experiment())
    assert len(placed.cards) == 12
    assert _check(recorded.everything()).constants


@SETTINGS
@hypothesis.given(graphs())
def test_nothing_overlaps_in_random_graphs(graph):
    _check(graph)


def test_rows_are_inside_of_their_cards():
    placed = place(diagram_of(recorded.everything()))
    for card, box in placed.cards.items():
        for row in card.rows:
            x, y = placed.rows[row]
            assert x == box.right
            assert box.y < y < box.bottom
