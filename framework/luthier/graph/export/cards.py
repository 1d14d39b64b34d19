"""What a picture of a graph shows: a card for each node, a row for each argument that is set.

Containers that hold nodes are no cards: their entries are rows (`layers[0]`, `evaluations.test`).
Entries of a list that follow each other and are alike are one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from luthier.graph import values
from luthier.graph.compare.structures import Structures
from luthier.graph.paths import Part, join
from luthier.graph.public_names import display_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.structure import entries, is_node, shared
from luthier.graph.render import text_of

LABEL_LENGTH, TEXT_LENGTH = 26, 30
MOST_ROWS = 16
_OTHER = "other"


@dataclasses.dataclass(eq=False)
class Row:
    """One argument.

    Args:
      label: Its name, with the place inside of it.
      text: Its value, cut to what there is room for.
      whole: Its path and its value, in full.
      card: The node that it holds, where it is met first.
      same: The node that it holds, where that has been met elsewhere.
      constants: The constants that its value is made of.
    """

    label: str
    text: str
    whole: str
    card: Card | None = None
    same: Card | None = None
    constants: list[Constant] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Card:
    """One node.

    Args:
      title: The name of its class or function.
      note: What kind of node it is, and how often it is repeated.
      room: The room that its class is of; `other` outside of luthier.
      whole: Its path and the full name of its class.
      rows: Its set arguments.
    """

    title: str
    note: str
    room: str
    whole: str
    rows: list[Row] = dataclasses.field(default_factory=list)

    def children(self) -> list[Card]:
        """Return the cards that its rows hold."""
        return [row.card for row in self.rows if row.card is not None]


@dataclasses.dataclass(eq=False)
class Constant:
    """A constant that arguments share, with what people call it."""

    name: str
    text: str


@dataclasses.dataclass
class Deck:
    """All that a picture shows.

    Args:
      root: The card of the root.
      constants: The constants, in the order in which they are met.
    """

    root: Card
    constants: list[Constant]


def deal(graph: Any) -> Deck:
    """Return what the picture of a graph shows.

    Args:
      graph: A node.
    """
    dealer = _Dealer(graph)
    root = dealer.card(graph, "")
    return Deck(root, list(dealer.constants.values()))


class _Dealer:
    """Makes the cards of one graph; knows which nodes and constants it has met."""

    def __init__(self, graph: Any):
        self.shared = shared(graph)
        self.structures = Structures()
        self.cards: dict[int, Card] = {}
        self.constants: dict[int, Constant] = {}
        self.holders: dict[int, bool] = {}

    def card(self, node: Any, path: str, count: int = 1) -> Card:
        """Return the card of a node that is met for the first time."""
        name = display_name(node.__fn_or_cls__)
        kind = KINDS.get(type(node), "")
        notes = [kind if kind != "config" else "", f"× {count}" if count > 1 else ""]
        made = Card(
            title=_cut(name.rpartition(".")[2], LABEL_LENGTH),
            note=" ".join(filter(None, notes)),
            room=_room(name),
            whole=f"{path or 'the root'}: {name}",
        )
        self.cards[id(node)] = made
        for part, child in entries(node) or ():
            label = join("", part) + _tags(node, part)
            made.rows += self.rows(label, child, join(path, part))
        if len(made.rows) > MOST_ROWS + 1:
            made.rows = _fewer(made.rows)
        return made

    def rows(self, label: str, value: Any, path: str, count: int = 1) -> Iterator[Row]:
        """Yield the rows of an argument: one, or one for each entry of a container with nodes."""
        if values.is_value_node(value):
            text = _cut(text_of(value).partition(" (shared")[0], TEXT_LENGTH)
            yield Row(label, text, f"{path} = {text_of(value)}", constants=self.named(value))
        elif is_node(value):
            label = _cut(label, LABEL_LENGTH)
            if id(value) in self.cards:
                text = f"same × {count}" if count > 1 else "same"
                yield Row(label, text, f"{path}: shared", same=self.cards[id(value)])
            else:
                yield Row(label, "", path, card=self.card(value, path, count))
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
            yield Row(_cut(label, LABEL_LENGTH), _cut(text, TEXT_LENGTH), whole)

    def alike(self, container: Any) -> Iterator[tuple[Part, Any, int]]:
        """Yield (part, child, how many that follow each other are alike) of a container."""
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

    def named(self, value: Any) -> list[Constant]:
        """Return the constants in a value node that have a name or are used elsewhere too."""
        if not values.is_value_node(value):
            return []
        if not values.is_constant(value):
            return [found for operand in values.operands(value) for found in self.named(operand)]
        name = value.__arguments__.get("name", "")
        if not name and id(value) not in self.shared:
            return []
        if id(value) not in self.constants:
            text = text_of(value).partition(" (shared")[0]
            self.constants[id(value)] = Constant(_cut(name, LABEL_LENGTH), _cut(text, TEXT_LENGTH))
        return [self.constants[id(value)]]

    def holds_nodes(self, value: Any) -> bool:
        """Say whether a container holds nodes, however deep; each is looked at once."""
        inside = entries(value)
        if inside is None:
            return False
        if id(value) not in self.holders:
            self.holders[id(value)] = any(
                is_node(child) or self.holds_nodes(child) for _, child in inside
            )
        return self.holders[id(value)]


def _fewer(rows: list[Row]) -> list[Row]:
    """Return the first rows, and one that says how many there are more."""
    left = rows[MOST_ROWS:]
    names = ", ".join(row.label for row in left[:100])
    return [*rows[:MOST_ROWS], Row("…", f"{len(left)} more", names)]


def _room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if parts[0] == "luthier" and len(parts) > 2 else _OTHER


def _tags(node: Any, part: Part) -> str:
    tags = node.__argument_tags__.get(part)
    return "".join(f" #{tag.__name__}" for tag in sorted(tags, key=str)) if tags else ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
