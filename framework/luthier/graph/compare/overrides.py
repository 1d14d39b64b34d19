"""A comparison as overrides that make the second graph of the first, as far as they can."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, UnknownReference
from luthier.graph import signatures
from luthier.graph.compare.changes import Unsayable
from luthier.graph.compare.differ import Comparison, Differ
from luthier.graph.compare.document import Document, document
from luthier.graph.compare.edits import UNWRITABLE, VARIABLE, Edit, Edits
from luthier.graph.compare.things import ConfigNode
from luthier.graph.export.names import find
from luthier.graph.grammar.expressions import kind_of
from luthier.graph.grammar.names import DTYPES
from luthier.graph.overrides import apply
from luthier.graph.paths import format_path, join, parse_path
from luthier.graph.public_names import is_allowed
from luthier.graph.record.leaves import is_leaf
from luthier.graph.values import OPERATIONS, Graph

# What is new, as text of the override grammar.

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


# A comparison as words of the override grammar, as far as it can say them.
#
# Where both sides are live graphs, every word is tried, and what it does not make is said to have
# no word. For records, words follow the rules of the grammar, and what depends on classes that were
# not imported is left out.


@dataclasses.dataclass(frozen=True)
class Words:
    """What makes the second graph of the first on the command line.

    Args:
      all_words: The words, in an order in which they can be applied.
      unsayable: What they do not make.
      words: The word that makes a change, by the number of the change.
      reasons: Why no word makes a change, by the number of the change.
    """

    all_words: tuple[str, ...]
    unsayable: tuple[Unsayable, ...]
    words: Mapping[int, str]
    reasons: Mapping[int, str]


@dataclasses.dataclass
class _Said:
    """An edit with its override, or the reason why it has none; with both where it has a part."""

    path: str
    word: str = ""
    reason: str = ""


def overrides_of(comparison: Comparison, packages: Sequence[str] = ()) -> Words:
    """Return the words that make the second graph of the first, and what they do not make.

    Args:
      comparison: What `compare` returned.
      packages: The user's own packages, which words may name (`[tool.luthier] packages`).
    """
    said = _Speaking(comparison, tuple(packages)).said()
    if comparison.a.graph is not None and comparison.b.graph is not None:
        _try(said, comparison, packages)
    words: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for index, draft in enumerate(comparison.differ.drafts):
        paths = (draft.path_a, draft.path_b)
        paths = paths[::-1] if draft.kind in ("moved", "added") else paths
        found = _about(paths[0], said) or _about(paths[1], said)
        if draft.kind == "default":
            reasons[index] = "the graphs agree; the default is another"
        elif found is None:
            reasons[index] = "the words of other changes make it"
        elif found.word:
            words[index] = found.word
        else:
            reasons[index] = found.reason
    return Words(
        tuple(one.word for one in said if one.word),
        tuple(Unsayable(one.path, one.reason) for one in said if one.reason),
        words,
        reasons,
    )


def _about(path: str, said: list[_Said]) -> _Said | None:
    """Return what is said about a path: of the path itself, or the nearest place above it."""
    found = [one for one in said if path == one.path]
    above = [one for one in said if path.startswith((f"{one.path}.", f"{one.path}["))]
    everything = [one for one in said if not one.path]
    return next(iter([*found, *sorted(above, key=lambda one: -len(one.path)), *everything]), None)


class _Speaking:
    """Says the edits of one comparison."""

    def __init__(self, comparison: Comparison, packages: tuple[str, ...]):
        self.edits = Edits(comparison)
        self.packages = packages
        self.comparison = comparison
        self.targets = [self._parts(edit) for edit in self.edits.edits]

    def said(self) -> list[_Said]:
        """Return the edits in their order, each with its word or the reason why it has none."""
        if not self.edits.is_root_kept:
            return [_Said("", reason="no word replaces the whole graph")]
        said = []
        for edit, parts in zip(self.edits.edits, self.targets, strict=True):
            one = _Said(format_path(parts))
            try:
                one.word = self._word(edit, parts, one.path)
            except Unspeakable as error:
                one.reason = str(error)
                self._say_value(edit, one)
            said.append(one)
        return said

    def _say_value(self, edit: Edit, one: _Said) -> None:
        """Give an edit that makes a shared value the override that sets the value alone.

        The value is what matters most: a diff that left it out would not make the second run.
        """
        if edit.form != "set" or edit.tag or isinstance(edit.part, slice):
            return
        around = (edit.thing, *self._around(edit.thing))
        if any(thing.is_value_node or thing.kind == "instance" for thing in around):
            return
        new = self.edits.differ.kept_a[id(edit.thing)].by_part.get(edit.part)
        data = None if new is None else self.edits.plain(new)
        if data is None:
            return
        old = edit.thing.by_part.get(edit.part)
        try:
            text = self._speller(edit, old).value(data)
            written = word_path(one.path, self._parts(edit))
        except Unspeakable:
            return
        one.word = f"{written}{':=' if old is not None and old.is_node else '='}{text}"
        one.reason = "the override sets the value alone: that several places share it is lost"

    def _parts(self, edit: Edit) -> tuple[Any, ...]:
        """Return the parts of the place that an edit is about; of a constant, its own place."""
        owner = self.edits.parts(edit.thing)
        if edit.thing.is_value_node or isinstance(edit.part, slice) or edit.form == "insert":
            return owner
        return (*owner, edit.part) if edit.form == "set" or edit.thing.kind != "list" else owner

    def _word(self, edit: Edit, parts: tuple[Any, ...], path: str) -> str:
        if edit.tag:
            raise Unspeakable("the grammar has no word for tags")
        around = self._around(edit.thing)
        if any(thing.is_value_node for thing in around):
            raise Unspeakable("no path leads into the arithmetic of a value")
        if any(thing.kind == "instance" for thing in around):
            raise Unspeakable("no word changes what a dataclass instance holds")
        if edit.thing.is_value_node:
            return self._constant_word(edit, parts, path)
        written = word_path(path, parts)
        if edit.thing.kind == "list" and (edit.form != "set" or isinstance(edit.part, slice)):
            return f"{written}={self._list_text(edit)}"
        old = edit.thing.by_part.get(edit.part)
        if edit.form == "del":
            self._check_reset(edit)
            return f"reset:{written}"
        if old is None and edit.thing.is_node:
            self._check_argument(edit)
        if old is None and not edit.thing.is_node and not isinstance(edit.part, str):
            raise Unspeakable("only text can be a new key")
        text = self._text(edit, old)
        _check_path_value(edit.data, old)
        is_plain = old is None or not (old.is_node or text.startswith(("alias:", "ref:")))
        replaces = not is_plain or (old is None and not edit.thing.is_node)
        return f"{written}{':=' if replaces else '='}{text}"

    def _text(self, edit: Edit, old: ConfigNode | None) -> str:
        """Return the text of a new value; written out as new where it cannot be taken over."""
        speller = self._speller(edit, old)
        try:
            return speller.value(edit.data)
        except Unspeakable:
            new = self.edits.differ.kept_a[id(edit.thing)].by_part[edit.part]
            data = self.edits.fresh(new)
            if data is None:
                raise
            return speller.value(data)

    def _constant_word(self, edit: Edit, parts: tuple[Any, ...], path: str) -> str:
        is_value = edit.form == "set" and edit.part == "value" and "name" not in edit.thing.tags
        if not is_value or "right" in edit.thing.by_part:
            raise Unspeakable("only the value of a constant can be set")
        text = self._speller(edit, None).value(edit.data)
        return f"{word_path(path, parts)}={text}"

    def _list_text(self, edit: Edit) -> str:
        """Return a whole list, for which the grammar has words where it has none for elements."""
        data = self.edits.fresh(self.edits.differ.kept_a[id(edit.thing)])
        if data is None:
            raise Unspeakable("no word inserts or removes an element, and the list shares some")
        return self._speller(edit, None).value(data)

    def _around(self, thing: ConfigNode) -> list[ConfigNode]:
        found = []
        while id(thing) in self.edits.above:
            thing, _ = self.edits.above[id(thing)]
            found.append(thing)
        return found

    def _check_reset(self, edit: Edit) -> None:
        if not edit.thing.is_node:
            if not isinstance(edit.part, str):
                raise Unspeakable("only a key that is text can be taken out of a dict")
            return
        known = self.comparison.a.defaults(edit.thing)
        if edit.thing.live is not None:
            taken = signatures.arguments(edit.thing.live.__fn_or_cls__)
            if edit.part in taken.names and edit.part not in taken.defaults:
                raise Unspeakable("has no default to reset to")
        elif known is not None and edit.part not in known and not self._default_in_b(edit):
            raise Unspeakable("has no default that is known")

    def _default_in_b(self, edit: Edit) -> bool:
        known = self.comparison.b.defaults(self.edits.differ.kept_a[id(edit.thing)])
        return known is None or edit.part in known

    def _check_argument(self, edit: Edit) -> None:
        if edit.thing.live is None:
            return
        taken = signatures.arguments(edit.thing.live.__fn_or_cls__)
        if edit.part not in taken.names:
            raise Unspeakable("no word adds a keyword that the signature does not name")

    def _speller(self, edit: Edit, old: ConfigNode | None) -> Speller:
        names = [thing.name for thing in (edit.thing, old) if thing is not None and thing.name]
        packages = (*self.packages, *(name.split(".")[0] for name in names))
        return Speller(packages, self._place, self._kind)

    def _place(self, number: int) -> str:
        """Return what says that a value is what stands in another place."""
        thing = self.edits.captured[number]
        parts = self.edits.parts(thing)
        if not thing.is_node:
            raise Unspeakable(f"no word shares a {thing.kind}")
        if any(above.is_value_node for above in self._around(thing)):
            raise Unspeakable("no path leads into the arithmetic of a value")
        if any(parts[: len(target)] == target for target in self.targets):
            raise Unspeakable("what it is the same as stands in another place by then")
        path = word_path(format_path(parts), parts)
        return f"ref:{path}" if thing.is_value_node else f"alias:{path}"

    def _kind(self, name: str, given: Mapping[str, Any]) -> str | None:
        """Return the kind of node that a call inside of a call makes."""
        if not self.comparison.b.is_live:
            return "config" if not name.startswith(("luthier.layers", "luthier.models")) else None
        made = kind_of(find(name), dict.fromkeys(given), signatures.UNSET)
        return made.__name__.lower()


def _check_path_value(data: Any, old: ConfigNode | None) -> None:
    """Refuse a path of a file system where the grammar might read text."""
    is_path = isinstance(data, dict) and "path" in data and VARIABLE not in data
    was_path = old is not None and isinstance(old.data, dict) and "path" in old.data
    if is_path and not was_path:
        raise Unspeakable("the grammar would read the path as text here")


def _try(said: list[_Said], comparison: Comparison, packages: Sequence[str]) -> None:
    """Take back the words that do not make what they are for."""
    made = _apply_possible(comparison.a.graph, [one for one in said if one.word], packages)
    while any(one.word for one in said):
        differ = Differ(document(made), comparison.b)
        differ.run()
        left = [draft for draft in differ.drafts if draft.kind != "tags"]
        # A shared thing is changed by its first path, and may be met by another one only, once the
        # first is gone.
        paths = [path for draft in left for path in _both_paths(draft.path_a, comparison.a)]
        wrong = [one for one in (_about(path, said) for path in paths) if one is not None]
        wrong = [one for one in wrong if one.word and not one.reason]
        if not wrong:
            return
        for one in wrong:
            one.word, one.reason = "", "the grammar reads it as another value here"
        made = apply(comparison.a.graph, [one.word for one in said if one.word], packages=packages)


def _both_paths(path: str, document: Document) -> tuple[str, ...]:
    """Return a path, and how it is written by the first places of what is shared on its way."""
    thing: ConfigNode | None = document.root
    first = ""
    for part in parse_path(path):
        if thing is not None and thing.is_shared:
            first = document.first_paths.get(id(thing), first)
        first = join(first, part)
        thing = None if thing is None else thing.by_part.get(part)
    return (path,) if first == path else (path, first)


def _apply_possible(graph: Graph, said: list[_Said], packages: Sequence[str]) -> Any:
    """Apply the words that can be applied, and take the others back.

    All are tried at once, and only those that fail in halves: applying copies the graph.
    """
    if not said:
        return graph
    try:
        return apply(graph, [one.word for one in said], packages=packages)
    except BadInput as error:
        if len(said) == 1:
            said[0].word, said[0].reason = "", error.problems[0].what
            return graph
    half = len(said) // 2
    return _apply_possible(_apply_possible(graph, said[:half], packages), said[half:], packages)
