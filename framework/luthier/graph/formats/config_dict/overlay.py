"""A ConfigDict applied to a graph: every key sets the path of its name, or of its new name.

A reference that several keys share becomes one live value, a required placeholder a required field.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fiddle import history

from luthier.errors import BadInput, OverrideError, Problem
from luthier.graph import aliases, copies, origins, scalars, setting, signatures, values
from luthier.graph.formats.config_dict.loading import SOURCE, TABLE, Loaded, as_config_dict, load
from luthier.graph.formats.config_dict.references import References, is_reference, target_of
from luthier.graph.formats.config_dict.renames import Key, Renames, read_renames
from luthier.graph.grammar import expressions, literals, selection, types
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.front_ends import OnNote, drop_note
from luthier.graph.grammar.statements import Unreadable, pair
from luthier.graph.overrides import annotation_at
from luthier.graph.paths import (
    Path,
    Place,
    format_path,
    is_dataclass_instance,
    is_node,
    locate,
    parse_path,
    unknown_path,
)
from luthier.graph.public_names import display_name
from luthier.graph.record.plain import CLASS
from luthier.graph.record.structure import leaf_key
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

_DEEPEST = 100


def apply_config_dict(
    graph: Graph,
    config: Any,
    renames: Mapping[str, Any] | str | None = None,
    packages: Sequence[str] = (),
) -> Any:
    """Return a copy of a graph with the values of a ConfigDict.

    References that several keys share, and arithmetic on them, become value nodes: change one, and
    all follow. A required placeholder that is not set becomes a required field.

    Args:
      graph: A node; it is not changed.
      config: A ConfigDict or dict; or a file with `get_config()`, as `FILE.py` or `FILE.py:ARG`.
      renames: From keys to paths, `{"optimizer.lr": "optimizer.learning_rate"}`, with all that is
        below them; to a list of paths; or to False for what is left out. A text names a TOML file.
        They go before the `RENAMES` of the file with the ConfigDict.
      packages: Modules that strings may name, where the place does not hold a string.

    Returns:
      The changed copy, a node.

    Raises:
      OverrideError: Keys have no place in the graph or do not fit there; all of them are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> changed = graph.apply_config_dict(config, {"lr": 1e-3}, {"lr": "learning_rate"})
      >>> changed.learning_rate
      0.001
    """
    # The file's own RENAMES come first and the caller's table wins: a renames file adapts somebody
    # else's config without editing it.
    if isinstance(config, str):
        loaded = load(config)
    else:
        loaded = Loaded(as_config_dict(config, SOURCE), SOURCE)
    given = read_renames(renames) if isinstance(renames, str) else renames or {}
    source = renames if isinstance(renames, str) else "renames"
    table = Renames([(loaded.renames, f"{TABLE} of {loaded.source}"), (given, source)])
    around = expressions.Surroundings(packages=tuple(packages))
    overlay = _Overlay(copies.copy_graph(graph), loaded, table, around)
    overlay.apply()
    if overlay.problems:
        raise OverrideError(overlay.problems)
    return overlay.graph


class _Entry(NamedTuple):
    """A key of a ConfigDict with its value: a plain value, a reference, or another ConfigDict."""

    key: Key
    value: Any
    inside: Any


class _Overlay:
    """Applies one ConfigDict to a graph, in place; collects the problems."""

    def __init__(
        self, graph: Graph, loaded: Loaded, renames: Renames, around: expressions.Surroundings
    ):
        self.graph = graph
        self.problems: list[Problem] = []
        self._loaded, self._renames, self._around = loaded, renames, around
        # The value of a key that is renamed to several places, made once for all of them.
        self._several: dict[Key, Any] = {}
        # The first key that sets a constant of the graph, and its value, by the constant's id.
        self._first_setters: dict[int, tuple[str, Any]] = {}
        self._references = References((), self._origin)
        # Paths that unknown keys are probably meant for, by key: the proposal of a table.
        self._proposed: dict[str, str] = {}
        self._places: list[Place] | None = None

    def apply(self) -> None:
        """Set every key, and collect the problems of those that cannot be set."""
        # Parents come before their children. Either a ConfigDict has a counterpart in the graph,
        # and then its keys are set one by one, or it is set as a whole, and then the entries below
        # it are skipped (`below`).
        entries: list[_Entry] = []
        try:
            root = Place("", self.graph, None, "", False)
            self._check_class(self._loaded.config, root)
            entries += _entries(self._loaded.config, (), ())
        except Unreadable as error:
            problem = dataclasses.replace(error.problem, origin=self._loaded.source)
            self.problems.append(problem)
            return
        self.problems += self._renames.unused(entry.key for entry in entries)
        # The key that the file sets first gives a shared reference its name.
        ordered = sorted(entries, key=lambda entry: self._line(entry.key) or sys.maxsize)
        held = [(format_path(e.key), r) for e in ordered for r in _references_in(e)]
        self._references = References(held, self._origin)
        below: Key = ()
        for entry in entries:
            if below and entry.key[: len(below)] == below:
                continue
            below = () if self._set_entry(entry) else entry.key
        if self._proposed:
            rows = ", ".join(f"{key!r}: {path!r}" for key, path in self._proposed.items())
            what = f"{len(self._proposed)} of these keys have other names in luthier"
            remedy = f"add to the file: {TABLE} = {{{rows}}}"
            self.problems.append(Problem(what, origin=self._loaded.source, remedy=remedy))

    def _set_entry(self, entry: _Entry) -> bool:
        """Set one key at its places; return whether the keys below it are set one by one."""
        descends = True
        for target in self._renames.targets(entry.key):
            try:
                descends = self._set_at(entry, target) and descends
            except Unreadable as error:
                self._add(error.problem, entry, target)
                descends = False
            except BadInput as error:
                for problem in error.problems:
                    self._add(problem, entry, target)
                descends = False
        return descends

    def _add(self, problem: Problem, entry: _Entry, target: Path) -> None:
        where = self._origin(format_path(entry.key), entry.value)
        path = problem.path or format_path(target)
        self.problems.append(dataclasses.replace(problem, path=path, origin=where))

    def _set_at(self, entry: _Entry, target: Path) -> bool:
        # Something below is renamed on its own, so this ConfigDict cannot be set as a whole.
        if entry.inside is not None and self._renames.has_below(entry.key):
            return True
        place, depth = locate(self.graph, target)
        if depth < len(target):
            if (
                target[-1] == CLASS
                and depth == len(target) - 1
                and not isinstance(place.value, dict)
            ):
                return False  # it was checked where the ConfigDict that holds it was met
            is_leaf = entry.inside is None
            if not is_leaf and any(
                self._meant(e, (*target, *e.key[len(entry.key) :]))
                for e in _entries(entry.inside, entry.key, ())
            ):
                return True  # `input.batch_size`: what is inside has other names here
            problem = unknown_path(self.graph, target, depth, place.value, leaves=is_leaf)
            if meant := self._meant(entry, target):
                problem = dataclasses.replace(problem, nearest=tuple(meant), remedy="")
                self._proposed[format_path(entry.key)] = meant[0]
            raise Unreadable(problem)
        if isinstance(entry.inside, list | tuple):
            if _holds_structures(place.value):
                _check_length(entry.inside, place.value)
                return True
        elif _names_class(entry.inside) and not isinstance(place.value, dict):
            self._swap(entry, place)
            return True
        elif entry.inside is not None and _has_fields(place.value):
            return True
        self._set(entry, place)
        return False

    def _meant(self, entry: _Entry, target: Path) -> list[str]:
        """Return the settings that other frameworks call by the name of a key without a place."""
        if entry.inside is not None:
            return []
        if self._places is None:
            self._places = selection.every_place(self.graph)
        statement = pair(format_path(target), ...)
        statement = dataclasses.replace(statement, text="...", has_value=False)
        found = aliases.statements(statement, self._places)
        return [word.removesuffix("=...") for word in found if word.endswith("=...")][:2]

    def _swap(self, entry: _Entry, place: Place) -> None:
        """Make a place the node of the class that a ConfigDict names; its keys follow."""
        class_name = entry.inside.get(CLASS)
        if is_dataclass_instance(place.value):
            return self._check_class(entry.inside, place)
        if is_node(place.value) and class_name == display_name(place.value.__fn_or_cls__):
            return None
        where, start = self._origin(format_path((*entry.key, CLASS))), origins.now()
        annotation = annotation_at(self.graph, place)
        made = self._read(f"{class_name}()", annotation, place)
        fitting.check(made, fitting.expected(annotation, place.value))
        origins.stamp_since(start, made, where)
        setting.replace_at(self.graph, place, made, where)
        return None

    def _check_class(self, inside: Any, place: Place) -> None:
        """Reject a ConfigDict that `to_config_dict` wrote of a root of another class."""
        class_name = inside.get(CLASS)
        if not isinstance(class_name, str) or isinstance(place.value, dict):
            return
        is_real = is_node(place.value)
        here = display_name(place.value.__fn_or_cls__ if is_real else type(place.value))
        if class_name != here:
            what = f"is a node of {here}, not of {class_name}"
            raise Unreadable(Problem(what, remedy=f"first replace it: {place.path}={class_name}()"))

    def _set(self, entry: _Entry, place: Place) -> None:
        # A key sets either the argument, or the shared value that the argument holds: then all of
        # the value's users follow, as they do with an override.
        annotation = annotation_at(self.graph, place)
        value = self._value_of(entry)
        where, start = self._origin(format_path(entry.key), entry.value), origins.now()
        # A required placeholder that is not set unsets the argument, so that `validate` and the
        # command line report it like every other required argument.
        if self._is_required(value, place):
            # A shared value stays shared: whatever sets it later moves all of its users.
            is_shared = values.is_constant(place.value)
            node, part = (place.value, "value") if is_shared else (place.owner, place.part)
            node.__arguments__.pop(part, None)
            origins.stamp(node, part, history.DELETED, where)
            return
        if values.is_constant(value):
            if "value" in value.__arguments__:
                value.__arguments__["value"] = self._read(value.value, annotation, place)
        # Arithmetic is not converted, as only its result has a type here: `check` looks at that.
        elif not values.is_value_node(value):
            value = self._read(value, annotation, place)
        if _is_known(value):
            written = f"={fitting.shown(value)}"
            scalars.refuse_on_node(place, value, annotation, written, self._admits(value))
            fitting.check(value, fitting.expected(annotation, place.value))
        origins.stamp_since(start, value, where)
        # A reference, too, goes into the constant, or the other users of the constant would not
        # follow it.
        if values.is_constant(place.value):
            self._refuse_two(entry, place, value)
            setting.replace(place.value, "value", value, where)
        else:
            setting.replace_at(self.graph, place, value, where)

    def _value_of(self, entry: _Entry) -> Any:
        """Return the value of a key: one value node for all its places, where there are several."""
        is_one = len(self._renames.targets(entry.key)) == 1
        if is_one or entry.key not in self._several:
            value = self._converted(entry.value)
            if is_one:
                return value
            if not values.is_value_node(value) and entry.inside is None:
                start, name = origins.now(), format_path(entry.key)
                value = values.value(value, name)
                origins.stamp_since(start, value, self._origin(name, entry.value))
            self._several[entry.key] = value
        return self._several[entry.key]

    def _is_required(self, value: Any, place: Place) -> bool:
        """Return whether an argument is to be unset: its placeholder is neither set nor shared."""
        held = [made for made in self._several.values() if made is value]
        is_shared = bool(held) or self._references.is_shared(value)
        is_alone = values.is_constant(value) and not is_shared
        if not is_alone or "value" in value.__arguments__ or not is_node(place.owner):
            return False
        return place.part in signatures.arguments(place.owner.__fn_or_cls__).required

    def _admits(self, value: Any) -> Callable[[Place], bool]:
        """Return whether a field of the graph could have a value."""

        def admits(field: Place) -> bool:
            annotation = fitting.expected(annotation_at(self.graph, field), field.value)
            return types.fits(fitting.coerce(value, annotation), annotation)

        return admits

    def _refuse_two(self, entry: _Entry, place: Place, value: Any) -> None:
        """Reject two different values for one constant of the graph."""
        # A ConfigDict may copy by value what the graph shares. Equal copies are fine; if they
        # differ, whichever came last would silently win.
        key = format_path(entry.key)
        other, first = self._first_setters.setdefault(id(place.value), (key, value))
        if other == key or first is value or _are_equal(first, value):
            return
        what = f"shares its value with {other}, which sets another"
        raise Unreadable(Problem(what, remedy="leave one of them out: False in RENAMES"))

    def _converted(self, value: Any) -> Any:
        """Convert a value of a ConfigDict to a value of a graph: references become value nodes."""
        if is_reference(value):
            inside = _inside(value)
            if inside is not None:
                return self._converted(inside)
            try:
                return self._references.convert(value)
            except Exception as error:  # of its arithmetic, which may be anybody's
                raise Unreadable(f"cannot be computed: {type(error).__name__}: {error}") from None
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._converted(item) for item in value)
        if _inside(value) is None:
            return value
        return {key: self._converted(child) for key, child in _items(value)}

    def _read(self, value: Any, annotation: Any, place: Place) -> Any:
        """Convert a plain value for its place: a string to the dtype or member that it names."""
        annotation = fitting.expected(annotation, place.value)
        if isinstance(value, str) and not types.fits(value, annotation):
            near = [node.__fn_or_cls__ for node in (place.value, place.owner) if is_node(node)]
            near += [place.value] if callable(place.value) and not is_node(place.value) else []
            around = dataclasses.replace(self._around, near=near)
            return literals.interpret(value, annotation, place.value, around)
        return fitting.coerce(value, annotation)

    def _origin(self, key: str, value: Any = UNSET) -> str:
        """Return the origin of a key's value: `configs/vit.py:12: optimizer.lr=0.001`."""
        line = self._line(parse_path(key)) if key else 0
        at = f"{self._loaded.source}:{line}" if line else self._loaded.source
        if not key:
            return at
        if is_reference(value) and self._references.is_frozen(value):
            return f"{at}: {key} (computed once)"
        is_short = value is not UNSET and not is_reference(value) and _inside(value) is None
        return f"{at}: {key}={fitting.shown(value)}" if is_short else f"{at}: {key}"

    def _line(self, key: Key) -> int:
        return self._loaded.lines(tuple(str(part) for part in key))


