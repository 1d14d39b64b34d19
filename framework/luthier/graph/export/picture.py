"""Export of a graph as SVG: a card for each node, in columns, with lines for sharing."""

from __future__ import annotations

import colorsys
import dataclasses
import html
from collections.abc import Iterator
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph import values
from luthier.graph.fingerprint import fingerprint
from luthier.graph.paths import Part, join
from luthier.graph.public_names import display_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.structure import Structures, entries, is_node, shared
from luthier.graph.render import text_of
from luthier.graph.values import Graph

# The contents of a diagram: a card for each node, a row for each argument that is set.
#
# Containers that hold nodes have no cards; their entries are rows (`layers[0]`,
# `evaluations.test`). Consecutive equal entries of a list are one row, so that a stack of 48 layers
# has one card.

LABEL_LENGTH, TEXT_LENGTH = 26, 30
MOST_ROWS = 16
_OTHER = "other"


@dataclasses.dataclass(eq=False)
class CardRow:
    """One argument.

    Args:
      label: Its name, with the place inside of it.
      text: Its value, cut to the length of a row.
      whole: Its path and its value, in full.
      card: The card of the node that it holds, where it is met first.
      same: The card of the node that it holds, where it has been met before.
      constants: The shared constants in its value.
    """

    label: str
    text: str
    whole: str
    card: Card | None = None
    same: Card | None = None
    constants: list[SharedConstant] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Card:
    """One node.

    Args:
      title: The name of its class or function.
      note: The kind of node, and how often it is repeated.
      package: The package of luthier that its class is in; `other` outside of luthier.
      whole: Its path and the full name of its class.
      rows: Its set arguments.
    """

    title: str
    note: str
    package: str
    whole: str
    rows: list[CardRow] = dataclasses.field(default_factory=list)

    def children(self) -> list[Card]:
        """Return the cards that its rows hold."""
        return [row.card for row in self.rows if row.card is not None]


@dataclasses.dataclass(eq=False)
class SharedConstant:
    """A constant that arguments share, with its name."""

    name: str
    text: str


@dataclasses.dataclass
class Diagram:
    """The contents of a picture.

    Args:
      root: The card of the root.
      constants: The constants, in the order in which they are met.
    """

    root: Card
    constants: list[SharedConstant]


def diagram_of(graph: Graph) -> Diagram:
    """Return the diagram of a graph.

    Args:
      graph: A node.
    """
    builder = _DiagramBuilder(graph)
    root = builder.card(graph, "")
    return Diagram(root, list(builder.constants.values()))


