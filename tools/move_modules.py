"""Merge or rename modules of the package, and update everything that names them.

    python tools/move_modules.py PLAN.toml [--check]

A plan is a list of moves, done one after another:

    [[move]]
    to = "luthier.graph.grammar"
    from = ["luthier.graph.grammar.statements", "luthier.graph.grammar"]
    doc = "The grammar of overrides."
    rename = { "luthier.graph.grammar.statements:parse" = "parse_statement" }

`from` is in the order of the text; a package there means its `__init__.py`, whose imports from the
other modules become definitions. `doc` replaces the docstring of the first; other docstrings become
comments where the definitions of their modules begin. Imports between merged modules vanish,
imports from elsewhere are united. A private name that two of them define is renamed (`_read`
becomes `_read_statements`); two public ones are refused, unless `rename` says how. So is a name
that a local variable would hide. Importers, dotted names in strings and texts, and paths are
updated in the whole repository; what a reader should look at is printed.

Run `ruff check --fix`, `ruff format`, mypy, tools/goldens/public_names.py and the tests afterwards.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence

PACKAGE = "luthier"
ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "framework"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class MoveError(Exception):
    """A move that would change what the code means."""


def path_of(module: str) -> pathlib.Path:
    """Return the file of a module or package; of one that is not there, as if it were a module."""
    folder = SOURCES.joinpath(*module.split("."))
    package = folder / "__init__.py"
    return package if package.exists() else folder.with_suffix(".py")


@functools.cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


class Source:
    """A Python text, edited by the positions that its syntax tree gives.

    Args:
      text: The text.
      module: The module's dotted name; empty for what is not part of the package.
      is_package: Whether it is an `__init__.py`.
    """

    def __init__(self, text: str, module: str = "", is_package: bool = False) -> None:
        self.text, self.module, self.is_package = text, module, is_package
        self.tree = _parse(text)
        # ast counts columns in bytes of UTF-8.
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._edits: dict[tuple[int, int], str] = {}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset

    def lines_span(self, node: ast.AST) -> tuple[int, int]:
        """Return the whole lines of a node."""
        return self._starts[node.lineno - 1], self._starts[node.end_lineno]

    def edit(self, begin: int, end: int, text: str) -> None:
        """Replace bytes later, with `result`."""
        self._edits[begin, end] = text

    def result(self, begin: int = 0, end: int | None = None) -> str:
        """Return the edited text, or the part of it between two places of the unedited one."""
        data = self.text.encode()
        end = len(data) if end is None else end
        parts, at = [], begin
        for (first, last), text in sorted(self._edits.items()):
            if first < at or last > end:
                continue
            parts += [data[at:first], text.encode()]
            at = last
        return b"".join([*parts, data[at:end]]).decode()


@dataclasses.dataclass
class _Scope:
    node: ast.AST
    names: set[str]


def _bound_in(body: Iterable[ast.AST], parameters: ast.arguments | None) -> set[str]:
    """Return the names that a scope binds by itself, those declared `global` left out."""
    names, declared = set(), set()
    if parameters is not None:
        every = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
        every += [each for each in (parameters.vararg, parameters.kwarg) if each]
        names |= {each.arg for each in every}
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.Global):
            declared |= set(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            stack += node.decorator_list
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, _COMPREHENSIONS):
            # Only the walrus leaks out of a comprehension.
            names |= {w.target.id for w in ast.walk(node) if isinstance(w, ast.NamedExpr)}
            continue
        stack += list(ast.iter_child_nodes(node))
    return names - declared


def uses(tree: ast.Module) -> Iterator[tuple[ast.Name, list[_Scope]]]:
    """Yield each name that is used, with the function scopes around it, innermost last."""

    def visit(node: ast.AST, scopes: list[_Scope]) -> Iterator[tuple[ast.Name, list[_Scope]]]:
        if isinstance(node, ast.Name):
            yield node, scopes
            return
        if isinstance(node, _FUNCTIONS):
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            outer = [*getattr(node, "decorator_list", []), *node.args.defaults]
            outer += [each for each in node.args.kw_defaults if each]
            for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                outer += [each.annotation] if each.annotation else []
            for each in (node.args.vararg, node.args.kwarg):
                outer += [each.annotation] if each and each.annotation else []
            outer += [node.returns] if getattr(node, "returns", None) else []
            for each in outer:
                yield from visit(each, scopes)
            inner = [*scopes, _Scope(node, _bound_in(body, node.args))]
            for each in body:
                yield from visit(each, inner)
            return
        if isinstance(node, _COMPREHENSIONS):
            bound = set()
            for generator in node.generators:
                bound |= {n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
            yield from visit(node.generators[0].iter, scopes)
            inner = [*scopes, _Scope(node, bound)]
            for index, generator in enumerate(node.generators):
                yield from visit(generator.target, inner)
                if index:
                    yield from visit(generator.iter, inner)
                for each in generator.ifs:
                    yield from visit(each, inner)
            values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            for each in values:
                yield from visit(each, inner)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scopes)

    yield from visit(tree, [])


def _is_local(name: str, scopes: Sequence[_Scope]) -> bool:
    return any(name in scope.names for scope in scopes)


def _definitions(tree: ast.Module) -> dict[str, ast.AST]:
    """Return what a module defines at its top level, imports left out."""
    names: dict[str, ast.AST] = {}

    def collect(body: Iterable[ast.AST]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names[node.name] = node
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
                if not _is_type_checking(node):
                    collect(getattr(node, "body", []))
                    collect(getattr(node, "orelse", []))
                    for handler in getattr(node, "handlers", []):
                        collect(handler.body)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for each in ast.walk(target):
                        if isinstance(each, ast.Name):
                            names[each.id] = node
            elif isinstance(node, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()):
                names[node.name.id] = node

    collect(tree.body)
    return names


def _is_same(one: ast.AST, other: ast.AST) -> bool:
    """Return whether two modules define a constant in the same words."""
    return isinstance(one, ast.Assign) and ast.dump(one) == ast.dump(other)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _imports(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Yield each import, and where it stands: "top", "typing" or "inner"."""
    top = set(map(id, tree.body))
    typing = {id(n) for each in tree.body if _is_type_checking(each) for n in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, ("top" if id(node) in top else "typing" if id(node) in typing else "inner")


class Repository:
    """The texts of the repository, by path."""

    def __init__(self, root: pathlib.Path) -> None:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        self.root = root
        self.texts: dict[pathlib.Path, str] = {}
        for name in filter(None, listing.split("\0")):
            path = root / name
            if not path.is_file() or path.is_symlink():
                continue
            try:
                self.texts[path] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
        self._before = dict(self.texts)

    def module_of(self, path: pathlib.Path) -> str:
        """Return the dotted name of a module of the package; empty for other files."""
        if path.suffix != ".py" or SOURCES not in path.parents:
            return ""
        parts = path.relative_to(SOURCES).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def modules(self) -> set[str]:
        """Return the names of all modules of the package."""
        return {self.module_of(path) for path in self.texts if self.module_of(path)}

    def flatten(self) -> None:
        """Make modules of packages that have lost all others."""
        for path in [p for p in self.texts if p.name == "__init__.py" and SOURCES in p.parents]:
            old = path.parent
            others = [p for p in self.texts if old in p.parents and p != path]
            had = [p for p in self._before if old in p.parents and p != path]
            if had and not others:
                self.texts[old.with_suffix(".py")] = self.texts.pop(path)

    def write(self) -> list[str]:
        """Write what changed; return the paths."""
        changed = []
        for path in {*self._before, *self.texts}:
            if self.texts.get(path) == self._before.get(path):
                continue
            changed.append(str(path.relative_to(self.root)))
            if path in self.texts:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.texts[path], encoding="utf-8")
            else:
                path.unlink()
                folder = path.parent
                while folder != self.root and not any(
                    each.name != "__pycache__" for each in folder.iterdir()
                ):
                    for cache in folder.iterdir():
                        for each in cache.iterdir():
                            each.unlink()
                        cache.rmdir()
                    folder.rmdir()
                    folder = folder.parent
        return sorted(changed)


