"""Bindings applied to a graph, whatever their order, in one pass from the root down.

A node gets the bindings of its class before anything below it is visited. So a binding may come
before the statement that makes the node which it configures, and a part that another binding
replaces need not be bound.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fiddle as fdl
from fiddle import history

from luthier.errors import BadInput, Problem, listed
from luthier.graph import copies, origins, signatures, templates, values
from luthier.graph.formats.gin import statements
from luthier.graph.formats.gin import values as constants  # its part on macros
from luthier.graph.formats.gin import values as fitted  # its part on annotations
from luthier.graph.formats.gin.lookup import Lookup, key
from luthier.graph.formats.gin.statements import (
    Binding,
    GinReference,
    MacroUse,
    Unit,
    read_file,
    read_text,
)
from luthier.graph.formats.gin.values import REQUIRED, BindingTarget, Maker
from luthier.graph.grammar import expressions, literals
from luthier.graph.grammar.front_ends import OnNote, drop_note
from luthier.graph.grammar.statements import GIN, Unreadable
from luthier.graph.paths import format_path, is_container, nearest, parse_path, walk
from luthier.graph.record.structure import entries
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph


@dataclasses.dataclass(frozen=True)
class Bound:
    """A binding with the class or function that its selector names.

    Args:
      target: The class or function.
      binding: The statement.
      order: The number of bindings before it.
    """

    target: Any
    binding: Binding
    order: int

    @property
    def precedence(self) -> tuple[int, int]:
        """The depth of its scope, then its order: the highest wins, as in gin."""
        scope = self.binding.scope
        return (scope.count("/") + 1 if scope else 0, self.order)


class Overlay:
    """Applies one unit of statements, and collects its problems.

    Args:
      unit: The statements.
      packages: The user's own packages.
      skip_unknown: Whether unknown names, and bindings that no node uses, are skipped.
    """

    def __init__(self, unit: Unit, packages: Sequence[str] = (), skip_unknown: bool = False):
        self.problems = list(unit.problems)
        self.directives = statements.gather(unit.directives, self.problems)
        self.skip_unknown = skip_unknown
        self.lookup = Lookup(packages, self.directives.is_export)
        self.unit = unit
        self.skipped: list[str] = []
        self._bound: dict[int, list[Bound]] = {}
        self._tags: dict[int, list[tuple[str, str, Any]]] = {}
        self._used: set[int] = set()
        self._visited: dict[int, Any] = {}
        self._words: dict[int, list[tuple[str, ...]]] = {}
        self._is_whole = True
        self._constants: constants.Constants
        self._maker: Maker

    def apply(self, graph: Graph) -> Any:
        """Apply the bindings to a graph, in place, and return it.

        Args:
          graph: A node.

        Raises:
          BadInput: There are problems; all of them are listed.
        """
        if self._prepare(graph):
            self._visit(graph)
            self._finish(graph)
        self._raise_any()
        return graph

    def make(self, root: GinReference, where: str) -> Any:
        """Return the graph that a reference describes.

        Args:
          root: The reference.
          where: The origin of the reference.

        Raises:
          BadInput: There are problems; all of them are listed.
        """
        graph = None
        if self._prepare(None):
            try:
                graph = self._maker.value(root, "", where)
            except Unreadable as error:
                self._add(error, where)
                self._is_whole = False
            self._finish(graph)
        self._raise_any()
        return graph

    def _raise_any(self) -> None:
        if self.problems:
            raise BadInput(dict.fromkeys(_hashable(problem) for problem in self.problems))

    def _prepare(self, graph: Graph) -> bool:
        """Look up all names; return whether enough of them are known to continue."""
        # Names are looked up before anything is set: what an import registers can be meant by any
        # binding of the unit, and errors about a graph that is half bound would be misleading.
        if self.problems:
            return False  # each statement that could not be read would cause further errors
        nodes = [] if graph is None else list(copies.nodes_of(graph))
        self.lookup.add(node.__fn_or_cls__ for node in nodes if not values.is_value_node(node))
        problems = self.lookup.import_all(self.unit.imports)
        if self.skip_unknown:
            # The end of the origin, `FILE:LINE: import a.b`, is the statement.
            self.skipped += [problem.origin.rpartition(":")[2].strip() for problem in problems]
        else:
            self.problems += problems
        if self.problems:
            return False
        self._learn_names()
        macros = [found for found in self.unit.bindings if not found.argument]
        self._constants = constants.Constants(macros, nodes, self.directives, self.lookup)
        self._maker = Maker(self._constants, self.lookup, self.directives, self)
        for order, binding in enumerate(self.unit.bindings):
            if binding.argument:
                self._resolve(binding, order)
        self._resolve_tags()
        if graph is not None and any(found.scope for found in self.unit.bindings):
            self._note_paths(graph)
        return True

    def _learn_names(self) -> None:
        """Let a class that is named in full in one place be named by the end of its name in all."""
        for binding in self.unit.bindings:
            referred = [found.name.rpartition("/")[2] for found in references(binding.value)]
            for name in (*referred, binding.selector if binding.argument else ""):
                if "." in name and not name.startswith("gin."):
                    with contextlib.suppress(Unreadable):  # it is reported where it is used
                        self.lookup.add([self.lookup.configurable(name)])

    def _resolve(self, binding: Binding, order: int) -> None:
        if binding.selector in ("singleton", "gin.singleton"):
            self._constants.singletons[binding.scope] = binding
            return
        try:
            target = self.lookup.configurable(binding.selector)
            check_argument(target, binding.argument)
        except Unreadable as error:
            is_known = "has no argument" in error.problem.what
            if is_known or not self.skip_unknown:
                self._add(error, binding.where)
                self._lose(binding)
            else:
                self.skipped.append(f"{binding.target}.{binding.argument}")
            return
        self._bound.setdefault(key(target), []).append(Bound(target, binding, order))

    def _resolve_tags(self) -> None:
        for name, argument, tag, where in self.directives.tags:
            scope, _, selector = name.rpartition("/")
            try:
                target, found = self.lookup.configurable(selector), self.lookup.configurable(tag)
                check_argument(target, argument)
            except Unreadable as error:
                self._add(error, where)
                continue
            self._tags.setdefault(key(target), []).append((scope, argument, found))

    def _note_paths(self, graph: Graph) -> None:
        """Note the names on every path to every node, which scopes are matched with.

        A node of a given graph was not made by a reference with a scope. For it, a scope means its
        paths: `held_out/Packed.length` binds every `Packed` below something called `held_out`.
        """
        self._words[id(graph)] = [()]
        for place in walk(graph, defaults=False):
            if isinstance(place.value, fdl.Buildable) and not values.is_value_node(place.value):
                self._words.setdefault(id(place.value), []).append(_path_words(place.path))

    def bound_to(self, target: Any, scope: str) -> list[Bound]:
        """Return the bindings of a class or function in a scope, one for each argument.

        Args:
          target: The class or function.
          scope: The scopes of the reference that makes it, with slashes.
        """
        return self._winners(
            found
            for found in self._bound.get(key(target), ())
            if _begins(scope, found.binding.scope)
        )

    def _winners(self, matching: Iterable[Bound]) -> list[Bound]:
        best: dict[str, Bound] = {}
        for found in matching:
            self._used.add(found.order)
            argument = found.binding.argument
            if argument not in best or found.precedence > best[argument].precedence:
                best[argument] = found
        return sorted(best.values(), key=lambda found: found.order)

    def _lose(self, binding: Binding) -> None:
        """Note that nodes may be missing, because a binding could not be applied."""
        self._is_whole = self._is_whole and not any(references(binding.value))

    def _visit(self, value: Any) -> None:
        """Bind the nodes in a value; nodes that `bind_new` made are bound already."""
        # A node is bound before its children are listed: a binding may replace a child, and then it
        # is the new one that is visited.
        pending = [value]
        while pending:
            found = pending.pop()
            if id(found) in self._visited or values.is_value_node(found):
                continue
            if is_container(found):
                self._visited[id(found)] = found
            if isinstance(found, fdl.Buildable):
                words = self._words.get(id(found), [()])
                self._bind(
                    found,
                    "",
                    self._winners(
                        bound
                        for bound in self._bound.get(key(found.__fn_or_cls__), ())
                        if _lies_on(words, bound.binding.scope)
                    ),
                )
            pending += [child for _, child in entries(found) or ()]

    def bind_new(self, node: fdl.Buildable, scope: str) -> None:
        """Apply the bindings and tags of its class to a node that was made in a scope.

        Args:
          node: The node.
          scope: Its scopes.
        """
        self._visited[id(node)] = node
        self._bind(node, scope, self.bound_to(node.__fn_or_cls__, scope))
        for tagged, argument, tag in self._tags.get(key(node.__fn_or_cls__), ()):
            if _begins(scope, tagged):
                node.__argument_tags__[argument].add(tag)

    def _bind(self, node: fdl.Buildable, scope: str, bound: Sequence[Bound]) -> None:
        for found in bound:
            try:
                self._set(node, scope, found)
            except Unreadable as error:
                self._add(error, found.binding.where)
                self._lose(found.binding)
            except BadInput as error:
                located = [
                    dataclasses.replace(p, origin=found.binding.where) for p in error.problems
                ]
                self.problems += located
                self._lose(found.binding)

    def _set(self, node: fdl.Buildable, scope: str, found: Bound) -> None:
        binding, argument = found.binding, found.binding.argument
        # `%gin.REQUIRED` makes an argument mandatory: it is unset here, and `validate` reports it
        # unless something sets it later.
        if isinstance(binding.value, MacroUse) and binding.value.name in REQUIRED:
            if argument in node.__arguments__:
                del node.__arguments__[argument]
                origins.stamp(node, argument, history.DELETED, binding.where)
            return
        target = BindingTarget(node.__fn_or_cls__, argument)
        known = signatures.arguments(node.__fn_or_cls__)
        current = node.__arguments__.get(argument, known.defaults.get(argument, UNSET))
        value = self._value(binding, scope, target.annotation, current)
        # An export has the very values of a graph: `'gelu'` is text there, not a function.
        if not self.directives.is_export:
            # `@Dropout()` for `@Dropout`: the parent makes the module from its template.
            for _, config in list(templates.misplaced("", value, target.annotation)):
                templates.make_template(config)
            value = fitted.fit(value, target.annotation, current, self.lookup)
        # A binding without a scope sets a shared value for all its users, and a macro takes it
        # over, as a FieldReference does. One in a scope is for the nodes of that scope alone: it
        # takes them out of the sharing, or `held_out/Packed.length` would change the training data.
        if values.is_constant(current) and not binding.scope:
            if any(node is current for node in copies.nodes_of(value)):
                return  # the macro stands for this very constant
            # A node or container replaces the constant here alone, since constants hold values.
            if values.is_value_node(value) or not is_container(value):
                self._constants.assign(current, value, binding.where)
                return
        with history.suspend_tracking():
            setattr(node, argument, value)
        origins.stamp(node, argument, value, binding.where)

    def _value(self, binding: Binding, scope: str, annotation: Any, current: Any) -> Any:
        try:
            return self._maker.value(binding.value, scope, binding.where)
        except Unreadable:
            # `@relu` in the place of `jax.nn.silu`: as overrides do, it is also looked for beside
            # what is there now.
            value = binding.value
            if not isinstance(value, GinReference) or value.is_called or not callable(current):
                raise
            around = expressions.Surroundings(near=[current], packages=self.lookup.packages)
            with contextlib.suppress(Unreadable):
                return literals.read(value.name, annotation, current, around)
            raise

    def _finish(self, graph: Graph) -> None:
        """Report the bindings that no node uses, and settle the constants."""
        # Where a reference could not be made, its bindings are unused for that reason alone.
        if not self._is_whole:
            return
        unused = [
            found
            for of_target in self._bound.values()
            for found in of_target
            if found.order not in self._used
        ]
        for found in sorted(unused, key=lambda found: found.order):
            if self.skip_unknown:
                self.skipped.append(f"{found.binding.target}.{found.binding.argument}")
            else:
                problem = _nothing_there(found, self._unused_macros(found))
                self._add(Unreadable(problem), found.binding.where)
        self.problems += self._constants.settle(graph, checked=not self.directives.is_export)

    def _unused_macros(self, found: Bound) -> list[str]:
        """Return the macros that make a node of a binding's class, and that nothing uses.

        A file of a model leaves it to the file of a run to use its macro of an optimizer.
        """
        used = {
            use.name
            for binding in self.unit.bindings
            for use in references(binding.value)
            if isinstance(use, MacroUse)
        }
        makers = []
        for macro in self.unit.bindings:
            if macro.argument or macro.selector in used:
                continue
            for reference in references(macro.value):
                if not isinstance(reference, GinReference):
                    continue
                with contextlib.suppress(Unreadable):
                    name = reference.name.rpartition("/")[2]
                    if key(self.lookup.configurable(name)) == key(found.target):
                        makers.append(macro.selector)
        return makers

    def _add(self, error: Unreadable, where: str) -> None:
        origin = error.problem.origin or where
        self.problems.append(dataclasses.replace(error.problem, origin=origin))


def references(value: Any) -> Iterator[GinReference | MacroUse]:
    """Yield the references, and the macros, that a value holds."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from references(item)
    elif isinstance(value, GinReference | MacroUse):
        yield value


