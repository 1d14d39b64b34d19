"""The statements of gin files and bindings, included files expanded, each with its origin.

The parser is gin's own, which keeps no state. Comments that begin with `# luthier:` are directives
for what gin cannot express; they are listed below.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from luthier.errors import Problem
from luthier.graph.paths import nearest

_DIRECTIVE = re.compile(r"#\s*luthier:\s*(\S+)\s*(.*)")
_MOST_ERRORS = 10
_TOKEN = re.compile(r"Failed to parse token '(.*)'", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class GinReference:
    """`@scope/Name` or `@scope/Name()`."""

    name: str
    is_called: bool

    def __str__(self) -> str:
        return f"@{self.name}{'()' if self.is_called else ''}"


@dataclasses.dataclass(frozen=True)
class MacroUse:
    """`%NAME`."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """`scope/selector.argument = value`; a macro's definition has no argument.

    Args:
      scope: The scopes before the name, with slashes between them.
      selector: The end of a configurable's dotted name, or a macro's name.
      argument: The argument; empty for a macro.
      value: Literals, lists, tuples and dicts of them, references and macros.
      where: Its origin: file, line and text.
      is_word: Whether it was given on the command line.
    """

    scope: str
    selector: str
    argument: str
    value: Any
    where: str
    is_word: bool = False

    @property
    def target(self) -> str:
        """The scoped name whose argument is bound, as it was written."""
        return f"{self.scope}/{self.selector}" if self.scope else self.selector


@dataclasses.dataclass(frozen=True)
class Import:
    """`import a.b`, `import a.b as c`, `from a import b`."""

    module: str
    is_from: bool
    alias: str
    where: str


@dataclasses.dataclass(frozen=True)
class Directive:
    """A directive: the comment `# luthier: KIND TEXT`."""

    kind: str
    text: str
    where: str


@dataclasses.dataclass
class Unit:
    """Statements that are applied together, whatever their order.

    Args:
      bindings: Macros and bindings, in their order.
      imports: The imports.
      directives: The directives.
      problems: The problems of statements that could not be read.
      files: The files that were read, included ones too, and their texts.
    """

    bindings: list[Binding] = dataclasses.field(default_factory=list)
    imports: list[Import] = dataclasses.field(default_factory=list)
    directives: list[Directive] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    files: dict[str, str] = dataclasses.field(default_factory=dict)


class _Delegate:
    """Classes for references and macros, which gin's parser looks up here."""

    # Gin's own delegate resolves names in its global registry while it parses. With plain data
    # instead, parsing needs no registry, and leaves no trace in the process.
    configurable_reference = staticmethod(GinReference)
    macro = staticmethod(MacroUse)


def read_file(unit: Unit, name: str, search_paths: Sequence[str], origin: str) -> None:
    """Add the statements of a file to a unit.

    Args:
      unit: The unit that the statements and their problems are added to.
      name: The file, as it was given.
      search_paths: Folders in which files are looked for, after the working directory.
      origin: The origin of the name, for errors.
    """
    _read_file(unit, name, search_paths, origin, ())


def read_text(
    unit: Unit,
    text: str,
    source: str,
    search_paths: Sequence[str] = (),
    *,
    is_word: bool = False,
) -> None:
    """Add the statements of a text to a unit.

    Args:
      unit: The unit that the statements and their problems are added to.
      text: Statements of gin.
      source: The file that they were read from; `FILE:LINE` is their origin.
      search_paths: Folders in which included files are looked for.
      is_word: Whether they were given on the command line; then `source` alone is their origin.
    """
    _read_text(unit, text, source, search_paths, is_word, ())


def read_value(text: str) -> Any:
    """Return one value of gin: `@Experiment()`, say.

    Args:
      text: The value.

    Raises:
      ValueError: It is not a value of gin.
    """
    from gin import config_parser

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parser = config_parser.ConfigParser(text, _Delegate)
            value = parser.parse_value()
            rest = parser.current_token.string.strip()
    except (SyntaxError, tokenize.TokenError, TypeError, StopIteration, RecursionError) as error:
        raise ValueError(str(error)) from None
    if rest:
        raise ValueError(f"{rest!r} is left over")
    return value


def _read_file(
    unit: Unit, name: str, search_paths: Sequence[str], origin: str, above: tuple[str, ...]
) -> None:
    # Gin looks in the working directory and the search paths. Last, an include is looked for beside
    # the file that names it, so that a folder of configs works from anywhere.
    beside = [os.path.dirname(above[-1])] if above else []
    candidates = [os.path.join(place, name) for place in ("", *search_paths, *beside)]
    path = next((found for found in candidates if os.path.isfile(found)), "")
    if not path:
        places = ", ".join(dict.fromkeys(place or "." for place in ("", *search_paths, *beside)))
        remedy = "" if above or search_paths else "--gin_search_paths names folders to look in"
        what = f"there is no gin file {name!r} in {places}"
        unit.problems.append(Problem(what, origin=origin, remedy=remedy))
        return
    identity = os.path.realpath(path)
    if identity in above:
        unit.problems.append(Problem(f"the gin file {path} includes itself", origin=origin))
        return
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        unit.problems.append(Problem(f"cannot read {path}: {reason}", origin=origin))
        return
    unit.files[path] = text
    _read_text(unit, text, path, search_paths, False, (*above, identity))