@dataclasses.dataclass
class Move:
    """Modules that become one.

    Args:
      to: The module's name afterwards.
      sources: The modules, in the order of their text.
      rename: New names of definitions, by `module:name`.
      doc: The docstring; empty for that of the first.
    """

    to: str
    sources: list[str]
    rename: dict[str, str]
    doc: str = ""


def apply_move(repository: Repository, move: Move) -> list[str]:
    """Do a move in the texts of the repository; return remarks on what a reader should look at."""
    remarks: list[str] = []
    group = list(move.sources)
    sources: dict[str, Source] = {}
    for module in group:
        path = path_of(module)
        if path not in repository.texts:
            raise MoveError(f"{module} is not there")
        sources[module] = Source(repository.texts[path], module, path.name == "__init__.py")
    stems = {m: m.rpartition(".")[2] for m in group}
    for module, source in sources.items():
        if source.is_package:
            stems[module] = stems[module] + "_package"
    definitions = {m: _definitions(s.tree) for m, s in sources.items()}
    # New names of what the modules define.
    names: dict[tuple[str, str], str] = {}
    owner: dict[str, str] = {}
    every = {name for each in definitions.values() for name in each}
    shared: dict[str, list[ast.AST]] = {module: [] for module in group}
    for module in group:
        for name in definitions[module]:
            new = move.rename.get(f"{module}:{name}", name)
            if new == name == "__all__":
                continue
            if new in owner and _is_same(definitions[owner[new]][name], definitions[module][name]):
                shared[module].append(definitions[module][name])
                continue
            if new in owner:
                if not name.startswith("_"):
                    raise MoveError(f"{owner[new]} and {module} both define {new}: rename one")
                new = f"{name}_{stems[module].lstrip('_')}"
                if new in owner or new in every:
                    raise MoveError(f"{module}:{name} needs a name in `rename`")
                remarks.append(f"{module}:{name} is called {new} now")
            owner[new] = module
            names[module, name] = new
    texts = []
    tops: dict[tuple[str, str, str], None] = {}  # (from, name, as): the united imports
    typing: dict[tuple[str, str, str], None] = {}
    bindings: dict[str, tuple[str, str]] = {}  # local name -> what it is imported from
    for module in group:
        source = sources[module]
        edits = _Edits(source, group, names, move.to, own=module)
        # Imports of modules that stay: united; a name bound to two things gets another one.
        for node, where in _imports(source.tree):
            if where == "inner":
                continue
            for origin, name, local in _targets(node, source):
                if origin == "__future__" or edits.is_internal(origin, name):
                    continue
                new = local
                if new in owner or bindings.get(new, (origin, name)) != (origin, name):
                    new = f"{origin.rpartition('.')[2]}_{name}" if name else f"{local}_module"
                    if new in owner or bindings.get(new, (origin, name)) != (origin, name):
                        raise MoveError(f"{module}: no name for {origin}.{name}")
                    remarks.append(f"{module}: {local} ({origin}.{name}) is called {new} now")
                    edits.rename_local(local, new)
                bindings[new] = (origin, name)
                (tops if where == "top" else typing)[origin, name, new] = None
        edits.run()
        for name, node in definitions[module].items():
            new = names.get((module, name), name)
            if new != name and hasattr(node, "name"):
                edits.rename_definition(node, new)
        remarks += edits.remarks
        text = edits.body(shared[module])
        if text.strip() and (move.doc or module != group[0]):
            text = f"{_section(source)}\n\n{text.lstrip()}"
        texts.append(text)
    lines = [f'"""{move.doc}"""' if move.doc else _docstring(sources[group[0]]), ""]
    lines += ["from __future__ import annotations", "", *_import_lines(tops), ""]
    typing = {key: None for key in typing if key not in tops}
    if typing:
        if ("typing", "TYPE_CHECKING", "TYPE_CHECKING") not in tops:
            lines.insert(4, "from typing import TYPE_CHECKING")
        lines += ["if TYPE_CHECKING:", *("    " + line for line in _import_lines(typing)), ""]
    bodies = [part.strip("\n") for part in texts if part.strip()]
    text = "\n".join(lines) + "\n\n" + "\n\n\n".join(bodies)
    for module in group:
        del repository.texts[path_of(module)]
    package_left = any(repository.module_of(p).startswith(move.to + ".") for p in repository.texts)
    folder = SOURCES.joinpath(*move.to.split("."))
    new_path = folder / "__init__.py" if package_left else folder.with_suffix(".py")
    repository.texts[new_path] = text.rstrip("\n") + "\n"
    # Everybody else.
    word = re.compile(r"\b(" + "|".join(m.rpartition(".")[2] for m in group) + r")\b")
    for path, old in list(repository.texts.items()):
        if path == new_path:
            continue
        new = old
        if path.suffix == ".py" and PACKAGE in old and word.search(old):
            source = Source(old, repository.module_of(path), path.name == "__init__.py")
            edits = _Edits(source, group, names, move.to)
            edits.run()
            if source.is_package:
                edits.follow_relative_names()
            remarks += [f"{path.relative_to(ROOT)}: {each}" for each in edits.remarks]
            new = source.result()
        repository.texts[path] = new
    for path, old in list(repository.texts.items()):
        repository.texts[path] = _replace_texts(old, group, move.to, names)
    return remarks