def check_argument(target: Any, argument: str) -> None:
    """Check that a class or function takes an argument.

    Args:
      target: The class or function.
      argument: The argument.

    Raises:
      Unreadable: It takes no such argument.
    """
    known = signatures.arguments(target)
    if argument in known.names or known.has_kwargs:
        return
    near = nearest(argument, known.names)
    name = getattr(target, "__name__", str(target))
    remedy = "" if near else f"it takes {listed(known.names) or 'none'}"
    raise Unreadable(Problem(f"{name} has no argument {argument!r}", "", "", remedy, near))


def _nothing_there(found: Bound, macros: Sequence[str] = ()) -> Problem:
    name = getattr(found.target, "__name__", str(found.target))
    inside = f" in the scope {found.binding.scope!r}" if found.binding.scope else ""
    remedy = "leave it out, or allow such bindings with --gin_skip_unknown"
    what = f"the graph has no node of {name}{inside}"
    if macros:
        what += f"; the macro {macros[0]}, which makes one, is used by nothing here"
        remedy = (
            f"add the file that uses %{macros[0]}, or a binding such as ARGUMENT = %{macros[0]}"
        )
    return Problem(what, remedy=remedy)


def _begins(scope: str, own: str) -> bool:
    """Return whether a binding in the scope `own` applies to a node that was made in `scope`."""
    return not own or scope == own or scope.startswith(f"{own}/")