def _read_text(
    unit: Unit,
    text: str,
    source: str,
    search_paths: Sequence[str],
    is_word: bool,
    above: tuple[str, ...],
) -> None:
    """Add the statements of a text; an include is replaced by the statements of its file."""
    from gin import config_parser

    # Order matters where two bindings set the same argument (the later wins, as in gin), so an
    # included file is read where its statement is, and not after the file around it.
    lines = text.splitlines()

    def place(number: int) -> str:
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return source if is_word else f"{source}:{number}: {line}".removesuffix(": ")

    # Directives are comments, which gin's parser drops, so they are read apart.
    for number, directive in _directives(text):
        unit.directives.append(dataclasses.replace(directive, where=place(number)))
    for found in _statements(text):
        if isinstance(found, _Failure):
            unit.problems.append(Problem(found.what, origin=place(found.line), remedy=found.remedy))
            continue
        where = place(found.location.line_num)
        # An override names its target itself; a line in a block does not.
        if isinstance(found, config_parser.BindingStatement) and not is_word:
            where = _with_target(where, found)
        if isinstance(found, config_parser.IncludeStatement):
            _read_file(unit, found.filename, search_paths, where, above)
        elif isinstance(found, config_parser.ImportStatement):
            unit.imports.append(Import(found.module, found.is_from, found.alias or "", where))
        elif isinstance(found, config_parser.BindingStatement):
            unit.bindings.append(_binding(found, where, is_word))
        # A BlockDeclaration adds nothing: each binding of its block has its scope and selector.


def _with_target(where: str, found: Any) -> str:
    """Return the origin of a binding without its comment; in a block, with the block's head."""
    head, statement = re.fullmatch(r"(.*?:\d+: )?(.*)", where, re.DOTALL).groups("")  # type: ignore
    statement = re.sub(r"\s+#[^'\"]*$", "", statement)
    target = f"{found.scope}/{found.selector}" if found.scope else found.selector
    return f"{head}{statement if statement.startswith(target) else f'{target}.{statement}'}"


def _binding(found: Any, where: str, is_word: bool) -> Binding:
    """Return a binding; `NAME/macro.value = 3` is a macro too."""
    if found.selector in ("macro", "gin.macro") and found.arg_name == "value" and found.scope:
        scope, _, name = found.scope.rpartition("/")
        return Binding(scope, name, "", found.value, where, is_word)
    return Binding(found.scope, found.selector, found.arg_name, found.value, where, is_word)


@dataclasses.dataclass(frozen=True)
class _Failure:
    """A statement that the parser could not read."""

    what: str
    line: int
    remedy: str = ""


# Since Python 3.12 the tokenizer raises errors of all kinds for them. Surrogates stand for bytes of
# the command line that are not UTF-8.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _statements(text: str) -> Iterator[Any]:
    """Yield the statements of a text; after an unreadable one, continue behind its line."""
    from gin import config_parser

    # All problems of a file are reported at once, so parsing resumes after an error. Where it
    # resumes is a guess: the rest of a multi-line value may be reported as errors of its own, hence
    # a limit on their number. The tokenizer cannot resume, so its errors end the text.
    if no_text := _NO_TEXT.search(text):
        line = text.count("\n", 0, no_text.start()) + 1
        yield _Failure("this is not text: it has a zero byte, or bytes that are not UTF-8", line)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings: the text is the user's
        try:
            parser = config_parser.ConfigParser(text, _Delegate)
        except (SyntaxError, tokenize.TokenError, ValueError) as error:
            yield _failure(error)
            return
        for _ in range(_MOST_ERRORS):
            try:
                while (statement := parser.parse_statement()) is not None:
                    yield statement
                return
            except (SyntaxError, ValueError, TypeError, RecursionError) as error:
                # A TypeError is a list as a key, `{[1]: 2}`: gin evaluates literals with `ast`.
                yield _failure(error, parser.current_token.start[0])
            except tokenize.TokenError as error:
                # Python 3.11 reports the line after the last one, where the text ends.
                failure = _failure(error)
                yield dataclasses.replace(failure, line=min(failure.line, len(text.splitlines())))
                return
            except StopIteration:
                yield _Failure("the text ends inside of a statement", text.count("\n") + 1)
                return
            try:
                parser.advance_one_line()
            except (StopIteration, SyntaxError, tokenize.TokenError):
                return  # the error above is reported already