def _entries(config: Any, above: Key, around: tuple[int, ...]) -> Iterator[_Entry]:
    """Yield every key of a ConfigDict and of those inside of it, parents first.

    Raises:
      Unreadable: It is nested too deeply, or holds itself.
    """
    if len(around) >= _DEEPEST or id(config) in around:
        how = "holds itself" if id(config) in around else "is nested too deeply"
        raise Unreadable(f"the ConfigDict {how} at {format_path(above[:4])}")
    try:
        items = list(_items(config))
    except TypeError:  # ml_collections sorts them
        at = format_path(above[:4]) or "the root"
        raise Unreadable(f"the ConfigDict has keys of several types at {at}") from None
    for name, value in items:
        key: Key = (*above, name if isinstance(config, list | tuple) else str(name))
        inside = _inside(value)
        yield _Entry(key, value, inside)
        if inside is not None:
            yield from _entries(inside, key, (*around, id(config)))


def _items(config: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a ConfigDict, dict or list, with references as such."""
    if isinstance(config, list | tuple):
        return enumerate(config)
    if isinstance(config, dict):
        return config.items()
    return config.items(preserve_field_references=True)


def _inside(value: Any) -> Any:
    """Return the ConfigDict, or list with ConfigDicts, that a value is or refers to; else None."""
    from ml_collections import config_dict

    # `_ops` and `_value` are private; see `references`.
    if is_reference(value):
        target = target_of(value)
        value = None if target._ops else target._value
    if type(value) in (list, tuple):
        is_deep = any(isinstance(item, dict | config_dict.ConfigDict) for item in value)
        return value if is_deep else None
    return value if isinstance(value, dict | config_dict.ConfigDict) else None


def _references_in(entry: _Entry) -> Iterator[Any]:
    """Yield the references of one key, and of a list that it holds."""
    if entry.inside is not None:
        return
    pending = [entry.value]
    while pending:
        found = pending.pop()
        if is_reference(found):
            yield found
        elif type(found) in (list, tuple):
            pending += found


def _has_fields(value: Any) -> bool:
    """Return whether keys below are set one by one: a node, an instance, a dict with keys."""
    is_structure = scalars.is_real_node(value) or is_dataclass_instance(value)
    return is_structure or (isinstance(value, dict) and bool(value))


def _names_class(inside: Any) -> bool:
    """Return whether a ConfigDict says of which class its node is, as `to_config_dict` does."""
    is_dict = inside is not None and not isinstance(inside, list | tuple)
    return is_dict and isinstance(inside.get(CLASS), str)


def _holds_structures(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(_has_fields(item) for item in value)


def _check_length(given: Sequence[Any], here: Sequence[Any]) -> None:
    if len(given) != len(here):
        raise Unreadable(f"holds {len(here)} elements, and {len(given)} are given")


def _is_known(value: Any) -> bool:
    """Return whether a value node can be computed: it has no placeholder that is not set."""
    if not values.is_value_node(value):
        return True
    if values.is_constant(value):
        return "value" in value.__arguments__
    return all(_is_known(operand) for operand in values.operands(value))


def _are_equal(a: Any, b: Any) -> bool:
    if not (_is_known(a) and _is_known(b)):
        return False
    return leaf_key(values.evaluate(a)) == leaf_key(values.evaluate(b))


# Overrides: `config_dict:FILE.py[:ARG]` and `config_dict_rename:FILE.toml`.

CONFIG, RENAME = "config_dict:", "config_dict_rename:"


def apply_words(
    graph: Graph,
    words: Sequence[tuple[str, str]],
    every: Sequence[str],
    packages: Sequence[str] = (),
    on_note: OnNote = drop_note,
) -> Any:
    """Return a copy of a graph with the ConfigDicts of overrides applied, one after another.

    Args:
      graph: A node; it is not changed.
      words: The overrides (`config_dict:FILE.py` and the like), each with its origin.
      every: All such overrides, for the renames, whose position does not matter.
      packages: Modules that strings may name.
      on_note: Takes notes; there are none.

    Raises:
      OverrideError: A file cannot be read, or does not fit; all problems are listed.
    """
    problems: list[Problem] = []
    for word, _ in words:
        try:
            graph = _apply_word(graph, word, every, packages)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise OverrideError(problems)
    return graph


def _apply_word(graph: Graph, word: str, every: Sequence[str], packages: Sequence[str]) -> Any:
    tables = [other.removeprefix(RENAME).strip() for other in every if other.startswith(RENAME)]
    if len(tables) > 1:
        remedy = "write one file with all of them"
        raise OverrideError(Problem("--config_dict_rename is given twice", remedy=remedy))
    if not word.startswith(RENAME):
        file = word.removeprefix(CONFIG).strip()
        return apply_config_dict(graph, file, tables[0] if tables else None, packages)
    if not any(other.startswith(CONFIG) for other in every):
        read_renames(tables[0])
        what = "--config_dict_rename has no effect without --config_dict"
        raise OverrideError(Problem(what, remedy="add --config_dict FILE.py"))
    return graph