def _lies_on(ways: Sequence[tuple[str, ...]], scope: str) -> bool:
    """Return whether the parts of a scope are on one of the paths to a node, in their order."""
    if not scope:
        return True
    for words in ways:
        left = iter(words)  # `in` consumes it: each part is looked for behind the one before
        if all(part in left for part in scope.split("/")):
            return True
    return False


def _path_words(path: str) -> tuple[str, ...]:
    """Return the parts of a path as scopes can name them: `layers_0`, `held_out`."""
    words: collections.deque[str] = collections.deque()
    for part in parse_path(path):
        if isinstance(part, int) and words:
            words.append(f"{words.pop()}_{part}")
        else:
            words.append(re.sub(r"\W+", "_", format_path((part,))).strip("_"))
    return tuple(words)


def _hashable(problem: Problem) -> Problem:
    return dataclasses.replace(problem, nearest=tuple(problem.nearest))


# Gin files applied to a graph, or read as a graph of their own.

_FILE, _BINDINGS, _SEARCH_PATHS, _SKIP_UNKNOWN = GIN
_NUM_LISTED = 12
_FALSE = ("", "false", "0", "no")


def from_gin(text: str, packages: Sequence[str] = (), source: str = "config.gin") -> Any:
    """Return the graph that a gin file describes.

    Args:
      text: The output of `to_gin`, or any gin file with a line `# luthier: root @Name()`.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: The file that the text was read from; with the line, it is the origin of every value.

    Returns:
      The graph. The output of `to_gin` becomes an equal one, with its sharing and tags.

    Raises:
      BadInput: The text cannot be read, or names objects that may not be imported or do not exist;
        all problems are listed.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> graph.equal(graph.from_gin(graph.to_gin(config)), config)
      True
    """
    unit = Unit()
    read_text(unit, text, source)
    overlay = Overlay(unit, packages)
    if overlay.directives.root is None:
        remedy = "add a line `# luthier: root @Name()`, or name the root with --gin_root"
        problem = Problem(f"{source} does not name its root", remedy=remedy)
        raise BadInput([*overlay.problems, problem])
    root, where = overlay.directives.root
    return overlay.make(root, where)