class _DiagramBuilder:
    """Makes the cards of one graph; keeps track of the nodes and constants that were met."""

    def __init__(self, graph: Graph):
        self.shared = shared(graph)
        self.structures = Structures()
        self.cards: dict[int, Card] = {}
        self.constants: dict[int, SharedConstant] = {}
        self.holders: dict[int, bool] = {}

    def card(self, node: Any, path: str, count: int = 1) -> Card:
        """Return the card of a node that is met for the first time."""
        name = display_name(node.__fn_or_cls__)
        kind = KINDS.get(type(node), "")
        notes = [kind if kind != "config" else "", f"× {count}" if count > 1 else ""]
        made = Card(
            title=_cut(name.rpartition(".")[2], LABEL_LENGTH),
            note=" ".join(filter(None, notes)),
            package=_package_of(name),
            whole=f"{path or 'the root'}: {name}",
        )
        self.cards[id(node)] = made
        for part, child in entries(node) or ():
            label = join("", part) + _tags(node, part)
            made.rows += self.rows(label, child, join(path, part))
        if len(made.rows) > MOST_ROWS + 1:
            made.rows = _fewer(made.rows)
        return made

    def rows(self, label: str, value: Any, path: str, count: int = 1) -> Iterator[CardRow]:
        """Yield the rows of an argument: one, or one for each entry of a container with nodes."""
        # `whole` is the tooltip: the row is cut to a fixed length, since nothing measures text.
        if values.is_value_node(value):
            # Without the name of a shared constant, to which a dotted line leads.
            text = _cut(text_of(value).partition(" (shared")[0], TEXT_LENGTH)
            whole = f"{path} = {text_of(value)}"
            yield CardRow(_cut(label, LABEL_LENGTH), text, whole, constants=self.named(value))
        elif is_node(value):
            label = _cut(label, LABEL_LENGTH)
            if id(value) in self.cards:
                text = f"same × {count}" if count > 1 else "same"
                yield CardRow(label, text, f"{path}: shared", same=self.cards[id(value)])
            else:
                yield CardRow(label, "", path, card=self.card(value, path, count))
        elif self.holds_nodes(value):
            for part, child, number in self.alike(value):
                place = join("", part)
                if number > 1:
                    place = f"[{part}…{int(part) + number - 1}]"
                dot = "" if place.startswith("[") else "."
                yield from self.rows(f"{label}{dot}{place}", child, join(path, part), number)
        else:
            text, whole = text_of(value), f"{path} = {text_of(value)}"
            if len(text) > TEXT_LENGTH and isinstance(value, dict | list | tuple):
                text = f"{len(value)} entries"
            yield CardRow(_cut(label, LABEL_LENGTH), _cut(text, TEXT_LENGTH), whole)

    def alike(self, container: Any) -> Iterator[tuple[Part, Any, int]]:
        """Yield (part, child, length of the run of equal entries) of a container."""
        inside = entries(container) or []
        if not isinstance(container, list | tuple):
            yield from ((part, child, 1) for part, child in inside)
            return
        first, count, number = None, 0, -1
        for part, child in inside:
            found = self.structures.number(child)
            if first is not None and found == number:
                count += 1
                continue
            if first is not None:
                yield (*first, count)
            first, count, number = (part, child), 1, found
        if first is not None:
            yield (*first, count)

    def named(self, value: Any) -> list[SharedConstant]:
        """Return the constants in a value node that have a name or several users."""
        if not values.is_value_node(value):
            return []
        if not values.is_constant(value):
            return [found for operand in values.operands(value) for found in self.named(operand)]
        name = value.__arguments__.get("name", "")
        if not name and id(value) not in self.shared:
            return []
        if id(value) not in self.constants:
            text = text_of(value).partition(" (shared")[0]
            self.constants[id(value)] = SharedConstant(
                _cut(name, LABEL_LENGTH), _cut(text, TEXT_LENGTH)
            )
        return [self.constants[id(value)]]

    def holds_nodes(self, value: Any) -> bool:
        """Return whether a container holds nodes at any depth; memoized by id."""
        inside = entries(value)
        if inside is None:
            return False
        if id(value) not in self.holders:
            self.holders[id(value)] = any(
                is_node(child) or self.holds_nodes(child) for _, child in inside
            )
        return self.holders[id(value)]


def _fewer(rows: list[CardRow]) -> list[CardRow]:
    """Return the first rows, and one with the number of the others."""
    left = rows[MOST_ROWS:]
    names = ", ".join(row.label for row in left[:100])
    return [*rows[:MOST_ROWS], CardRow("…", f"{len(left)} more", names)]


def _package_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if parts[0] == "luthier" and len(parts) > 2 else _OTHER


def _tags(node: Any, part: Part) -> str:
    tags = node.__argument_tags__.get(part)
    return "".join(f" #{tag.__name__}" for tag in sorted(tags, key=str)) if tags else ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# Layout of a diagram: a column for each depth. Each card has a horizontal band that is high enough
# for itself and for the bands of all its children, so that no two cards overlap; the card is
# centred in its band.

# In units of the picture. Text has no width before a browser renders it, so the face is monospaced
# and widths are counted in letters.
LETTER = 7.2
ROW, HEADER, PADDING = 18, 24, 10
COLUMN_GAP, CARD_GAP = 56, 14
MARGIN, TOP = 24, 108
PILL = 26


@dataclasses.dataclass
class Box:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclasses.dataclass
class PlacedDiagram:
    """A diagram with a box for everything.

    Args:
      cards: The box of every card, parents first.
      rows: The port of each row: the right edge of its card, and the middle of its height.
      constants: The box of every constant.
      width: The whole picture's width.
      height: Its height.
    """

    cards: dict[Card, Box]
    rows: dict[CardRow, tuple[float, float]]
    constants: dict[SharedConstant, Box]
    width: float
    height: float