def _failure(error: Exception, line: int = 1) -> _Failure:
    if isinstance(error, tokenize.TokenError):
        message, (line, _) = error.args
        message = message.removeprefix("unexpected ")  # Python 3.12
        return _Failure(f"cannot read this as gin: {message}", line)
    if isinstance(error, RecursionError):
        return _Failure("the value is nested too deeply", line)
    message = str(getattr(error, "msg", None) or error)
    token = _TOKEN.search(message)
    if token:
        what = f"cannot read {token[1]!r} as a value of gin"
        return _Failure(what, getattr(error, "lineno", None) or line, "text needs quotes")
    message = " ".join(message.split())[:200].rstrip(".")
    what = f"cannot read this as gin: {message[:1].lower()}{message[1:]}"
    return _Failure(what, getattr(error, "lineno", None) or line)


def _directives(text: str) -> Iterator[tuple[int, Directive]]:
    """Yield the directives of a text, with their lines."""
    # From tokens and not from lines: `#` may stand inside of a string.
    if "luthier:" not in text or _NO_TEXT.search(text):
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _DIRECTIVE.match(token.string) if token.type == tokenize.COMMENT else None
            if match:
                yield token.start[0], Directive(match[1], match[2].strip(), "")
    except (SyntaxError, tokenize.TokenError):
        return  # the parser reports it


# Directives: comments in gin files for what gin cannot express. Gin ignores them, so that an export
# is a valid gin file all the same. Every export begins with the first.
#
#   # luthier: format 1                    this is an export: values are taken exactly as written
#   # luthier: root @Experiment()          the root, where there is no graph to change
#   # luthier: partial scope/Name          @scope/Name is a template, though it has no arguments
#   # luthier: factory scope/Name          @scope/Name is made anew for every call (fdl.ArgFactory)
#   # luthier: instance scope/Name         @scope/Name() is an object made on reading, not a node
#   # luthier: tag scope/Name.arg pkg.Tag  the argument has this tag
#   # luthier: shared NAME                 every %NAME is the same node; gin makes one for each
#   # luthier: called NAME "dim"           the name of the constant NAME; null: it has no name
#   # luthier: value NAME {"dtype": ...}   %NAME is this value, in the JSON of records

VERSION = "1"
KINDS = (
    *("format", "root", "partial", "factory", "instance"),
    *("tag", "shared", "called", "value"),
)


@dataclasses.dataclass
class Directives:
    """The directives of a unit, gathered.

    Args:
      is_export: Whether values are taken exactly as written.
      root: The value of the root, with its origin; None where none is named.
      kinds: `partial`, `factory` or `instance` for scoped names.
      tags: (scoped name, argument, tag, origin).
      shared: The macros whose value is one shared node.
      called: The names of constants by their macros.
      values: JSON values by their macros, with their origins.
    """

    is_export: bool = False
    root: tuple[Any, str] | None = None
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)
    shared: set[str] = dataclasses.field(default_factory=set)
    called: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)


def gather(directives: Sequence[Directive], problems: list[Problem]) -> Directives:
    """Gather directives.

    Args:
      directives: The comments, in their order.
      problems: The list that problems are added to.
    """
    found = Directives()
    for directive in directives:
        try:
            _add(found, directive)
        except ValueError as error:
            near = nearest(directive.kind, KINDS) if directive.kind not in KINDS else []
            problems.append(Problem(str(error), origin=directive.where, nearest=near))
    return found


def _add(found: Directives, directive: Directive) -> None:
    # An unknown directive is an error and not a comment: it is misspelt, or of a later luthier, and
    # the graph would silently be another one.
    kind, text = directive.kind, directive.text
    if kind not in KINDS:
        raise ValueError(f"there is no directive {kind!r}")
    name, _, rest = text.partition(" ")
    if kind == "format":
        if text != VERSION:
            raise ValueError(f"format {text} is not {VERSION}, which this luthier reads")
        found.is_export = True
    elif kind == "root":
        value = read_value(text)
        if not isinstance(value, GinReference):
            raise ValueError(f"{text!r} is not a reference; write @Name()")
        found.root = (value, directive.where)
    elif kind in ("partial", "factory", "instance"):
        found.kinds[text] = kind
    elif kind == "tag":
        target, _, argument = name.rpartition(".")
        if not target or not rest:
            raise ValueError("a tag directive is `tag scope/Name.argument package.Tag`")
        found.tags.append((target, argument, rest.strip(), directive.where))
    elif kind == "shared":
        found.shared.add(text)
    else:
        data = _json(rest)
        if kind == "value":
            found.values[name] = (data, directive.where)
        elif data is None or isinstance(data, str):
            found.called[name] = data or ""
        else:
            raise ValueError(f"{rest} is not a name")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{text[:60]!r} is not JSON") from None