def make_root(name: str, overrides: Sequence[Any], packages: Sequence[str] = ()) -> fdl.Config:
    """Return a node of a class, for gin files to configure.

    Args:
      name: The class or function; the end of its dotted name is enough where a file imports it.
      overrides: The overrides of the command line: the imports of their gin files are imported.
      packages: The user's own packages.

    Raises:
      BadInput: There is no class or function of this name.
    """
    words = [word for word in overrides if isinstance(word, str) and word.startswith(GIN)]
    unit = unit_of([(word, word) for word in words], search_paths(words))
    lookup = Lookup(packages)
    lookup.import_all(unit.imports)  # their problems are reported when they are applied
    try:
        return expressions.make_node(lookup.configurable(name), fdl.Config)
    except Unreadable as error:
        raise BadInput(dataclasses.replace(error.problem, origin="--gin_root")) from None


def apply_words(
    graph: Graph,
    words: Sequence[tuple[str, str]],
    every: Sequence[str],
    packages: Sequence[str] = (),
    on_note: OnNote = drop_note,
) -> Any:
    """Apply consecutive gin overrides, as one unit, in place.

    Args:
      graph: A node.
      words: The overrides (`gin_file:a.gin` and the like), each with its origin.
      every: All gin overrides: search paths and `gin_skip_unknown:` are for all of them.
      packages: The user's own packages.
      on_note: Takes a line with what `gin_skip_unknown:` skipped.

    Returns:
      The graph.

    Raises:
      BadInput: There are problems; all of them are listed, with file and line.
    """
    skip = [word.partition(":")[2].strip() for word in every if word.startswith(_SKIP_UNKNOWN)]
    skip_unknown = any(value.lower() not in _FALSE for value in skip)
    unit = unit_of(words, search_paths(every))
    overlay = Overlay(unit, packages, skip_unknown)
    graph = overlay.apply(graph)
    if overlay.skipped:
        on_note(_summary(overlay.skipped))
    return graph