def place(diagram: Diagram) -> PlacedDiagram:
    """Lay out a diagram.

    Args:
      diagram: The cards.
    """
    # Bands are added up from the leaves (`_bands`); then cards are placed from the root, and each
    # hands its children the tops of their bands. Iterative, since graphs may be deep.
    depths = dict(_depths(diagram.root))
    bands = _bands(list(depths))
    columns = _columns(depths)
    boxes: dict[Card, Box] = {}
    tops = {diagram.root: float(TOP)}
    for card, depth in depths.items():
        height, below = _height(card), _below(card, bands)
        x, width = columns[depth]
        # Whichever is taller, the card or its children, has the other centred on it.
        top = tops[card]
        boxes[card] = Box(x, top + max(0.0, (below - height) / 2), width, height)
        top += max(0.0, (height - below) / 2)
        for child in card.children():
            tops[child] = top
            top += bands[child] + CARD_GAP
    rows = dict(_ports(boxes))
    right = max(box.right for box in boxes.values())
    constants = _pills(diagram, rows, right + COLUMN_GAP)
    every = [*boxes.values(), *constants.values()]
    return PlacedDiagram(
        boxes,
        rows,
        constants,
        max(box.right for box in every) + MARGIN,
        max(box.bottom for box in every) + MARGIN,
    )


def _depths(root: Card) -> Iterator[tuple[Card, int]]:
    """Yield every card with its depth, parents first, in the order of their rows."""
    pending = [(root, 0)]
    while pending:
        card, depth = pending.pop()
        yield card, depth
        pending += [(child, depth + 1) for child in reversed(card.children())]


def _bands(cards: list[Card]) -> dict[Card, float]:
    """Return the height of each card's band: its own, or that of all bands below it."""
    bands: dict[Card, float] = {}
    for card in reversed(cards):
        bands[card] = max(_height(card), _below(card, bands))
    return bands


def _below(card: Card, bands: dict[Card, float]) -> float:
    children = card.children()
    return sum(bands[child] for child in children) + CARD_GAP * max(len(children) - 1, 0)


def _height(card: Card) -> float:
    return HEADER + (len(card.rows) * ROW + PADDING if card.rows else 0)


def _width(card: Card) -> float:
    head = len(card.title) + (len(card.note) + 2 if card.note else 0)
    longest = max((len(row.label) + len(row.text) + 2 for row in card.rows), default=0)
    return round(max(head, longest, 10) * LETTER + 2 * PADDING, 1)


def _columns(depths: dict[Card, int]) -> list[tuple[float, float]]:
    """Return the left edge and the width of every column."""
    widths: list[float] = []
    for card, depth in depths.items():
        if depth == len(widths):
            widths.append(0.0)
        widths[depth] = max(widths[depth], _width(card))
    found, x = [], float(MARGIN)
    for width in widths:
        found.append((x, width))
        x += width + COLUMN_GAP
    return found


def _ports(boxes: dict[Card, Box]) -> Iterator[tuple[CardRow, tuple[float, float]]]:
    for card, box in boxes.items():
        for index, row in enumerate(card.rows):
            yield row, (box.right, box.y + HEADER + PADDING / 2 + (index + 0.5) * ROW)


def _pills(
    diagram: Diagram, rows: dict[CardRow, tuple[float, float]], x: float
) -> dict[SharedConstant, Box]:
    """Place the constants beside the cards, each near its users."""
    # Each constant wants the mean height of its users. In that order, each is pushed down only as
    # far as the one before it requires.
    users: dict[SharedConstant, list[float]] = {constant: [] for constant in diagram.constants}
    for row, (_, y) in rows.items():
        for constant in row.constants:
            users[constant].append(y)
    wished = {c: sum(ys) / len(ys) - PILL / 2 if ys else TOP for c, ys in users.items()}
    boxes: dict[SharedConstant, Box] = {}
    least = float(TOP)
    for constant in sorted(wished, key=lambda c: wished[c]):
        text = f"{constant.name} = {constant.text}" if constant.name else constant.text
        y = max(wished[constant], least)
        boxes[constant] = Box(x, y, round(len(text) * LETTER + 2 * PADDING + 6, 1), PILL)
        least = y + PILL + CARD_GAP
    return boxes


# The SVG: self-contained, for light and for dark backgrounds.
#
# A line leads from an argument to the node that it holds. A dashed line leads to a node that other
# places share, a dotted one to a shared constant.

# The hue of each package's colour, in degrees; other packages are grey.
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


