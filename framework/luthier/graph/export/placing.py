"""Where the cards of a picture stand: a column for each depth, and no two bands overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from luthier.graph.export.cards import Card, Constant, Deck, Row

# In units of a picture; text is set in a face whose letters are all of one width.
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
class Placed:
    """A deck with a box for everything.

    Args:
      cards: The box of every card, parents first.
      rows: Where each row's middle is: the right edge of its card, and its height.
      constants: The box of every constant.
      width: The whole picture's width.
      height: Its height.
    """

    cards: dict[Card, Box]
    rows: dict[Row, tuple[float, float]]
    constants: dict[Constant, Box]
    width: float
    height: float


def place(deck: Deck) -> Placed:
    """Return where everything of a deck stands.

    Args:
      deck: The cards.
    """
    depths = dict(_depths(deck.root))
    bands = _bands(list(depths))
    columns = _columns(depths)
    boxes: dict[Card, Box] = {}
    tops = {deck.root: float(TOP)}
    for card, depth in depths.items():
        height, below = _height(card), _below(card, bands)
        x, width = columns[depth]
        top = tops[card]
        boxes[card] = Box(x, top + max(0.0, (below - height) / 2), width, height)
        top += max(0.0, (height - below) / 2)
        for child in card.children():
            tops[child] = top
            top += bands[child] + CARD_GAP
    rows = dict(_ports(boxes))
    right = max(box.right for box in boxes.values())
    constants = _pills(deck, rows, right + COLUMN_GAP)
    every = [*boxes.values(), *constants.values()]
    return Placed(
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
    """Return the height that each card takes with all that is below it."""
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


def _ports(boxes: dict[Card, Box]) -> Iterator[tuple[Row, tuple[float, float]]]:
    for card, box in boxes.items():
        for index, row in enumerate(card.rows):
            yield row, (box.right, box.y + HEADER + PADDING / 2 + (index + 0.5) * ROW)


def _pills(deck: Deck, rows: dict[Row, tuple[float, float]], x: float) -> dict[Constant, Box]:
    """Place the constants beside the cards, each near its users."""
    users: dict[Constant, list[float]] = {constant: [] for constant in deck.constants}
    for row, (_, y) in rows.items():
        for constant in row.constants:
            users[constant].append(y)
    wished = {c: sum(ys) / len(ys) - PILL / 2 if ys else TOP for c, ys in users.items()}
    boxes: dict[Constant, Box] = {}
    least = float(TOP)
    for constant in sorted(wished, key=lambda c: wished[c]):
        text = f"{constant.name} = {constant.text}" if constant.name else constant.text
        y = max(wished[constant], least)
        boxes[constant] = Box(x, y, round(len(text) * LETTER + 2 * PADDING + 6, 1), PILL)
        least = y + PILL + CARD_GAP
    return boxes
