"""Overrides: applies statements such as `optimizer.b2=0.95` to a copy of a graph.

The one function through which every front end edits a graph: the command line, gin, ConfigDict
and sweeps. All statements are read first, then applied in order; all problems are reported
together. The forms are listed in `luthier.graph.grammar.statements` and
`luthier.graph.grammar.literals`; `luthier help overrides` has them all, with examples.

A statement on a constant (`luthier.graph.value`) changes the constant, so all its users move; `:=`
replaces it at this one path. A plain value cannot replace a node by `=`, and by `:=` only where the
annotation admits it. A new key of a dict needs `:=`, so that a misspelt key is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from luthier import project
from luthier.errors import BadInput, OverrideError, Problem, UnknownReference, UserCodeError
from luthier.graph import (
    aliases,
    copies,
    fiddlers,
    lazy,
    origins,
    override_files,
    references,
    scalars,
    setting,
    signatures,
    values,
)
from luthier.graph.grammar import expressions, front_ends, literals, selection, types
from luthier.graph.grammar import literals as arithmetic  # its last part: `+=`, `-=`, `*=`
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.statements import Statement, Unreadable, pair, parse_statement
from luthier.graph.paths import (
    Path,
    Place,
    child_of,
    find,
    format_path,
    is_container,
    is_dataclass_instance,
    is_node,
    join,
    locate,
    nearest,
    parse_path,
    unknown_path,
)
from luthier.graph.public_names import display_name
from luthier.graph.render import text_of
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

Override = str | tuple[str, Any]
_MOST_MEANT = 3  # suggestions for a path that does not exist
# Each is tried on a copy of the graph: a graph of hundreds of blocks has as many places that end in
# `num_heads`, and a study tries thousands of statements.
_MOST_TRIED = 8
_OF_YAML = {"none": "None", "nil": "None"} | dict.fromkeys(("yes", "on"), "true")
_OF_YAML |= dict.fromkeys(("no", "off"), "false")
# `optax.adam(1e-3)`
_OPTAX = r"optax\.(\w+)\((?:learning_rate=)?([\d.e+-]+)\)"


class UnknownPath(Unreadable):
    """There is no such path in the graph."""


def apply(
    graph: Graph,
    overrides: Sequence[Override],
    origin: str = "argument",
    shelves: Sequence[str] | None = None,
    *,
    packages: Sequence[str] | None = None,
    recorded: references.Recorded | None = None,
    on_note: front_ends.OnNote = front_ends.drop_note,
) -> Any:
    """Return a copy of `graph` with every override applied, in order.

    Args:
      graph: A node; it is not changed. Sharing, tags and history are kept in the copy.
      overrides: Statements (`optimizer.b2=0.95`, `fiddler:NAME`, `file:FILE`), or pairs of a path
        and a Python value.
      origin: Name of the overrides in the history and in errors: the third one is
        `argument 3: optimizer.b2=0.95`. If it ends in a colon, as `trial 7:`, they are not
        counted. An override from a file is `FILE:LINE: ...`.
      shelves: Modules whose fiddlers may be named without their module; None means
        `luthier.recipes` and those of the project (`[tool.luthier] fiddlers`).
      packages: Modules that values may name, beside luthier, jax and the like, and those of the
        nodes around the value; None means those of the project (`[tool.luthier] packages`), or
        none where an override reads a file, which somebody else may have written.
      recorded: Returns the graph of a recorded run, for `model=run:ID.model`; None where there are
        no runs.
      on_note: Takes a line about what was not applied, such as bindings that `gin_skip_unknown:`
        skipped.

    Returns:
      The changed copy, a node.

    Raises:
      OverrideError: One or more cannot be read or applied; all problems are in it.
      UserCodeError: Nothing is wrong but that the code of a fiddler raised an exception.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> changed = graph.apply(config, ["learning_rate=1e-3", ("b2", 0.99)])
      >>> changed.learning_rate, changed.b2
      (0.001, 0.99)
      >>> graph.apply(config, ["learning_rat=1e-3"])
      Traceback (most recent call last):
          ...
      luthier.errors.OverrideError: ...
    """
    # Reading comes first, as a whole: a misspelt fifth override is reported with the others instead
    # of after the first four were applied. A statement that fails is skipped and the next ones are
    # still tried on the copy, for their problems; the copy is dropped then.
    problems: list[Problem] = []
    failed: UserCodeError | None = None
    if packages is None:
        packages = () if any(map(_reads_file, overrides)) else project.find().packages
    statements = list(_read_all(overrides, origin, problems))
    around = expressions.Surroundings(packages=tuple(packages))
    lazy.settle_graph(graph)  # before the copy, whose nodes are no longer undecided
    editor = _Editor(copies.copy_graph(graph), around, shelves, recorded, on_note)
    # Neighbouring overrides of one front end go to it together: gin and ConfigDict resolve their
    # files and bindings as a whole, in an order of their own.
    for selector, group in itertools.groupby(statements, key=lambda pair: _front_end(pair[0])):
        if selector:
            _apply_words(editor, selector, list(group), statements, packages, problems, on_note)
            continue
        for statement, where in group:
            try:
                editor.apply(statement, where)
            except UnknownPath as error:
                near = editor.meant(statement, error)
                remedy = "" if near else error.problem.remedy
                problem = dataclasses.replace(error.problem, nearest=near, remedy=remedy)
                problems.append(dataclasses.replace(problem, origin=where))
            except Unreadable as error:
                meant = editor.meant_value(statement, error.problem.path)
                remedy = error.problem.remedy or (not meant and editor.sweep_of(statement)) or ""
                near = meant or error.problem.nearest
                problem = dataclasses.replace(error.problem, nearest=near, remedy=remedy)
                problems.append(dataclasses.replace(problem, origin=where))
            except UserCodeError as error:  # a fiddler's
                (problem,) = error.problems
                failed = UserCodeError(dataclasses.replace(problem, origin=where), error.details)
                failed.__cause__ = error.__cause__
                problems += failed.problems
            except BadInput as error:
                problems += [dataclasses.replace(p, origin=where) for p in error.problems]
    if failed is not None and len(problems) == 1:
        raise failed
    if problems:
        raise OverrideError(problems)
    return editor.graph


def matching(graph: Graph, target: str) -> list[Place]:
    """Return the places of a graph that a path, or a pattern of the override grammar, matches.

    Args:
      graph: A node.
      target: `optimizer.b2`, `any:dropout`, `tag:LearningRate`, `gin:LEARNING_RATE`, say.

    Returns:
      The places, at least one, in the order of the graph.

    Raises:
      BadInput: It matches nothing; the problem holds the nearest names.

    Example:
      >>> import luthier
      >>> from luthier import graph
      >>> config = luthier.experiment("quickstart")
      >>> [place.path for place in graph.matching(config, "any:num_heads")]
      ['model.block.attention.num_heads']
    """
    try:
        statement = pair(target, None)
        if statement.selector == "path":
            return [find(graph, target)]
        return selection.select(graph, statement, lambda: selection.every_place(graph))
    except Unreadable as error:
        raise OverrideError(error.problem) from None


def _read_all(
    overrides: Sequence[Override], origin: str, problems: list[Problem]
) -> Iterator[tuple[Statement, str]]:
    """Yield each statement with its origin; add unreadable ones to the problems."""
    # A generator, but `apply` exhausts it before the first edit. A file is read here, so that an
    # override in it is applied at the position of `file:`, and is counted as its file and line.
    for index, override in enumerate(overrides, 1):
        if not isinstance(override, str):
            where = f"{_numbered(origin, index)}: {override[0]}={override[1]!r}"
            try:
                yield pair(*override), where
            except Unreadable as error:
                problems.append(dataclasses.replace(error.problem, origin=where))
            continue
        text, at = override.strip(), _numbered(origin, index)
        words = [(text, at)]
        if text.startswith(override_files.FILE):
            try:
                words = list(
                    override_files.read_overrides(text.removeprefix(override_files.FILE).strip())
                )
            except BadInput as error:
                override_origin = f"{at}: {text}"
                problems += [
                    dataclasses.replace(p, origin=p.origin or override_origin)
                    for p in error.problems
                ]
                continue
        for word, place in words:
            try:
                yield parse_statement(word), f"{place}: {word}"
            except Unreadable as error:
                problems.append(dataclasses.replace(error.problem, origin=f"{place}: {word}"))


def _reads_file(override: Override) -> bool:
    """Return whether an override reads a file: of overrides, or of a front end."""
    text = override.strip() if isinstance(override, str) else ""
    selector = text.partition(":")[0]
    return text.startswith(override_files.FILE) or front_ends.words_of(selector) is not None


def _front_end(statement: Statement) -> str:
    """Return the selector of a front end's statement; empty for the grammar's own statements."""
    return statement.selector if front_ends.words_of(statement.selector) else ""


def _apply_words(
    editor: _Editor,
    selector: str,
    group: Sequence[tuple[Statement, str]],
    statements: Sequence[tuple[Statement, str]],
    packages: Sequence[str],
    problems: list[Problem],
    on_note: front_ends.OnNote,
) -> None:
    """Apply neighbouring statements of a front end, which are meant as one."""
    # The front end also sees all of its statements (`every`), since some count wherever they are:
    # gin's search paths, say.
    apply_words = front_ends.words_of(selector)
    assert apply_words is not None
    words = [(statement.target, where) for statement, where in group]
    every = [statement.target for statement, _ in statements if statement.selector == selector]
    try:
        editor.change(lambda graph: apply_words(graph, words, every, packages, on_note))
    except BadInput as error:
        problems += error.problems


def _numbered(origin: str, index: int) -> str:
    # `argument 3`; but `trial 7:` of a sweep, whose overrides nobody typed in an order.
    return origin.removesuffix(":") if origin.endswith(":") else f"{origin} {index}"


class _Editor:
    """Applies statements to a graph in place."""

    # `_places` caches every place of the graph by every path, which patterns are matched against,
    # so that several patterns walk a large graph once. It is dropped (set to None) by each edit
    # after which a path may be new, gone, or lead elsewhere. Setting a leaf keeps it, so the values
    # in it may be old, and `apply` reads them again.

    def __init__(
        self,
        graph: Graph,
        around: expressions.Surroundings,
        shelves: Sequence[str] | None,
        recorded: references.Recorded | None,
        on_note: front_ends.OnNote = front_ends.drop_note,
    ):
        self.graph = graph
        self._on_note = on_note
        self._set: dict[str, Statement] = {}  # the last statement that set each path
        self._surroundings = around
        self._shelves = shelves
        self._recorded = recorded
        self._places: list[Place] | None = None
        self._read_before: dict[Any, Any] = {}

    def apply(self, statement: Statement, where: str) -> None:
        """Apply one statement to every place that it matches."""
        self._read_before.clear()  # it is for the places of one statement: its keys omit the text
        if statement.selector == "fiddler":
            packages = self._surroundings.packages
            before = {path: self._text_at(path) for path in self._set}
            self.graph = fiddlers.run_fiddler(
                self.graph, statement.target, where, self._shelves, packages
            )
            self._places = None
            self._note_replaced(before, statement)
            return
        if statement.selector == "path":
            places = [self._find(parse_path(statement.target), statement)]
        else:
            selected = selection.select(self.graph, statement, self._every_place)
            # What earlier statements set is not in the places that were found before them.
            places = [
                place._replace(value=child_of(place.owner, place.part)[0]) for place in selected
            ]
        for place in places:
            try:
                self._edit(place, statement, where)
            except Unreadable as error:
                problem = error.problem
                if not problem.path:
                    problem = dataclasses.replace(problem, path=place.path)
                raise Unreadable(problem) from error
            if statement.operator in ("=", ":=") and not statement.has_value:
                self._set[place.path] = statement

    # Overrides apply in the order in which they are written, so a fiddler may undo one that stands
    # before it. That is legal, and seldom meant: `training.steps=20 fiddler:debug`.
    def _note_replaced(self, before: Mapping[str, str], fiddler: Statement) -> None:
        for path, old in before.items():
            new = self._text_at(path)
            if new == old:
                continue
            statement = self._set.pop(path)
            own = f"{statement.target}{statement.operator}{statement.text}"
            self._on_note(
                f"fiddler:{fiddler.target} replaced {path}={old} by {new}; "
                f"to keep your value, write {own} after it"
            )

    def _text_at(self, path: str) -> str:
        try:
            value = find(self.graph, parse_path(path)).value
        except UnknownReference:  # the fiddler has removed what holds it
            return "nothing"
        try:
            return text_of(values.evaluate(value))
        except (ValueError, ArithmeticError, TypeError):  # a number of epochs, or a cycle
            return text_of(value)

    def change(self, function: Callable[[Graph], Graph]) -> None:
        """Replace the graph by the result of a function of it."""
        self.graph = function(self.graph)
        self._places = None

    def _every_place(self) -> list[Place]:
        if self._places is None:
            self._places = selection.every_place(self.graph)
        return self._places

    def _find(self, parts: Path, statement: Statement) -> Place:
        # A path must exist, except for a new key of a dict, which only `:=` may add: a misspelt key
        # with `=` would otherwise add a setting that nothing reads.
        place, depth = locate(self.graph, parts)
        if not parts:
            raise Unreadable("the graph itself cannot be replaced")
        if depth == len(parts):
            return place
        is_new_key = depth == len(parts) - 1 and isinstance(place.value, dict)
        if is_new_key and isinstance(parts[-1], str):
            if statement.operator == ":=" or statement.adds:
                return Place(format_path(parts), UNSET, place.value, parts[-1], place.is_default)
            remedy = f"to add a key, write {format_path(parts)}:=..."
            near = nearest(parts[-1], [key for key in place.value if isinstance(key, str)])
            near = [join(place.path, key) for key in near]
            raise Unreadable(Problem("does not exist", format_path(parts), "", remedy, near))
        leaves, places = _is_scalar(statement), _Lazy(self._every_place)
        raise UnknownPath(unknown_path(self.graph, parts, depth, place.value, leaves, places))

    def meant(self, statement: Statement, error: UnknownPath) -> Sequence[str]:
        """Return what may be meant by a statement whose path does not exist, best first.

        Returns:
          Paths that take its operator and value, and whole statements where these are others.
          Where one of them can be applied, all of them can.
        """
        if statement.has_value:
            return list(error.problem.nearest)
        end = f"{statement.operator}{statement.text}"
        similar = [f"{path}{end}" for path in error.problem.nearest]
        # Tried, because a name says little about what is behind it: `dropout=0.1` is similar to the
        # path of a layer, which is no place for a number. Where a name has a meaning, paths of
        # similar names would only change it.
        known = [*aliases.statements(statement, self._every_place())]
        *above, last = parse_path(statement.target)
        paths = map(parse_path, error.problem.nearest)
        if above and any(path[-1] == last and len(path) == len(above) + 1 for path in paths):
            known = []  # the name is right, and what is before it is misspelt
        for words in (self._called(statement), known, similar):
            tried = itertools.islice(dict.fromkeys(words), _MOST_TRIED)
            fitting = (word for word in tried if self._accepts(word))
            if found := list(itertools.islice(fitting, _MOST_MEANT)):
                break
        return [word.removesuffix(end) for word in found] or list(error.problem.nearest)

    def _called(self, statement: Statement) -> list[str]:
        """Return the call of a bare class by which a setting of it can be set: `a=Layer(b=1)`."""
        *above, name = parse_path(statement.target)
        place, depth = locate(self.graph, tuple(above))
        is_bare = callable(place.value) and not is_node(place.value)
        if statement.operator != "=" or not above or depth < len(above) or not is_bare:
            return []
        if name not in signatures.arguments(place.value).names:
            return []
        owner = format_path(tuple(above))
        return [f"{owner}={display_name(place.value)}({name}={statement.text})"]

    def meant_value(self, statement: Statement, path: str) -> Sequence[str]:
        """Return statements that may be meant by one whose value its place does not take.

        Args:
          statement: The statement.
          path: The first place that does not take it; `any:` may match others that do.
        """
        if statement.has_value or statement.selector not in ("path", "any"):
            return []
        target = statement.target
        values_meant = list(aliases.values(target, statement.text))
        values_meant += filter(None, [_OF_YAML.get(statement.text.lower())])
        if interpolation := re.fullmatch(r"\$\{([\w.\[\]]+)\}", statement.text):  # of Hydra
            values_meant.append(f"ref:{interpolation[1]}")
        # `Evaluation(data=alias:data)`: inside of a call a reference begins with `$`.
        inside = re.sub(r"(?<=[=(,\s])(alias:|ref:|&)(?=[A-Za-z_])", r"$", statement.text)
        values_meant += [inside] if inside != statement.text else []
        # `optimizer=optax.adam(1e-3)`: of its stages, with a learning rate that is recorded.
        if called := re.fullmatch(_OPTAX, statement.text):
            stage, rate = called.groups()
            values_meant.append(f"luthier.optim.assemble([optax.scale_by_{stage}()], {rate})")
        prefix = "any:" if statement.selector == "any" else ""
        found = []
        for value in values_meant:
            # Not every place of a name need be of one kind: `dropout` is a layer, or a number.
            places = (f"{prefix}{target}", path or target)
            words = [f"{place}{statement.operator}{value}" for place in places]
            found += list(itertools.islice(filter(self._accepts, words), 1))
        if statement.selector == "path" and statement.operator == "=":
            words = []
            # `steps=steps*2` and `length=2*dim`, as a program would write it.
            if own := re.fullmatch(rf"{re.escape(target)}\s*([*+-])\s*(.+)", statement.text):
                words.append(f"{target}{own[1]}={own[2]}")
            if re.search(r"[A-Za-z_]\w*\.[A-Za-z_]", statement.text):
                words.append(f"{target}=ref:{statement.text}")
            # `precision=bf16`: the name of a function that edits the config.
            if statement.text.isidentifier():
                words.append(f"fiddler:{statement.text}")
            found += filter(self._accepts, words)
        return found

    def sweep_of(self, statement: Statement) -> str:
        """Return the remedy for `peak=1e-3,1e-4`, where each of the values would do."""
        # As Hydra's --multirun writes it.
        each = [text.strip() for text in statement.text.split(",")]
        if statement.selector != "path" or len(each) < 2 or re.search(r"[\[({'\"]", statement.text):
            return ""
        if not all(text and self._accepts(f"{statement.target}={text}") for text in each):
            return ""
        space = f"{statement.target}=choice({','.join(each)})"
        return f"to try each, write `luthier sweep REF --space '{space}'`"

    def _accepts(self, word: str) -> bool:
        copy = copies.copy_graph(self.graph)
        editor = _Editor(copy, self._surroundings, self._shelves, self._recorded)
        try:
            editor.apply(parse_statement(word), "")
        except (Unreadable, BadInput):
            return False
        return True

    def _edit(self, place: Place, statement: Statement, where: str) -> None:
        # In order: find the new value (taken from elsewhere, combined, or read), check that it may
        # stand here, and put it there. All checks come before the first change of the graph, apart
        # from references, which turn the plain value that they refer to into a shared constant.
        # `=` at a constant sets the constant, for all its users; `:=` replaces it at this path.
        if statement.operator == "~":
            setting.reset(self.graph, place.path, where)
            self._places = None
            return
        annotation = annotation_at(self.graph, place)
        start = origins.now()
        referred = None
        if statement.operator in ("=", ":=") and not statement.has_value:
            target = parse_path(place.path)
            referred = references.take(
                self.graph, target, statement.text, annotation, self._recorded
            )
        if referred is not None:
            if statement.operator != ":=":
                self._refuse_on_node(place, referred[0], annotation, statement)
            # Where there is no annotation, a reference may bring a value of another type; for other
            # values, `expected` takes the type of the current one (below).
            fitting.check(referred[0], annotation)
            value = referred[0]
            # An alias shares one object between two places, so it replaces a constant at this path
            # even by `=`: put in the constant, it would also move the constant's other users, and
            # the two places would still hold different nodes. A value of a run is like any other
            # value; constants of the run end there, since nothing here uses them.
            is_alias = statement.text.startswith(("alias:", "&"))
            at_constant = statement.operator != ":=" and not is_alias
            at_constant = at_constant and not scalars.is_real_node(value)
            if at_constant and values.is_constant(place.value):
                value = values.evaluate(value)
            self._put(place, value, where, at_constant)
            return
        if statement.operator in ("+=", "-=", "*="):
            value = self._combined(place, annotation, statement)
        else:
            value = self._read(place, annotation, statement)
        if statement.operator != ":=":
            self._refuse_on_node(place, value, annotation, statement)
        fitting.check(value, fitting.expected(annotation, place.value))
        if values.is_value_node(value):
            into_constant = statement.operator != ":="
            references.refuse_circle(self.graph, parse_path(place.path), value, into_constant)
        if not statement.has_value:
            # Nodes that reading the text has made would carry lines of this package as origin. A
            # value from Python keeps its history: its caller made it.
            origins.stamp_since(start, value, where)
        self._put(place, value, where, at_constant=statement.operator != ":=")

    def _read(self, place: Place, annotation: Any, statement: Statement) -> Any:
        if statement.has_value:
            # A copy for each place: later overrides edit it in place, and the caller's own stays as
            # it is.
            value = copies.copy_graph(lazy.settle(statement.value, annotation))
            return value if is_container(value) else fitting.coerce(value, annotation)
        # A pattern may match thousands of places, all of one kind: a scalar is parsed once. Lists
        # and nodes are made again for each place, since they must not be shared by accident.
        like = (id(annotation), type(place.value))
        if like in self._read_before:
            return self._read_before[like]
        try:
            around = self._around(place)
            value = literals.interpret(statement.text, annotation, place.value, around)
        except Unreadable as error:
            # `optimizer=3e-4`: that a node cannot be replaced by a number helps more than that the
            # number is not an optimizer.
            if statement.operator == "=" and not error.problem.nearest and _is_scalar(statement):
                self._refuse_on_node(place, statement.text, annotation, statement)
            raise
        if type(value) in (bool, int, float, str) and not is_container(place.value):
            self._read_before[like] = value
        return value

    def _around(self, place: Place) -> expressions.Surroundings:
        # A bare name in a value (`activation=gelu`) is searched in the modules of what is there now
        # and of the node that holds it.
        near = [place.value] if callable(place.value) and not is_node(place.value) else []
        near += [type(place.value)] if is_dataclass_instance(place.value) else []
        nodes = [node for node in (place.value, place.owner) if scalars.is_real_node(node)]
        near += [node.__fn_or_cls__ for node in nodes]
        return dataclasses.replace(
            self._surroundings,
            near=near,
            reference=lambda parts: references.refer(self.graph, parts),
        )

    def _refuse_on_node(
        self, place: Place, value: Any, annotation: Any, statement: Statement
    ) -> None:
        text = fitting.shown(statement.value) if statement.has_value else statement.text

        def admits(field: Place) -> bool:
            try:
                literals.read(text, annotation_at(self.graph, field), field.value)
            except (Unreadable, BadInput):
                return False
            return True

        scalars.refuse_on_node(place, value, annotation, f"{statement.operator}{text}", admits)

    def _combined(self, place: Place, annotation: Any, statement: Statement) -> Any:
        if scalars.is_real_node(place.value):
            self._refuse_on_node(place, statement.text, Any, statement)
        if place.value is UNSET or place.value is None:
            raise Unreadable(f"is not set, so {statement.operator} has nothing to work on; write =")
        around = self._around(place)
        return arithmetic.combine(
            statement.operator, place.value, statement.text, annotation, around
        )

    def _put(self, place: Place, value: Any, where: str, at_constant: bool) -> None:
        # The cached places stay valid only if no path appears or disappears: neither the old nor
        # the new value has anything below it, and the owner is changed in place. Tuples and
        # dataclasses are replaced as a whole up to the next node, and so is a default.
        holds = is_node(place.owner) or isinstance(place.owner, list | dict)
        keeps_places = holds and not (
            is_container(value) or is_container(place.value) or place.is_default
        )
        if at_constant and values.is_constant(place.value):
            if value is not place.value:  # `steps=$steps` says nothing
                setting.replace(place.value, "value", value, where)
        else:
            setting.replace_at(self.graph, place, value, where)
            keeps_places = keeps_places and not values.is_value_node(place.value)
        if not keeps_places or values.is_value_node(value) or place.value is UNSET:
            self._places = None


def _is_scalar(statement: Statement) -> bool:
    if statement.has_value:
        return not is_node(statement.value)
    return "(" not in statement.text and not statement.text.startswith(("alias:", "&"))


class _Lazy:
    """Every place of the graph, found at the first use: most messages need none."""

    def __init__(self, places: Callable[[], list[Place]]):
        self._places = places

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places())


def annotation_at(graph: Graph, place: Place) -> Any:
    """Return the resolved annotation of a place; `Any` where there is none.

    Args:
      graph: A node.
      place: A place of it, or a new key of a dict.

    Returns:
      The type, as `typing.get_type_hints` resolves it: a class, or a union or generic of them.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> graph.annotation_at(config, graph.find(config, "b2"))
      <class 'float'>
    """
    if is_node(place.owner) and isinstance(place.part, str):
        return signatures.type_hints(place.owner.__fn_or_cls__).get(place.part, Any)
    # Inside a container the annotation is that of an argument further out, `tuple[int, ...]`, say:
    # follow the path and go one level into the annotation with each part.
    annotation, value = Any, graph
    for part in parse_path(place.path):
        if is_node(value) or is_dataclass_instance(value):
            target = value.__fn_or_cls__ if is_node(value) else type(value)
            if isinstance(part, int):
                positional = signatures.arguments(target).positional_only
                part = positional[part] if part < len(positional) else part
            annotation = signatures.type_hints(target).get(part, Any)
        else:
            annotation = types.element(annotation, type(value), part)
        if value is not place.owner:
            value, _ = child_of(value, part)
    return annotation