def _summary(skipped: Sequence[str]) -> str:
    """Return a line about what was skipped, the first of it by name."""
    names = list(dict.fromkeys(skipped))
    more = f" and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else ""
    count = f"{len(names)} statement{'s' if names[1:] else ''} of gin"
    shown = ", ".join(names[:_NUM_LISTED])
    return (
        f"--gin_skip_unknown skipped {count} that this experiment has no place for: {shown}{more}"
    )


def files_of(words: Sequence[str]) -> dict[str, str]:
    """Return the files that gin overrides read, included ones too, and their texts.

    Args:
      words: Overrides; others than those of gin are ignored.
    """
    own = [word for word in words if word.startswith(GIN)]
    return unit_of([(word, word) for word in own], search_paths(own)).files


def search_paths(words: Sequence[str]) -> list[str]:
    """Return the search paths among gin overrides, in their order.

    Args:
      words: Gin overrides.
    """
    given = [word.removeprefix(_SEARCH_PATHS) for word in words if word.startswith(_SEARCH_PATHS)]
    return [path.strip() for paths in given for path in paths.split(",") if path.strip()]


def unit_of(words: Sequence[tuple[str, str]], paths: Sequence[str]) -> Unit:
    """Return the statements of gin overrides.

    Args:
      words: The overrides, each with its origin.
      paths: The folders in which files are looked for.
    """
    unit = Unit()
    for word, where in words:
        kind, _, text = word.partition(":")
        if f"{kind}:" == _FILE:
            read_file(unit, text.strip(), paths, where)
        elif f"{kind}:" == _BINDINGS:
            read_text(unit, text.strip(), where, paths, is_word=True)
    return unit
