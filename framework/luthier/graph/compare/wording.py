"""Things of documents in words: on one line for people, and as plain JSON values."""

from __future__ import annotations

import json
import math
from typing import Any

from luthier.graph import values
from luthier.graph.compare.documents.things import CONSTANT, LEAF, OPERATIONS, Thing, children
from luthier.graph.record.plain import CLASS

# Records are data of anyone: numbers that arithmetic makes of them stay small.
_MOST_BITS = 4096
_LONGEST = 400
_BINDING = {f"{values.__name__}.{made.__name__}": how for made, how in values.OPERATIONS.items()}


def text_of(thing: Thing) -> str:
    """Return a thing on one line; a node by its class alone."""
    if thing.is_value_node:
        return _value_text(thing)
    if thing.is_node:
        return head(thing)
    if thing.kind == LEAF:
        return leaf_text(thing.data)
    if thing.kind in ("instance", "namedtuple"):
        fields = ", ".join(f"{part}={text_of(child)}" for part, child in thing.parts)
        return f"{thing.name}({fields})"
    if thing.kind == "dict":
        return f"{{{', '.join(f'{part!r}: {text_of(child)}' for part, child in thing.parts)}}}"
    texts = [text_of(child) for child in children(thing)]
    if thing.kind == "tuple":
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    return f"[{', '.join(texts)}]" if thing.kind == "list" else f"{{{', '.join(sorted(texts))}}}"


def full(thing: Thing) -> str:
    """Return a thing that has no other side on one line; a node with its arguments."""
    if not thing.is_node or thing.is_value_node:
        return text_of(thing)
    given = ", ".join(f"{part}={text_of(child)}" for part, child in thing.parts)
    return f"{head(thing)}({given})"


def head(thing: Thing) -> str:
    """Return the class of a node, with what kind of node it is; for a container, its type."""
    if thing.is_node:
        return thing.name if thing.kind == "config" else f"{thing.kind} {thing.name}".rstrip()
    return thing.name or thing.kind


def leaf_text(data: Any) -> str:
    """Return what `encode_leaf` wrote as people write it."""
    if not isinstance(data, dict):
        return repr(data)
    if "object" in data:
        return str(data["object"])
    if "enum" in data:
        cls = str(data["enum"]).rpartition(".")[2]
        return f"{cls}.{data['member']}" if "member" in data else f"{cls}({data.get('value')!r})"
    if "dtype" in data:
        return f"{data['dtype']}({leaf_text(data['value'])})" if "value" in data else data["dtype"]
    if "bytes" in data:
        return _bytes(data["bytes"])
    if "range" in data or "slice" in data:
        return _steps(data)
    if "partition_spec" in data:
        entries = [tuple(e) if isinstance(e, list) else e for e in data["partition_spec"]]
        return f"PartitionSpec({', '.join(map(repr, entries))})"
    if "ellipsis" in data:
        return "Ellipsis"
    return str(
        next((data[key] for key in ("name", "float", "complex", "path") if key in data), data)
    )


def _steps(data: Any) -> str:
    kind = "range" if "range" in data else "slice"
    given = list(data[kind]) if isinstance(data[kind], list) else [data[kind]]
    if kind == "range" and given[2:] == [1]:
        given = given[:2]
    return f"{kind}({', '.join(map(str, given))})"


def _bytes(written: Any) -> str:
    try:
        return repr(bytes.fromhex(written))
    except (TypeError, ValueError):  # a record can hold anything
        return repr(written)


def shared_name(thing: Thing) -> str:
    """Return what people call a constant; empty for one without a name, and for anything else."""
    name = thing.by_part.get("name") if thing.is_value_node and thing.name == CONSTANT else None
    return name.data if name is not None and isinstance(name.data, str) else ""


def _value_text(thing: Thing) -> str:
    known = value_of(thing)
    text = "?" if known is None else text_of(known)
    if thing.name == CONSTANT:
        name = shared_name(thing)
        return f"{text} (shared as {name})" if name else text
    return f"{_expression(thing, 0, {})} = {text}"