def _docstring(source: Source) -> str:
    first = source.tree.body[0]
    if _is_docstring(first):
        begin, end = source.span(first)
        return source.text.encode()[begin:end].decode()
    raise MoveError(f"{source.module} has no docstring")


def _section(source: Source) -> str:
    """Return the docstring of a merged module as a comment, for where its definitions begin."""
    lines: list[str] = []
    for paragraph in (ast.get_docstring(source.tree) or source.module).split("\n\n"):
        lines += [""] if lines else []
        is_laid_out = any(line.startswith((" ", "-", "|")) for line in paragraph.splitlines())
        lines += paragraph.splitlines() if is_laid_out else textwrap.wrap(paragraph, 98)
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _targets(node: ast.Import | ast.ImportFrom, source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name, local name) of an import; the name is empty for a module as a whole."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield each.name, "", each.asname or each.name
        return
    origin = node.module or ""
    if node.level:
        parts = source.module.split(".")
        parts = parts if source.is_package else parts[:-1]
        parts = parts[: len(parts) - node.level + 1]
        origin = ".".join([*parts, *([node.module] if node.module else [])])
    for each in node.names:
        yield origin, each.name, each.asname or each.name


def _import_lines(imports: Mapping[tuple[str, str, str], None]) -> list[str]:
    lines = []
    for origin, name, local in sorted(imports):
        if not name:
            lines.append(f"import {origin}" + (f" as {local}" if local != origin else ""))
        else:
            lines.append(f"from {origin} import {name}" + (f" as {local}" if local != name else ""))
    return lines


