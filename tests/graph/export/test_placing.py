from __future__ import annotations

import itertools

import hypothesis
from graph_toys import parts, recorded
from graph_toys.random_graphs import SETTINGS, graphs

from luthier.graph.export.picture import deal, place


def _apart(a, b):
    return a.right <= b.x or b.right <= a.x or a.bottom <= b.y or b.bottom <= a.y


def _check(graph):
    placed = place(deal(graph))
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
    placed = place(deal(recorded.everything()))
    for card, box in placed.cards.items():
        for row in card.rows:
            x, y = placed.rows[row]
            assert x == box.right
            assert box.y < y < box.bottom
