"""What is new, as text of the override grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from luthier.errors import UnknownReference
from luthier.graph.compare.making.edits import UNWRITABLE, VARIABLE
from luthier.graph.grammar.names import DTYPES
from luthier.graph.paths import parse_path
from luthier.graph.public_names import is_allowed
from luthier.graph.record.leaves import is_leaf
from luthier.graph.values import OPERATIONS

_OPERATIONS = {f"{made.__module__}.{made.__name__}": how for made, how in OPERATIONS.items()}
_CONSTANT = "luthier.graph.values.constant"
_DTYPE = "jax.numpy."


class Unspeakable(Exception):
    """The grammar has no word for something; the message says for what."""


class Speller:
    """Spells what is new.

    Args:
      packages: Packages that a value may name at the place, beside those that every value may.
      place: Returns the path of a part of the first graph, by its number; raises `Unspeakable`.
      kinds: Returns the kind of node that a call inside of a call makes; None where not known.
    """

    def __init__(
        self,
        packages: tuple[str, ...],
        place: Callable[[int], str],
        kinds: Callable[[str, Mapping[str, Any]], str | None],
    ):
        self._packages, self._place, self._kinds = packages, place, kinds

    def value(self, data: Any) -> str:
        """Return the text behind the operator of a word.

        Raises:
          Unspeakable: The grammar cannot say it.
        """
        if isinstance(data, dict):
            if VARIABLE in data:
                return self._place(data[VARIABLE])
            for kind in ("config", "partial"):
                if kind in data and data[kind] in _OPERATIONS:
                    return f"ref:{self._arithmetic(data, 0)}"
                if kind in data:
                    return f"{kind}:{self._call(data, kind)}"
        return self._inside(data)

    def _inside(self, data: Any) -> str:
        if isinstance(data, list):
            return f"[{', '.join(map(self._inside, data))}]"
        if not isinstance(data, dict):
            return repr(data)
        if VARIABLE in data:
            raise Unspeakable("only a whole value can be what stands in another place")
        if UNWRITABLE in data:
            raise Unspeakable(data[UNWRITABLE])
        if "id" in data or "ref" in data:
            raise Unspeakable("what is new in several places cannot be shared by words")
        for kind in ("config", "partial"):
            if kind in data:
                return self._nested(data, kind)
        if "list" in data:
            return self._inside(data["list"])
        if "tuple" in data:
            texts = list(map(self._inside, data["tuple"]))
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        if "dict" in data:
            return self._dict(data["dict"])
        return self._leaf(data)

    def _leaf(self, data: dict[str, Any]) -> str:
        if "float" in data:
            return {"inf": "1e999", "-inf": "-1e999"}.get(data["float"], "1e999-1e999")
        if "name" in data:
            return self._name(data["name"])
        if "enum" in data and "member" in data:
            return f"{self._name(data['enum'])}.{data['member']}"
        if "path" in data and data.get("kind") == "Path":
            return repr(data["path"])
        what = next((key for key in data if is_leaf({key: 0})), "")
        what = what or next((key for key in data), "")
        said = _SAID.get(what, what.replace("_", " "))
        raise Unspeakable(f"the grammar cannot write {said}")

    def _name(self, name: str) -> str:
        short = name.removeprefix(_DTYPE)
        if name.startswith(_DTYPE) and DTYPES.get(short) == short:
            return short
        if name.startswith("builtins.") or not is_allowed(name, self._packages):
            raise Unspeakable(f"a value may not name {name} here")
        return name

    def _dict(self, inside: Any) -> str:
        pairs = list(inside.items()) if isinstance(inside, dict) else inside
        for key, _ in pairs:
            if type(key) not in (str, int):
                raise Unspeakable("only text and whole numbers can be keys in a value")
        return f"{{{', '.join(f'{key!r}: {self._inside(child)}' for key, child in pairs)}}}"

    def _nested(self, data: dict[str, Any], kind: str) -> str:
        if data[kind] in _OPERATIONS:
            raise Unspeakable("only a whole value can be arithmetic that stays live")
        made = self._kinds(data[kind], data["arguments"])
        if made != kind:
            raise Unspeakable(f"a call of {data[kind]} inside of a value need not make a {kind}")
        return self._call(data, kind)

    def _call(self, data: dict[str, Any], kind: str) -> str:
        if "id" in data:
            raise Unspeakable("what is new in several places cannot be shared by words")
        if data.get("tags"):
            raise Unspeakable("the grammar has no word for tags")
        if data[kind] == _CONSTANT:
            raise Unspeakable("a new constant that places can share has no word; see ref:")
        given = data["arguments"]
        for part in given:
            if not part.isidentifier():
                raise Unspeakable(f"{part!r} cannot be written as the name of an argument")
        written = [f"{part}={self._inside(child)}" for part, child in given.items()]
        return f"{self._name(data[kind])}({', '.join(written)})"

    def _arithmetic(self, data: Any, outer: int) -> str:
        if not isinstance(data, dict):
            if isinstance(data, int | float) and not isinstance(data, bool) and data >= 0:
                return repr(data)
            raise Unspeakable("arithmetic that stays live works on numbers without a sign")
        if VARIABLE in data:
            return self._place(data[VARIABLE]).removeprefix("ref:")
        if data.get("config") not in _OPERATIONS or "id" in data or data.get("tags"):
            raise Unspeakable("a new constant that places can share has no word; see ref:")
        symbol, binding = _OPERATIONS[data["config"]]
        inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
        sides = [data["arguments"].get(side) for side in ("left", "right")]
        left, right = (self._arithmetic(s, of) for s, of in zip(sides, inner, strict=True))
        text = f"{left} {symbol} {right}"
        return f"({text})" if binding < outer else text


_SAID = {
    "object": "an object",
    "complex": "a complex number",
    "bytes": "bytes",
    "set": "a set",
    "frozenset": "a set",
    "instance": "an instance of a dataclass; only nodes",
    "namedtuple": "a named tuple",
    "tagged": "a tagged value",
    "factory": "a factory",
    "dtype": "a dtype that is no class",
    "enum": "several members of an enum at once",
    "path": "a path of another system",
    "float": "a number that is not finite",
}


def word_path(path: str, parts: tuple[Any, ...]) -> str:
    """Return a path as a word can begin with it.

    Args:
      path: The path, written out.
      parts: Its parts.

    Raises:
      Unspeakable: The grammar would read it as another one.
    """
    try:
        is_read = parse_path(path) == parts and bool(parts)
    except UnknownReference:
        is_read = False
    if not is_read or any(sign in path for sign in "*=\n") or path.endswith("~"):
        raise Unspeakable(f"no word can begin with {path or 'the root'}")
    return path