class _Edits:
    """What a move changes in one text: in a merged module (`own`), or in an importer."""

    def __init__(
        self,
        source: Source,
        group: Sequence[str],
        names: Mapping[tuple[str, str], str],
        to: str,
        own: str = "",
    ) -> None:
        self.source, self.group, self.names, self.to, self.own = source, set(group), names, to, own
        self.remarks: list[str] = []
        self._renamed: dict[str, str] = {}  # global names of this text
        if own:
            self._renamed = {n: new for (m, n), new in names.items() if m == own and n != new}

    def is_internal(self, origin: str, name: str) -> bool:
        """Return whether an import is of what becomes the merged module."""
        if f"{origin}.{name}" in self.group:
            return True
        return origin in self.group and path_of(f"{origin}.{name}") not in _ORIGINAL

    def rename_local(self, local: str, new: str) -> None:
        """Rename what an import binds."""
        self._renamed[local] = new

    def follow_relative_names(self) -> None:
        """Update strings that name a merged module relative to this package (lazy facades)."""
        package = self.source.module + "."
        for node in ast.walk(self.source.tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if package + node.value in self.group and self.to.startswith(package):
                self.source.edit(*self.source.span(node), f'"{self.to.removeprefix(package)}"')

    def rename_definition(self, node: ast.AST, new: str) -> None:
        """Rename a function or class where it is defined."""
        begin = self.source.span(node)[0]
        data = self.source.text.encode()
        match = re.compile(rf"(?:def|class)\s+({node.name})\b".encode()).search(data, begin)
        self.source.edit(*match.span(1), new)

    def run(self) -> None:
        """Collect all edits."""
        source = self.source
        modules: dict[int, dict[str, str]] = {}  # scope (0: module) -> local name -> merged module
        aliases: dict[int, dict[str, str]] = {}  # scope -> local name -> new name
        parents = {
            id(child): node
            for node in ast.walk(source.tree)
            for child in ast.iter_child_nodes(node)
        }
        bound_at_top = {*_definitions(source.tree)}
        for node, _where in _imports(source.tree):
            bound_at_top |= {each[2].partition(".")[0] for each in _targets(node, source)}
        for node, where in _imports(source.tree):
            targets = list(_targets(node, source))
            internal = [t for t in targets if self.is_internal(t[0], t[1])]
            if not internal:
                continue
            scope = 0 if where in ("top", "typing") else id(self._function_of(node, parents))
            kept, new_imports = [t for t in targets if t not in internal], []
            for origin, name, local in internal:
                whole = f"{origin}.{name}" if name and f"{origin}.{name}" in self.group else ""
                if whole and self._through(origin, name) not in (None, (origin, name)):
                    whole = ""  # the package itself imports something of that name
                if origin in self.group and (origin, name) in self.names:
                    whole = ""
                if not name:  # import luthier.a.b [as c]
                    if local == origin:
                        new_imports.append((self.to, "", self.to))
                        continue
                    whole = origin
                if whole:
                    noun = self.to.rpartition(".")[2]
                    modules.setdefault(scope, {})[local] = whole
                    if not self.own:
                        # The binding keeps a name that the text gave it; else it follows the file.
                        taken = self._is_taken(noun, source.tree) or (
                            noun in bound_at_top and noun != local
                        )
                        new = local if name != local or not name or taken else noun
                        if new != local:
                            aliases.setdefault(scope, {})[local] = new
                        parent, _, last = self.to.rpartition(".")
                        new_imports.append((parent, last, new))
                    continue
                new = self.names.get((origin, name))
                if new is None:
                    # What a merged package's __init__ or module itself imported from elsewhere.
                    target = self._through(origin, name)
                    if target is None:
                        self.remarks.append(f"line {node.lineno}: {origin} defines no {name}")
                        new = name
                    elif target[0] in self.group:
                        new = self.names.get((target[0], target[1]), target[1])
                    else:
                        if not self.own:
                            new_imports.append((target[0], target[1], local))
                        elif local != target[1]:
                            aliases.setdefault(scope, {})[local] = target[1]
                        continue
                if self.own:
                    if local != new:
                        aliases.setdefault(scope, {})[local] = new
                elif name != local:
                    new_imports.append((self.to, new, local))
                else:
                    if new != local:
                        aliases.setdefault(scope, {})[local] = new
                    new_imports.append((self.to, new, new))
            begin, end = source.lines_span(node)
            indent = " " * node.col_offset
            lines = [indent + line for line in _import_lines(dict.fromkeys([*kept, *new_imports]))]
            data = source.text.encode()
            comment = data[source.span(node)[1] : end].decode().strip()
            if comment.startswith("#"):
                lines = [f"{line}  {comment}" for line in lines]
            if not lines and where == "inner" and data[end : end + 1] == b"\n":
                end += 1
            if self.own and where != "inner":
                continue  # `body` leaves the imports of the top out
            parent = parents[id(node)]
            if not lines and len(getattr(parent, "body", [])) == 1:
                lines = [indent + "pass"]
            source.edit(begin, end, "".join(line + "\n" for line in lines))
        if not (modules or aliases or self._renamed):
            return
        for name, scopes in uses(source.tree):
            self._use(name, scopes, modules, aliases, parents)

    def _is_taken(self, noun: str, tree: ast.Module) -> bool:
        return any(
            (isinstance(n, ast.Name) and n.id == noun) or (isinstance(n, ast.arg) and n.arg == noun)
            for n in ast.walk(tree)
        )

    def _through(self, origin: str, name: str) -> tuple[str, str] | None:
        """Return where a merged module has a name from that it imports itself."""
        path = path_of(origin)
        text = _ORIGINAL.get(path)
        if text is None:
            return None
        source = Source(text, origin, path.name == "__init__.py")
        for node, where in _imports(source.tree):
            if where == "inner":
                continue
            for target, each, local in _targets(node, source):
                if local == name:
                    return target, each
        return None

    def _function_of(self, node: ast.AST, parents: Mapping[int, ast.AST]) -> ast.AST:
        while not isinstance(node, _FUNCTIONS) and id(node) in parents:
            node = parents[id(node)]
        return node

    def _use(self, name, scopes, modules, aliases, parents) -> None:
        source = self.source
        # Which binding does the name mean? The innermost function that binds it, or the module.
        scope = 0
        for each in reversed(scopes):
            if name.id in each.names:
                scope = id(each.node)
                break
        known = {**modules.get(scope, {}), **aliases.get(scope, {})}
        if scope and name.id not in known:
            return
        whole = modules.get(scope, {}).get(name.id)
        begin, end = source.span(name)
        if whole is None:
            new = aliases.get(scope, {}).get(name.id)
            if new is None and not scope:
                new = self._renamed.get(name.id)
            if new is not None and new != name.id:
                inner = [each for each in scopes if id(each.node) != scope]
                if _is_local(new, inner):
                    raise MoveError(
                        f"{source.module or 'a text'} line {name.lineno}: "
                        f"{new} (was {name.id}) is a local name"
                    )
                source.edit(begin, end, new)
            elif self.own and new is not None and _is_local(new, scopes) and not scope:
                raise MoveError(f"{source.module} line {name.lineno}: {new} is a local name")
            return
        parent = parents.get(id(name))
        if not isinstance(parent, ast.Attribute) or parent.value is not name:
            if self.own:
                self.remarks.append(f"{source.module} line {name.lineno}: the module as a value")
            elif aliases.get(scope, {}).get(name.id):
                source.edit(begin, end, aliases[scope][name.id])
            return
        new = self.names.get((whole, parent.attr), parent.attr)
        if (whole, parent.attr) not in self.names:
            target = self._through(whole, parent.attr)
            if target is not None:
                new = self.names.get(target, parent.attr)
            elif self.own:
                self.remarks.append(f"{source.module} line {name.lineno}: no {whole}.{parent.attr}")
        if not self.own:
            local = aliases.get(scope, {}).get(name.id, name.id)
            first, last = source.span(parent)
            if first == begin:
                source.edit(begin, end, local)
                if new != parent.attr:
                    source.edit(last - len(parent.attr.encode()), last, new)
            return
        if _is_local(new, scopes):
            raise MoveError(
                f"{source.module} line {name.lineno}: {new} (was {name.id}.{new}) is a local name"
            )
        first, last = source.span(parent)
        source.edit(first, last, new)

    def body(self, shared: Sequence[ast.AST] = ()) -> str:
        """Return the text below the imports, with what stands between them."""
        source = self.source
        data_end = len(source.text.encode())
        removed: list[tuple[int, int]] = []
        for index, node in enumerate(source.tree.body):
            is_doc = index == 0 and _is_docstring(node)
            only_imports = _is_type_checking(node) and all(
                isinstance(each, ast.Import | ast.ImportFrom) for each in node.body
            )
            if (
                is_doc
                or only_imports
                or isinstance(node, ast.Import | ast.ImportFrom)
                or node in shared
            ) or (
                source.is_package
                and isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                removed.append(source.lines_span(node))
        parts, at = [], 0
        for begin, end in removed:
            parts.append(source.result(at, begin))
            at = end
        parts.append(source.result(at, data_end))
        return "".join(parts)


_ORIGINAL: dict[pathlib.Path, str] = {}


def _replace_texts(
    text: str, group: Sequence[str], to: str, names: Mapping[tuple[str, str], str]
) -> str:
    """Replace dotted names and paths of modules wherever else they are written."""
    for module in sorted(group, key=len, reverse=True):
        if module == to:
            continue
        for (origin, name), new in names.items():
            if origin == module and name != new:
                pattern = rf"(?<![\w.]){re.escape(module)}([.:]){re.escape(name)}(?!\w)"
                text = re.sub(pattern, rf"{to}\g<1>{new}", text)
        text = re.sub(rf"(?<![\w.]){re.escape(module)}(?![\w])(?!\.[a-z_]+\.py)", to, text)
        old, new = (each.replace(".", "/") for each in (module, to))
        text = re.sub(rf"(?<!\w){re.escape(old)}\.py(?!\w)", f"{new}.py", text)
        short, new = old.partition("/")[2], new.partition("/")[2]
        if "/" in short:
            text = re.sub(rf"(?<![\w/]){re.escape(short)}\.py(?!\w)", f"{new}.py", text)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    global ROOT, SOURCES
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="change nothing; print the remarks")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="of the git repository")
    options = parser.parse_args(arguments)
    ROOT, SOURCES = options.root.resolve(), options.root.resolve() / "framework"
    repository = Repository(ROOT)
    for entry in tomllib.loads(options.plan.read_text(encoding="utf-8"))["move"]:
        move = Move(entry["to"], entry["from"], entry.get("rename", {}), entry.get("doc", ""))
        _ORIGINAL.clear()
        _ORIGINAL.update(repository.texts)
        try:
            remarks = apply_move(repository, move)
        except MoveError as error:
            print(f"{move.to}: {error}", file=sys.stderr)
            return 2
        print(f"{move.to}: {len(move.sources)} modules")
        for remark in remarks:
            print(f"  {remark}")
    repository.flatten()
    if not options.check:
        for path in repository.write():
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
