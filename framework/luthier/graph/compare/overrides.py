"""Command-line overrides that turn the first graph of a comparison into the second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, UnknownReference
from luthier.graph import signatures
from luthier.graph.compare.changes import NoOverride
from luthier.graph.compare.differ import Comparison, Differ
from luthier.graph.compare.document import Document, document
from luthier.graph.compare.edits import UNWRITABLE, VARIABLE, Edit, Edits
from luthier.graph.compare.nodes import ConfigNode
from luthier.graph.export.names import find
from luthier.graph.grammar.expressions import kind_of
from luthier.graph.grammar.names import DTYPES
from luthier.graph.grammar.types import element
from luthier.graph.overrides import apply
from luthier.graph.paths import format_path, join, parse_path
from luthier.graph.public_names import is_allowed
from luthier.graph.record.leaves import is_leaf
from luthier.graph.values import OPERATIONS, Graph

# Serializer of new values: records (JSON) to the override grammar.
_OPERATIONS = {f"{made.__module__}.{made.__name__}": how for made, how in OPERATIONS.items()}
_CONSTANT = "luthier.graph.values.constant"
_DTYPE = "jax.numpy."


class Inexpressible(Exception):
    """The override grammar cannot express a change; the message is the reason."""


class Speller:
    """Serializer of new values as text of the override grammar.

    Args:
      packages: Packages whose names the value may use, beside those that every value may use.
      place: Returns the path of a part of the first graph, by its number; raises `Inexpressible`.
      kinds: Returns the kind of node that a nested call makes, from its name, its arguments and the
        annotation of its place; None where it is not known.
      hints: Returns the annotations of the arguments of a class or function.
    """

    def __init__(
        self,
        packages: tuple[str, ...],
        place: Callable[[int], str],
        kinds: Callable[[str, Mapping[str, Any], Any], str | None],
        hints: Callable[[str], Mapping[str, Any]],
    ):
        self._packages, self._place = packages, place
        self._kinds, self._hints = kinds, hints

    def value(self, data: Any) -> str:
        """Return the text behind the operator of an override.

        Args:
          data: The JSON of a value, as `Edits.data` returns it.

        Raises:
          Inexpressible: The grammar cannot express it.
        """
        # `ref:`, `config:` and `partial:` are prefixes of a whole value: only here, at the top, can
        # a value refer to another place, be live arithmetic, or state its kind of node. `_inside`
        # has none of these, because inside of a call the grammar reads plain Python expressions.
        if isinstance(data, dict):
            if VARIABLE in data:
                return self._place(data[VARIABLE])
            for kind in ("config", "partial"):
                if kind in data and data[kind] in _OPERATIONS:
                    return f"ref:{self._arithmetic(data, 0)}"
                if kind in data:
                    return f"{kind}:{self._call(data, kind)}"
        return self._inside(data)

    def _inside(self, data: Any, hint: Any = Any) -> str:
        if isinstance(data, list):
            items = [self._inside(v, element(hint, list, i)) for i, v in enumerate(data)]
            return f"[{', '.join(items)}]"
        if not isinstance(data, dict):
            return repr(data)
        if VARIABLE in data:
            raise Inexpressible("only a whole value can refer to another place")
        if UNWRITABLE in data:
            raise Inexpressible(data[UNWRITABLE])
        if "id" in data or "ref" in data:
            raise Inexpressible("overrides cannot share a new value between several places")
        for kind in ("config", "partial"):
            if kind in data:
                return self._nested(data, kind, hint)
        if "list" in data:
            return self._inside(data["list"], hint)
        if "tuple" in data:
            inside = enumerate(data["tuple"])
            texts = [self._inside(v, element(hint, tuple, i)) for i, v in inside]
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        if "dict" in data:
            return self._dict(data["dict"], element(hint, dict))
        return self._leaf(data)

    def _leaf(self, data: dict[str, Any]) -> str:
        # Python has literals for neither infinity nor NaN, and the grammar reads literals without
        # names: a float that overflows is infinite, and the difference of two such is NaN.
        if "float" in data:
            return {"inf": "1e999", "-inf": "-1e999"}.get(data["float"], "1e999-1e999")
        if "name" in data:
            return self._name(data["name"])
        if "enum" in data and "member" in data:
            return f"{self._name(data['enum'])}.{data['member']}"
        if "path" in data and data.get("kind") == "Path":
            return repr(data["path"])
        kind = next((key for key in data if is_leaf({key: 0})), "")
        kind = kind or next((key for key in data), "")
        raise Inexpressible(f"the grammar cannot write {_NOUNS.get(kind, kind.replace('_', ' '))}")

    def _name(self, name: str) -> str:
        short = name.removeprefix(_DTYPE)
        if name.startswith(_DTYPE) and DTYPES.get(short) == short:
            return short
        if name.startswith("builtins.") or not is_allowed(name, self._packages):
            raise Inexpressible(f"a value may not name {name} here")
        return name

    def _dict(self, inside: Any, hint: Any) -> str:
        pairs = list(inside.items()) if isinstance(inside, dict) else inside
        for key, _ in pairs:
            if type(key) not in (str, int):
                raise Inexpressible("only strings and integers can be keys in a value")
        return f"{{{', '.join(f'{key!r}: {self._inside(child, hint)}' for key, child in pairs)}}}"

    def _nested(self, data: dict[str, Any], kind: str, hint: Any) -> str:
        if data[kind] in _OPERATIONS:
            raise Inexpressible("only a whole value can be arithmetic that stays live")
        # A nested call carries no prefix: the grammar itself decides from the class whether it
        # makes a config or a template. Where it would decide otherwise, there is no override.
        made = self._kinds(data[kind], data["arguments"], hint)
        if made != kind:
            raise Inexpressible(f"a call of {data[kind]} inside of a value need not make a {kind}")
        return self._call(data, kind)

    def _call(self, data: dict[str, Any], kind: str) -> str:
        if "id" in data:
            raise Inexpressible("overrides cannot share a new value between several places")
        if data.get("tags"):
            raise Inexpressible("the override grammar cannot set tags")
        if data[kind] == _CONSTANT:
            raise Inexpressible("overrides cannot create a constant that places share; see ref:")
        given = data["arguments"]
        for part in given:
            if not part.isidentifier():
                raise Inexpressible(f"{part!r} cannot be written as the name of an argument")
        hints = self._hints(data[kind])
        written = [f"{p}={self._inside(child, hints.get(p, Any))}" for p, child in given.items()]
        return f"{self._name(data[kind])}({', '.join(written)})"

    def _arithmetic(self, data: Any, outer: int) -> str:
        if not isinstance(data, dict):
            if isinstance(data, int | float) and not isinstance(data, bool) and data >= 0:
                return repr(data)
            raise Inexpressible("arithmetic that stays live works on numbers without a sign")
        if VARIABLE in data:  # inside of an expression behind `ref:`, a path stands for itself
            return self._place(data[VARIABLE]).removeprefix("ref:")
        if data.get("config") not in _OPERATIONS or "id" in data or data.get("tags"):
            raise Inexpressible("overrides cannot create a constant that places share; see ref:")
        symbol, binding = _OPERATIONS[data["config"]]
        inner = (binding + 1, binding) if symbol == "**" else (binding, binding + 1)
        sides = [data["arguments"].get(side) for side in ("left", "right")]
        left, right = (self._arithmetic(s, of) for s, of in zip(sides, inner, strict=True))
        text = f"{left} {symbol} {right}"
        return f"({text})" if binding < outer else text


_NOUNS = {
    "object": "an object",
    "complex": "a complex number",
    "bytes": "bytes",
    "set": "a set",
    "frozenset": "a set",
    "instance": "an instance of a dataclass; only nodes",
    "namedtuple": "a named tuple",
    "tagged": "a tagged value",
    "factory": "a factory",
    "dtype": "a dtype without a class",
    "enum": "several members of an enum at once",
    "path": "a path of another system",
    "float": "a number that is not finite",
}


def override_path(path: str, parts: tuple[Any, ...]) -> str:
    """Return a path that can stand at the left of an override.

    Args:
      path: The path, written out.
      parts: Its parts.

    Raises:
      Inexpressible: The grammar would read it as another path.
    """
    # Keys of dicts are arbitrary text. Some do not survive the round trip through `parse_path`; and
    # `*` is a wildcard of the grammar, `=` ends a path, and a trailing `~` deletes.
    try:
        is_read = parse_path(path) == parts and bool(parts)
    except UnknownReference:
        is_read = False
    if not is_read or any(sign in path for sign in "*=\n") or path.endswith("~"):
        raise Inexpressible(f"no override can begin with {path or 'the root'}")
    return path


# From edits to overrides.
#
# Where both sides are live graphs, the overrides are applied to the first graph, and the result is
# compared with the second: an override that does not make its change is dropped, with a reason. For
# records nothing is imported, so nothing can be applied; there, overrides follow from the rules of
# the grammar, and whatever depends on a class that was not imported is left out.


@dataclasses.dataclass(frozen=True)
class OverridePatch:
    """Overrides that turn the first graph into the second on the command line.

    Args:
      overrides: The overrides, in an order in which they can be applied.
      omitted: The changes that they do not make.
      by_change: The override that makes a change, by the number of the change.
      reasons: The reason why no override makes a change, by the number of the change.
    """

    overrides: tuple[str, ...]
    omitted: tuple[NoOverride, ...]
    by_change: Mapping[int, str]
    reasons: Mapping[int, str]


_SHARING_IS_LOST = "the override sets the value only: its sharing between several places is lost"


def _is_whole_list(edit: Edit) -> bool:
    """Return whether the override of an edit writes a list as a whole."""
    # No override inserts or removes an element.
    return edit.node.kind == "list" and (edit.form != "set" or isinstance(edit.part, slice))


@dataclasses.dataclass
class _EditOverride:
    """An edit with its override, or the reason why it has none; with both where it has a part."""

    path: str
    override: str = ""
    reason: str = ""


def overrides_of(comparison: Comparison, packages: Sequence[str] = ()) -> OverridePatch:
    """Return the overrides that turn the first graph into the second, and the changes they omit.

    Args:
      comparison: The result of `compare`.
      packages: The user's own packages, which overrides may name (`[tool.luthier] packages`).
    """
    # Edits and changes are different cuts of the same difference: one edit (a list written as a
    # whole) can make several changes, and a moved part needs an edit at each of its places. So each
    # change looks for the edit at its path, or at the nearest path above it.
    written = _Writer(comparison, tuple(packages)).written()
    if comparison.a.graph is not None and comparison.b.graph is not None:
        _drop_wrong(written, comparison, packages)
    by_change: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for index, draft in enumerate(comparison.differ.drafts):
        paths = (draft.path_a, draft.path_b)
        # Edits are named by paths of the first graph, except that a moved or added part is set at
        # its new place.
        paths = paths[::-1] if draft.kind in ("moved", "added") else paths
        found = _about(paths[0], written) or _about(paths[1], written)
        if draft.kind == "default":
            reasons[index] = "both leave it at the default, and the defaults differ"
        elif found is None:
            reasons[index] = "the overrides of other changes make it"
        elif found.override:
            by_change[index] = found.override
        else:
            reasons[index] = found.reason
    return OverridePatch(
        tuple(one.override for one in written if one.override),
        tuple(NoOverride(one.path, one.reason) for one in written if one.reason),
        by_change,
        reasons,
    )


def _about(path: str, written: list[_EditOverride]) -> _EditOverride | None:
    """Return the edit at a path, or else at the nearest path above it; None where there is none."""
    found = [one for one in written if path == one.path]
    above = [one for one in written if path.startswith((f"{one.path}.", f"{one.path}["))]
    everything = [one for one in written if not one.path]
    return next(iter([*found, *sorted(above, key=lambda one: -len(one.path)), *everything]), None)


class _Writer:
    """Writes the edits of one comparison as overrides."""

    def __init__(self, comparison: Comparison, packages: tuple[str, ...]):
        self.edits = Edits(comparison)
        self.packages = packages
        self.comparison = comparison
        self.targets = [self._parts(edit) for edit in self.edits.edits]

    def written(self) -> list[_EditOverride]:
        """Return the edits in their order, each with its override or the reason why it has none."""
        if not self.edits.is_root_kept:
            return [_EditOverride("", reason="no override replaces the whole config")]
        written = []
        for edit, parts in zip(self.edits.edits, self.targets, strict=True):
            one = _EditOverride(format_path(parts))
            try:
                one.override = self._override(edit, parts, one.path)
            except Inexpressible as error:
                one.reason = str(error)
                self._set_value_alone(edit, one)
            written.append(one)
            if one.override and _is_whole_list(edit):
                written += self._at_other_places(edit, one)
        return written

    def _at_other_places(self, edit: Edit, one: _EditOverride) -> list[_EditOverride]:
        """Return the override of a whole list for the other places that hold the list.

        An override puts a new list where the old one was, and leaves it at its other places.
        """
        text = one.override.removeprefix(f"{one.path}=")
        after = self.edits.differ.kept_a[id(edit.node)]
        if self.edits.places.get(id(after), 1) > 1:
            one.reason = _SHARING_IS_LOST
        found = []
        for owner, part in self.edits.holders[id(edit.node)]:
            parts = (*self.edits.parts(owner), part)
            if format_path(parts) != one.path and id(owner) in self.edits.differ.kept_a:
                other = _EditOverride(format_path(parts), reason=one.reason)
                try:
                    other.override = f"{override_path(other.path, parts)}={text}"
                except Inexpressible as error:
                    other.reason = str(error)
                found.append(other)
        return found

    def _set_value_alone(self, edit: Edit, one: _EditOverride) -> None:
        """Write the override that sets the value of a shared value, without its sharing.

        The value matters most: overrides that left it out would train another model.
        """
        # Only where the value can be set at a path of its own: not for tags, and not inside of
        # arithmetic or dataclass instances, into which no path leads.
        is_list = _is_whole_list(edit)
        if edit.tag or not (is_list or edit.form == "set"):
            return
        around = (edit.node, *self._around(edit.node))
        if any(node.is_value_node or node.kind == "instance" for node in around):
            return
        after = self.edits.differ.kept_a[id(edit.node)]
        new = after if is_list else after.by_part.get(edit.part)
        data = None if new is None else self.edits.plain(new)
        if data is None:
            return
        old = None if is_list else edit.node.by_part.get(edit.part)
        try:
            text = self._speller(edit, old).value(data)
            written = override_path(one.path, self._parts(edit))
        except Inexpressible:
            return
        one.override = f"{written}{':=' if old is not None and old.is_node else '='}{text}"
        one.reason = _SHARING_IS_LOST

    def _parts(self, edit: Edit) -> tuple[Any, ...]:
        """Return the path of an edit in parts; for a constant, the place of the constant."""
        owner = self.edits.parts(edit.node)
        if edit.node.is_value_node or isinstance(edit.part, slice) or edit.form == "insert":
            return owner
        return (*owner, edit.part) if edit.form == "set" or edit.node.kind != "list" else owner

    def _override(self, edit: Edit, parts: tuple[Any, ...], path: str) -> str:
        if edit.tag:
            raise Inexpressible("the override grammar cannot set tags")
        around = self._around(edit.node)
        if any(node.is_value_node for node in around):
            raise Inexpressible("no path leads into the arithmetic of a value")
        if any(node.kind == "instance" for node in around):
            raise Inexpressible("no override changes the fields of a dataclass instance")
        if edit.node.is_value_node:
            return self._constant_override(edit, parts, path)
        written = override_path(path, parts)
        if _is_whole_list(edit):
            return f"{written}={self._list_text(edit)}"
        old = edit.node.by_part.get(edit.part)
        if edit.form == "del":
            self._check_reset(edit)
            return f"reset:{written}"
        if old is None and edit.node.is_node:
            self._check_argument(edit)
        if old is None and not edit.node.is_node and not isinstance(edit.part, str):
            raise Inexpressible("only a string can be a new key")
        text = self._text(edit, old)
        _check_path_value(edit.data, old)
        # `=` sets a value within the type of the place; `:=` replaces a node, or adds a key to a
        # dict or list, which `=` rejects as a misspelt path. A reference replaces, too: by `=`,
        # `ref:` at a constant would move all its users.
        is_plain = old is None or not (old.is_node or text.startswith(("alias:", "ref:")))
        replaces = not is_plain or (old is None and not edit.node.is_node)
        return f"{written}{':=' if replaces else '='}{text}"

    def _text(self, edit: Edit, old: ConfigNode | None) -> str:
        """Return the text of a new value, with copies where it cannot refer to the first graph."""
        # References to the first graph are tried before copies, which lose sharing.
        speller = self._speller(edit, old)
        try:
            return speller.value(edit.data)
        except Inexpressible:
            new = self.edits.differ.kept_a[id(edit.node)].by_part[edit.part]
            data = self.edits.fresh(new)
            if data is None:
                raise
            return speller.value(data)

    def _constant_override(self, edit: Edit, parts: tuple[Any, ...], path: str) -> str:
        is_value = edit.form == "set" and edit.part == "value" and "name" not in edit.node.tags
        if not is_value or "right" in edit.node.by_part:
            raise Inexpressible("only the value of a constant can be set")
        text = self._speller(edit, None).value(edit.data)
        return f"{override_path(path, parts)}={text}"

    def _list_text(self, edit: Edit) -> str:
        """Return the text of a whole list: no override inserts or removes an element."""
        data = self.edits.fresh(self.edits.differ.kept_a[id(edit.node)])
        if data is None:
            what = "no override inserts or removes an element, and the list holds shared ones"
            raise Inexpressible(what)
        return self._speller(edit, None).value(data)

    def _around(self, node: ConfigNode) -> list[ConfigNode]:
        found = []
        while id(node) in self.edits.above:
            node, _ = self.edits.above[id(node)]
            found.append(node)
        return found

    def _check_reset(self, edit: Edit) -> None:
        if not edit.node.is_node:
            if not isinstance(edit.part, str):
                raise Inexpressible("only string keys can be removed from a dict")
            return
        known = self.comparison.a.defaults(edit.node)
        if edit.node.live is not None:
            taken = signatures.arguments(edit.node.live.__fn_or_cls__)
            if edit.part in taken.names and edit.part not in taken.defaults:
                raise Inexpressible("has no default to reset to")
        elif known is not None and edit.part not in known and not self._default_in_b(edit):
            raise Inexpressible("has no known default")

    def _default_in_b(self, edit: Edit) -> bool:
        known = self.comparison.b.defaults(self.edits.differ.kept_a[id(edit.node)])
        return known is None or edit.part in known

    def _check_argument(self, edit: Edit) -> None:
        if edit.node.live is None:
            return
        taken = signatures.arguments(edit.node.live.__fn_or_cls__)
        if edit.part not in taken.names:
            raise Inexpressible("no override adds a keyword that the signature does not name")

    def _speller(self, edit: Edit, old: ConfigNode | None) -> Speller:
        # The grammar lets a value name what is in the packages of the nodes around its place.
        names = [node.name for node in (edit.node, old) if node is not None and node.name]
        packages = (*self.packages, *(name.split(".")[0] for name in names))
        return Speller(packages, self._place, self._kind, self._hints)

    def _place(self, number: int) -> str:
        """Return the `ref:` or `alias:` to a part of the first graph."""
        node = self.edits.captured[number]
        parts = self.edits.parts(node)
        if not node.is_node:
            raise Inexpressible(f"no override shares a {node.kind}")
        if any(above.is_value_node for above in self._around(node)):
            raise Inexpressible("no path leads into the arithmetic of a value")
        # Overrides are applied one after another: a path is read when its turn comes, after an
        # earlier override may have replaced what the first graph had there.
        if any(parts[: len(target)] == target for target in self.targets):
            raise Inexpressible("the value that it refers to has been moved by then")
        path = override_path(format_path(parts), parts)
        return f"ref:{path}" if node.is_value_node else f"alias:{path}"

    def _kind(self, name: str, given: Mapping[str, Any], hint: Any) -> str | None:
        """Return the kind of node that a call inside of a call makes."""
        # Of a record, classes are not imported. Most calls make a config; modules of layers and
        # models make templates, depending on a signature that is not known here.
        if not self.comparison.b.is_live:
            return "config" if not name.startswith(("luthier.layers", "luthier.models")) else None
        return kind_of(find(name), given.keys(), annotation=hint).__name__.lower()

    def _hints(self, name: str) -> Mapping[str, Any]:
        """Return the annotations of the arguments of a class or function; of a record, none."""
        return signatures.type_hints(find(name)) if self.comparison.b.is_live else {}


def _check_path_value(data: Any, old: ConfigNode | None) -> None:
    """Reject a path of a file system where the grammar would read a string.

    Both are written as quoted text: the grammar makes a path only where the place holds one.
    """
    is_path = isinstance(data, dict) and "path" in data and VARIABLE not in data
    was_path = old is not None and isinstance(old.data, dict) and "path" in old.data
    if is_path and not was_path:
        raise Inexpressible("the grammar would read the path as text here")


def _drop_wrong(
    written: list[_EditOverride], comparison: Comparison, packages: Sequence[str]
) -> None:
    """Drop the overrides that do not make their change when they are applied."""
    # The grammar has its own opinion of what a text means at a place (a name may be text or a
    # class, defaults depend on signatures), so the overrides are applied and the result is compared
    # with the second graph. Each round drops at least one override or ends, and a dropped one can
    # make others wrong: an alias may lead to a node in which it would have changed something.
    made = _apply_possible(comparison.a.graph, [one for one in written if one.override], packages)
    while any(one.override for one in written):
        differ = Differ(document(made), comparison.b)
        differ.run()
        # No override can set tags, so no override is wrong for leaving them as they are.
        left = [draft for draft in differ.drafts if draft.kind != "tags"]
        # A shared node is changed by its first path, but the differ may meet it by another path
        # only, once the place of the first is gone.
        # What is left to be added has no place in the first graph.
        ends = [draft.path_a or draft.path_b for draft in left]
        paths = [path for end in ends for path in _both_paths(end, comparison.a)]
        wrong = [one for one in (_about(path, written) for path in paths) if one is not None]
        # One with a reason sets the value alone, by intention: that its sharing differs is known.
        wrong = [one for one in wrong if one.override and not one.reason]
        if not wrong:
            return
        for one in wrong:
            one.override, one.reason = "", "the grammar reads it as another value here"
        rest = [one.override for one in written if one.override]
        # Without `_apply_possible`: those that are left could be applied before, and none needs a
        # dropped one, since paths and references lead to what the first graph has (`_place`).
        made = apply(comparison.a.graph, rest, packages=packages)


def _both_paths(path: str, document: Document) -> tuple[str, ...]:
    """Return a path, and the same path by the first places of the shared nodes on its way."""
    node: ConfigNode | None = document.root
    first = ""
    for part in parse_path(path):
        if node is not None and node.is_shared:
            first = document.first_paths.get(id(node), first)
        first = join(first, part)
        node = None if node is None else node.by_part.get(part)
    return (path,) if first == path else (path, first)


def _apply_possible(graph: Graph, written: list[_EditOverride], packages: Sequence[str]) -> Any:
    """Apply the overrides that can be applied, and drop the others.

    `apply` copies the graph and is atomic: one override that fails undoes all. Trying them one by
    one would copy the graph for each, so all are tried at once, and halves only where that fails.
    """
    if not written:
        return graph
    try:
        return apply(graph, [one.override for one in written], packages=packages)
    except BadInput as error:
        if len(written) == 1:
            written[0].override, written[0].reason = "", error.problems[0].what
            return graph
    half = len(written) // 2
    return _apply_possible(
        _apply_possible(graph, written[:half], packages), written[half:], packages
    )