def to_svg(graph: Graph) -> str:
    """Return a picture of a graph.

    Args:
      graph: A node.

    Returns:
      An SVG document. It depends on the graph alone.

    Raises:
      RecordError: It is not a node, or something in it cannot be named.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.to_svg(fdl.Config(optim.adamw, learning_rate=3e-4))[:4]
      '<svg'
    """
    if not is_node(graph):
        what = f"only nodes have a picture, and this is of type {type(graph).__name__}"
        raise RecordError(Problem(what, remedy="give the path of a node"))
    # No ids, dates or random parts: the same graph gives the same bytes, so that pictures can be
    # kept in a repository and compared.
    made_of = fingerprint(graph)[:16]
    diagram = diagram_of(graph)
    placed = place(diagram)
    name = graph.__arguments__.get("name")
    title = name if isinstance(name, str) else diagram.root.title
    packages = sorted({card.package for card in placed.cards})
    legend = list(_legend(packages, placed))
    summary = (
        f"{_count(len(placed.cards), 'node')}, "
        f"{_count(len(placed.constants), 'shared constant')}, fingerprint {made_of}"
    )
    # The lines above the cards may be wider than these. `LETTER` is for the 12 px of most text, and
    # a title has 18 px.
    letters = max(18 / 12 * len(title), len(summary))
    width = max(placed.width, 2 * MARGIN + LETTER * letters, legend[-1][0])
    size = f"{width:.0f} {placed.height:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'width="{width:.0f}" height="{placed.height:.0f}" role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>\n{_style(packages)}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="ink title" x="{MARGIN}" y="38">{_text(title)}</text>',
        f'<text class="faint" x="{MARGIN}" y="58">{_text(summary)}</text>',
        *(line for _, line in legend),
        *_edges(placed),
        *(line for card, box in placed.cards.items() for line in _card(card, box)),
        *(line for constant, box in placed.constants.items() for line in _pill(constant, box)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _style(packages: list[str]) -> str:
    light = "".join(_tint(package, 0.93, 0.72) for package in packages)
    dark = "".join(_tint(package, 0.2, 0.42) for package in packages)
    query = "@media (prefers-color-scheme: dark) {\n"
    return f"{_STYLE}{light}{query}{_DARK_STYLE}{dark}}}\n"


def _tint(package: str, fill: float, stroke: float) -> str:
    return f".{package} {{ fill: {_colour(package, fill)}; stroke: {_colour(package, stroke)}; }}\n"


def _colour(package: str, lightness: float) -> str:
    saturation = 0.55 if package in HUES else 0.0
    parts = colorsys.hls_to_rgb(HUES.get(package, 0) / 360, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _legend(packages: list[str], placed: PlacedDiagram) -> Iterator[tuple[float, str]]:
    """Yield the entries below the title, each with its right end."""
    x = float(MARGIN)
    for package in packages:
        box = f'<rect class="{package}" x="{x:g}" y="69" width="12" height="12" rx="3"/>'
        yield from _entry(x, 18, package, box)
        x = round(x + 18 + LETTER * len(package) + 18, 1)
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


def _edges(placed: PlacedDiagram) -> Iterator[str]:
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
    """Yield the line to a shared node: to its left side, or in a bow to its right side."""
    # Where the shared node's card is in this column or to the left, a straight curve would cross
    # the cards between.
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
    yield f'<rect class="{card.package}" {shape} height="{HEADER}" rx="6"/>'
    left, right = box.x + PADDING, box.right - PADDING
    yield f'<text class="ink head" x="{left:g}" y="{box.y + 16:g}">{_text(card.title)}</text>'
    if card.note:
        yield _end(right, box.y + 16, "faint", card.note)
    yield "</g>"
    for index, row in enumerate(card.rows):
        yield from _row(row, left, right, box.y + HEADER + 18 + index * 18)


def _row(row: CardRow, left: float, right: float, y: float) -> Iterator[str]:
    text = _end(right, y, "ink", row.text) if row.text else ""
    if row.card is not None:
        text = f'<circle class="port" cx="{right + PADDING:g}" cy="{y - 4:g}" r="3"/>'
    label = f'<text class="faint" x="{left:g}" y="{y:g}">{_text(row.label)}</text>'
    yield f"<g><title>{_text(row.whole)}</title>{label}{text}</g>"


def _end(x: float, y: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="end">{_text(text)}</text>'


def _pill(constant: SharedConstant, box: Box) -> Iterator[str]:
    text = f"{constant.name} = {constant.text}" if constant.name else constant.text
    shape = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="pill" {shape} rx="{box.height / 2:g}"/>'
    yield f'<text class="ink" x="{box.x + PADDING + 3:g}" y="{box.y + 17:g}">{_text(text)}</text>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(text: str) -> str:
    """Return text for XML: escaped, with characters that XML does not allow replaced."""
    return html.escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
