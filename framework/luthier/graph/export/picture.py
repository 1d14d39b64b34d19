"""A graph as a picture: SVG that stands alone, for light and for dark backgrounds.

Each node is a card with its set arguments; a line leads from an argument to the node that it holds.
A dashed line leads to a node that stands elsewhere too, a dotted one to a constant that is shared.
"""

from __future__ import annotations

import colorsys
import html
from collections.abc import Iterator
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.export.cards import Card, Constant, Row, deal
from luthier.graph.export.placing import HEADER, LETTER, MARGIN, PADDING, Box, Placed, place
from luthier.graph.fingerprint import fingerprint
from luthier.graph.record.structure import is_node

# The hue of each room's colour, in degrees; what has none is grey.
HUES = {
    "program": 225,
    "models": 265,
    "layers": 205,
    "tasks": 320,
    "losses": 350,
    "metrics": 300,
    "optim": 25,
    "data": 140,
    "checkpoint": 175,
    "records": 190,
    "parallel": 50,
}
_STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.page { fill: #ffffff; } .ink { fill: #1f2328; } .faint { fill: #656d76; }
.title { font-size: 18px; font-weight: 600; } .head { font-weight: 600; }
.card { fill: #ffffff; stroke: #d0d7de; }
.held { fill: none; stroke: #9aa4af; stroke-width: 1.4; }
.same { fill: none; stroke: #cf222e; stroke-width: 1.4; stroke-dasharray: 6 4; }
.uses { fill: none; stroke: #bf8700; stroke-width: 1.2; stroke-dasharray: 2 3; opacity: 0.75; }
.pill { fill: #fff8c5; stroke: #bf8700; } .port { fill: #9aa4af; } .end { fill: #cf222e; }
"""
_DARK_STYLE = """\
.page { fill: #0d1117; } .ink { fill: #e6edf3; } .faint { fill: #8d96a0; }
.card { fill: #161b22; stroke: #30363d; }
.held { stroke: #6e7681; } .same { stroke: #ff7b72; } .uses { stroke: #d29922; }
.pill { fill: #2d2305; stroke: #d29922; } .port { fill: #6e7681; } .end { fill: #ff7b72; }
"""


def to_svg(graph: Any) -> str:
    """Return a picture of a graph.

    Args:
      graph: A node.

    Returns:
      An SVG document. It depends on the graph alone.

    Raises:
      RecordError: It is no node, or something in it cannot be named.
    """
    if not is_node(graph):
        what = f"only nodes have a picture, and this is of type {type(graph).__name__}"
        raise RecordError(Problem(what, remedy="give the path of a node"))
    made_of = fingerprint(graph)[:16]
    deck = deal(graph)
    placed = place(deck)
    name = graph.__arguments__.get("name")
    title = name if isinstance(name, str) else deck.root.title
    rooms = sorted({card.room for card in placed.cards})
    legend = list(_legend(rooms, placed))
    width = max(placed.width, 2 * MARGIN + LETTER * (len(title) + 40), legend[-1][0])
    size = f"{width:.0f} {placed.height:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'width="{width:.0f}" height="{placed.height:.0f}" role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>\n{_style(rooms)}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="ink title" x="{MARGIN}" y="38">{_text(title)}</text>',
        f'<text class="faint" x="{MARGIN}" y="58">{_count(len(placed.cards), "node")}, '
        f"{_count(len(placed.constants), 'shared constant')}, fingerprint {made_of}</text>",
        *(line for _, line in legend),
        *_edges(placed),
        *(line for card, box in placed.cards.items() for line in _card(card, box)),
        *(line for constant, box in placed.constants.items() for line in _pill(constant, box)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _style(rooms: list[str]) -> str:
    light = "".join(_tint(room, 0.93, 0.72) for room in rooms)
    dark = "".join(_tint(room, 0.2, 0.42) for room in rooms)
    query = "@media (prefers-color-scheme: dark) {\n"
    return f"{_STYLE}{light}{query}{_DARK_STYLE}{dark}}}\n"


def _tint(room: str, fill: float, stroke: float) -> str:
    return f".{room} {{ fill: {_colour(room, fill)}; stroke: {_colour(room, stroke)}; }}\n"


def _colour(room: str, lightness: float) -> str:
    saturation = 0.55 if room in HUES else 0.0
    parts = colorsys.hls_to_rgb(HUES.get(room, 0) / 360, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _legend(rooms: list[str], placed: Placed) -> Iterator[tuple[float, str]]:
    """Yield the entries below the title, each with its right end."""
    x = float(MARGIN)
    for room in rooms:
        box = f'<rect class="{room}" x="{x:g}" y="69" width="12" height="12" rx="3"/>'
        yield from _entry(x, 18, room, box)
        x = round(x + 18 + LETTER * len(room) + 18, 1)
    kinds = []
    if any(row.same for row in placed.rows):
        kinds.append(("same", "the same node"))
    if placed.constants:
        kinds.append(("uses", "a shared constant"))
    for kind, text in kinds:
        line = f'<path class="{kind}" d="M{x:g} 75h24"/>'
        yield from _entry(x, 30, text, line)
        x = round(x + 30 + LETTER * len(text) + 18, 1)


def _entry(x: float, indent: int, text: str, mark: str) -> Iterator[tuple[float, str]]:
    end = x + indent + LETTER * len(text) + MARGIN
    yield end, f'{mark}<text class="faint" x="{x + indent:g}" y="79">{_text(text)}</text>'


def _edges(placed: Placed) -> Iterator[str]:
    for row, (x, y) in placed.rows.items():
        if row.card is not None:
            box = placed.cards[row.card]
            yield _curve("held", x, y, box.x, box.y + HEADER / 2)
        if row.same is not None:
            yield from _back(x, y, placed.cards[row.same])
        for constant in row.constants:
            pill = placed.constants[constant]
            yield _curve("uses", x, y, pill.x, pill.y + pill.height / 2)


def _curve(kind: str, x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + to_x) / 2
    path = f"M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"
    return f'<path class="{kind}" d="{path}"/>'


def _back(x: float, y: float, box: Box) -> Iterator[str]:
    """Yield the line to a node that stands elsewhere: to its left side, or round the right ones."""
    to_y = box.y + HEADER / 2
    if box.x > x:
        yield _curve("same", x, y, box.x, to_y)
        yield f'<path class="end" d="M{box.x:g} {to_y:g}l-8 -4v8z"/>'
        return
    to_x = box.right
    out = max(x, to_x) + 36
    yield f'<path class="same" d="M{x:g} {y:g}C{out:g} {y:g} {out:g} {to_y:g} {to_x:g} {to_y:g}"/>'
    yield f'<path class="end" d="M{to_x:g} {to_y:g}l8 -4v8z"/>'


def _card(card: Card, box: Box) -> Iterator[str]:
    shape = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}"'
    yield f"<g><title>{_text(card.whole)}</title>"
    yield f'<rect class="card" {shape} height="{box.height:g}" rx="6"/>'
    yield f'<rect class="{card.room}" {shape} height="{HEADER}" rx="6"/>'
    left, right = box.x + PADDING, box.right - PADDING
    yield f'<text class="ink head" x="{left:g}" y="{box.y + 16:g}">{_text(card.title)}</text>'
    if card.note:
        yield _end(right, box.y + 16, "faint", card.note)
    yield "</g>"
    for index, row in enumerate(card.rows):
        yield from _row(row, left, right, box.y + HEADER + 18 + index * 18)


def _row(row: Row, left: float, right: float, y: float) -> Iterator[str]:
    text = _end(right, y, "ink", row.text) if row.text else ""
    if row.card is not None:
        text = f'<circle class="port" cx="{right + PADDING:g}" cy="{y - 4:g}" r="3"/>'
    label = f'<text class="faint" x="{left:g}" y="{y:g}">{_text(row.label)}</text>'
    yield f"<g><title>{_text(row.whole)}</title>{label}{text}</g>"


def _end(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="end">{_text(text)}</text>'


def _pill(constant: Constant, box: Box) -> Iterator[str]:
    text = f"{constant.name} = {constant.text}" if constant.name else constant.text
    shape = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="pill" {shape} rx="{box.height / 2:g}"/>'
    yield f'<text class="ink" x="{box.x + PADDING + 3:g}" y="{box.y + 17:g}">{_text(text)}</text>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(text: str) -> str:
    """Return text as XML can hold it: escaped, without characters that XML has not."""
    return html.escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