def _expression(thing: Thing, outer: int, known: dict[int, str]) -> str:
    """Return a value node as people write it; what is very long is cut."""
    if not thing.is_value_node:
        return text_of(thing)
    if thing.name == CONSTANT:
        inside = thing.by_part.get("value")
        return shared_name(thing) or ("?" if inside is None else _expression(inside, outer, known))
    symbol, binding = _BINDING[thing.name]
    if id(thing) not in known:
        inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
        sides = [thing.by_part.get(side) for side in ("left", "right")]
        texts = [
            "None" if side is None else _expression(side, of, known)
            for side, of in zip(sides, inner, strict=True)
        ]
        text = f"{texts[0]} {symbol} {texts[1]}"
        known[id(thing)] = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"({known[id(thing)]})" if binding < outer else known[id(thing)]


def value_of(thing: Thing) -> Thing | None:
    """Return the thing that a value node stands for, itself for others; None where it has none."""
    return _value_of(thing, {})


def _value_of(thing: Thing, known: dict[int, Thing | None]) -> Thing | None:
    if not thing.is_value_node:
        return thing
    if id(thing) not in known:
        if thing.name == CONSTANT:
            inside = thing.by_part.get("value")
            known[id(thing)] = None if inside is None else _value_of(inside, known)
        else:
            known[id(thing)] = _computed(thing, known)
    return known[id(thing)]


def _computed(thing: Thing, known: dict[int, Thing | None]) -> Thing | None:
    given = [thing.by_part.get(side) for side in ("left", "right")]
    sides = [None if side is None else _value_of(side, known) for side in given]
    numbers = [side.data for side in sides if side is not None and side.kind == LEAF]
    if len(numbers) < 2 or not all(isinstance(x, bool | int | float) for x in numbers):
        return _computed_live(thing)
    bits = [x.bit_length() if isinstance(x, int) else 64 for x in numbers]
    is_power = _BINDING[thing.name][0] == "**" and isinstance(numbers[1], int)
    if (bits[0] * max(int(numbers[1]), 1) if is_power else sum(bits)) > _MOST_BITS:
        return None
    try:
        result = OPERATIONS[thing.name](*numbers)
    except (ArithmeticError, ValueError, TypeError):
        return None
    if isinstance(result, complex):
        return Thing(LEAF, data={"complex": repr(result)})
    if isinstance(result, float) and not math.isfinite(result):
        return Thing(LEAF, data={"float": repr(result)})
    return Thing(LEAF, data=result)


def _computed_live(thing: Thing) -> Thing | None:
    """Return the value of arithmetic on more than numbers, where the graph itself is at hand."""
    if thing.live is None:
        return None
    try:
        return Thing(LEAF, data={"object": repr(values.evaluate(thing.live))})
    except Exception:  # an operand is missing or wrong, which validate tells
        return None


def plain(thing: Thing) -> Any:
    """Return a thing as a plain JSON value, like `record.plain.to_dict` without defaults."""
    if thing.is_value_node:
        known = value_of(thing)
        return None if known is None else plain(known)
    if thing.kind == LEAF:
        return plain_leaf(thing.data)
    if thing.is_node or thing.kind == "instance":
        return {CLASS: thing.name, **{str(part): plain(child) for part, child in thing.parts}}
    if thing.kind in ("dict", "namedtuple"):
        return {str(part): plain(child) for part, child in thing.parts}
    found = [plain(child) for child in children(thing)]
    return sorted(found, key=str) if thing.kind in ("set", "frozenset") else found


def plain_leaf(data: Any) -> Any:
    """Return what `encode_leaf` wrote as a plain JSON value."""
    if not isinstance(data, dict):
        return data
    if "partition_spec" in data:
        return data["partition_spec"]
    for key in ("name", "path", "value", "member", "dtype", "complex", "bytes"):
        if key in data:
            return data[key] if isinstance(data[key], str) else plain_leaf(data[key])
    return leaf_text(data)


def canonical(thing: Thing) -> str:
    """Return a text that two things share exactly when their content is equal."""
    return json.dumps(_canonical(thing))


def _canonical(thing: Thing) -> list[Any]:
    inside = [[repr(part), _canonical(child)] for part, child in thing.parts]
    if thing.kind == "dict":
        inside.sort(key=repr)
    return [repr(thing.content), repr(thing.tags), inside]
