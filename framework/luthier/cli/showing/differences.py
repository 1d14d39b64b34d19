"""Output of `luthier diff` and `luthier show --changes`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from luthier.cli.operands.operand import Operand
from luthier.errors import BadInput, Problem, RecordError
from luthier.terminal import printable

if TYPE_CHECKING:
    from luthier.graph import Graph

# `luthier diff A B`: two operands, in the terminal, as JSON, overrides, a fiddler, or a page.


def show(before: Operand, after: Operand, arguments: argparse.Namespace) -> bool:
    """Show the difference of two operands in the chosen format; return whether they differ.

    Args:
      before: The first operand.
      after: The second operand.
      arguments: The arguments of `luthier.cli.commands.diff`.
    """
    # One comparison serves all formats, so that they agree. Files (--patch, --html) come in
    # addition to the output; the tree is printed only if nothing else was asked for.
    comparison = comparison_of(before, after, arguments.only, arguments.ignore)
    effects = None
    if arguments.effects:
        from luthier.cli.operands import building

        effects = building.effects_of(before, after, arguments.devices)
    if arguments.patch:
        _write_patch(comparison, arguments.patch)
    if arguments.html or arguments.open:
        from luthier.view.diff import page

        write_page(page.render(comparison, effects), arguments.html, arguments.open)
    if arguments.json:
        document = comparison if effects is None else {**comparison, "effects": effects}
        print(json.dumps(document, indent=1))
    elif arguments.as_overrides:
        _print_overrides(comparison)
    elif arguments.markdown:
        from luthier.view.diff import markdown

        print(markdown.render_pair(comparison, effects, why=arguments.why), end="")
    elif not (arguments.patch or arguments.html or arguments.open):
        print_difference(comparison, effects, why=arguments.why)
    return bool(comparison["changes"])


def comparison_of(
    before: Operand, after: Operand, only: Any = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the comparison of two operands, as JSON values.

    Args:
      before: The first operand.
      after: The second operand.
      only: As for `luthier.view.diff.terminal.chosen`.
      ignore: As for `luthier.view.diff.terminal.chosen`.
    """
    from luthier.graph import compare
    from luthier.view.diff import terminal

    found = compare.to_json(compare.compare(before.document, after.document))
    return terminal.chosen(found, only, ignore)


def print_difference(
    comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None, *, why: bool = False
) -> None:
    """Print the differences as a tree, and their effects.

    Args:
      comparison: The JSON of a comparison.
      effects: The JSON of its effects; None to leave them out.
      why: Whether to show what set both sides of each change.
    """
    from luthier.view.diff import terminal

    content = [terminal.difference(comparison, why)]
    if effects is not None:
        content.append(terminal.consequences(effects, unicode=knows_unicode()))
    for part in content:
        print_drawn(part)


def print_drawn(content: Any) -> None:
    """Print a Rich renderable: in colour and as wide as the terminal, or plain into a pipe."""
    from luthier.view.diff import terminal

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    drawn = terminal.rendered(
        content, width=width_of_output(), colour=colour, unicode=knows_unicode()
    )
    print(drawn, end="")


def width_of_output() -> int:
    """Return the width of the terminal; unbounded in a pipe, where no line is broken."""
    from luthier.view.diff import terminal

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else terminal.UNBOUNDED


def knows_unicode() -> bool:
    """Return whether the standard output can print Unicode."""
    # Without an encoding (a test, an embedded interpreter) nothing is encoded, so nothing can fail.
    return (sys.stdout.encoding or "utf").lower().startswith("utf")


def write_page(html: str, file: str | None, opens: bool) -> None:
    """Write a page, and open it in a browser.

    Args:
      html: The page.
      file: The file to write; None is a temporary file, which is kept for the browser.
      opens: Whether to open it.

    Raises:
      BadInput: It cannot be written.
    """
    if file is None:
        path = Path(tempfile.mkdtemp(prefix="luthier-diff-"), "diff.html")
    else:
        path = Path(file)
    _write(path, html)
    print(path, file=sys.stderr)
    if opens:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _write_patch(comparison: Mapping[str, Any], file: str) -> None:
    """Write the fiddler that turns the first operand into the second."""
    # All or nothing: a fiddler that makes only a part of the difference would pass for the whole.
    patch = comparison["patch"]
    if patch is None:
        reasons = [Problem(one["reason"], one["path"]) for one in comparison["unsayable"]]
        raise BadInput([Problem("the difference cannot be written as a fiddler"), *reasons])
    if file == "-":
        print(patch, end="" if patch.endswith("\n") else "\n")
        return
    _write(Path(file), patch)
    print(file, file=sys.stderr)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(Problem(f"cannot write {path}: {error.strerror}")) from error


def _print_overrides(comparison: Mapping[str, Any]) -> None:
    """Print the overrides, quoted for a shell; changes that have no override are comments."""
    for word in comparison["overrides"]:
        print(_quoted(word))
    for one in comparison["unsayable"]:
        print(f"# {one['path'] or 'the root'}: {one['reason']}")


def _quoted(word: str) -> str:
    """Return an override quoted for a shell, in the more readable kind of quotes."""
    # `shlex.quote` writes an apostrophe as '"'"'. In double quotes nothing needs that, as long as
    # there is nothing that shells replace in them.
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)


def show_matrix(operands: Sequence[Operand], arguments: argparse.Namespace) -> bool:
    """Show the differences of many operands as a matrix; return whether there are any.

    Args:
      operands: Three or more operands; the others are compared with the first.
      arguments: The arguments of `luthier.cli.commands.diff`.
    """
    found = matrix_of(operands, arguments.only, arguments.ignore)
    if arguments.html or arguments.open:
        from luthier.view.diff import matrix

        write_page(matrix.render(found), arguments.html, arguments.open)
    if arguments.json or not (arguments.html or arguments.open):
        print_matrix(found, arguments.json)
    return bool(found["rows"])


def print_matrix(found: Mapping[str, Any], as_json: bool) -> None:
    """Print a matrix, as a table or as JSON.

    Args:
      found: The result of `matrix_of`.
      as_json: Whether to print JSON.
    """
    from luthier.view.diff import matrix

    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_drawn(matrix.table(found, width_of_output()))


def matrix_of(
    operands: Sequence[Operand], only: Any = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the matrix of many operands as JSON values.

    Args:
      operands: The operands; the others are compared with the first.
      only: As for `luthier.view.diff.terminal.chosen`.
      ignore: As for `luthier.view.diff.terminal.chosen`.
    """
    from luthier.view.diff import matrix

    # Against the first and not pairwise: a matrix of trials is read as changes of the base.
    first, *others = operands
    comparisons = [comparison_of(first, other, only, ignore) for other in others]
    columns = [
        {
            "title": operand.title,
            "state": operand.state,
            "link": os.fspath(operand.path.resolve()) if operand.path else "",
        }
        for operand in operands
    ]
    title = f"{len(others)} against {first.title}"
    nouns = {_noun(operand) for operand in operands}
    noun = nouns.pop() if len(nouns) == 1 else "config"
    return matrix.matrix(title, columns, comparisons, _objectives(operands), noun)


def _noun(operand: Operand) -> str:
    """Return the kind of an operand, for labels."""
    if operand.title.startswith("study:"):
        return "trial"
    return "config" if operand.metrics_path is None else "run"


def _objectives(operands: Sequence[Operand]) -> list[dict[str, Any]]:
    """Return the results of runs and trials: those objectives that all of them have."""
    # Operands without any result (an experiment, a trial that has not ended) get empty cells. A
    # metric that only some of the others have cannot be compared, and is left out; so are the
    # results of a single run among experiments.
    by_operand = [{one.name: one for one in operand.objectives} for operand in operands]
    having = [found for found in by_operand if found]
    if len(having) < 2:
        return []
    names = [name for name in (having[0] if having else ()) if all(name in h for h in having)]
    found = []
    for name in names:
        ones = [objectives.get(name) for objectives in by_operand]
        direction = next((one.direction for one in ones if one and one.direction), "")
        values = [one.value if one else None for one in ones]
        found.append({"name": name, "values": values, "direction": direction})
    return found


# `luthier diff --textconv`: a recorded graph as lines of text, for `git diff`.
#
# A line is a full path and its value, so that every line of a diff can be understood by itself.


def print_text(file: str) -> None:
    """Print a recorded graph as lines; any other file is printed as it is.

    Args:
      file: The path of a config.json, or a copy of one that git made.

    Raises:
      BadInput: It cannot be read.
    """
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(Problem(f"cannot read {file}: {error.strerror}")) from error
    try:
        lines = lines_of(text, file)
    except RecordError:  # a failing textconv makes git show nothing at all
        sys.stdout.write(text)
        return
    print("\n".join(lines))


def lines_of(text: str, source: str) -> list[str]:
    """Return a recorded graph as lines `path = value`, in the order of the graph.

    Args:
      text: The record.
      source: The name of its file, for messages.

    Raises:
      RecordError: The text is not a record.
    """
    # The rows of a comparison with itself are exactly the rows that `luthier diff` would show.
    from luthier.graph import compare

    document = compare.read(text, source)
    rows = compare.rows_of(compare.compare(document, document))
    return [f"{row.path} = {row.after}" if row.path else str(row.after) for row in rows]


# `luthier show --changes`: the changes by the overrides, files and fiddlers of a command line.
#
# Fiddle's history has an entry with an origin and a sequence number for every value that was set.
# An entry of the changed graph that the original does not have was set by the command line: by one
# of its arguments, or by a line of a file that it names. A change is attributed to the last of
# these entries at its path, above it, or inside of it.

_ARGUMENT = re.compile(r"(?P<override>\S+ \d+: .*?)(?:, (?P<line>[^\s,]+:\d+))?")
# `argument 3: training.steps*=2`, `small.gin:3: held_out/Packed.length = 32`, and a gin binding on
# the command line.
_PATH = re.compile(
    r"\S+[: ]\d+: (?:gin_bindings:)?(?:[^=:~\s]*/)?(?P<path>[^=:~\s]+?)\s*(?::|\*|\+|-)?="
)
_LINE_OF_CODE = re.compile(r"[^\s,]+:\d+")
_ELSEWHERE = "not set on the command line"


class _Set(NamedTuple):
    """One entry of the history: when, at which path, and by what."""

    sequence: int
    path: tuple[Any, ...]
    origin: str


def print_changes(before: Graph, after: Graph) -> None:
    """Print the difference between a graph and what a command line made of it.

    The changes are listed below the argument or the line of a file that caused them. A value that
    is changed twice is listed once, below the later cause.

    Args:
      before: The graph of the reference.
      after: The graph after all the overrides of the command line.
    """
    from luthier import graph as graphs

    # Groups are printed in the order of the command line, which is that of the sequence numbers;
    # the changes without a cause on the command line (defaults of another version, say) come first.
    sets = _new_sets(before, after)
    groups: dict[str, list[str]] = {}
    order: dict[str, int] = {}
    for change in graphs.diff(before, after):
        cause = _cause(sets, change)
        if cause is None or _LINE_OF_CODE.fullmatch(cause.origin):
            sequence, title, line = -1, f"{_ELSEWHERE}:", change.origin
        else:
            match = _ARGUMENT.fullmatch(cause.origin)
            title, line = (match["override"], match["line"] or "") if match else (cause.origin, "")
            sequence = cause.sequence
        change = dataclasses.replace(change, origin=line, path=_written_path(after, change, title))
        groups.setdefault(title, []).append(f"  {graphs.render_diff([change])}")
        order[title] = min(sequence, order.get(title, sequence))
    lines: list[str] = []
    for title in sorted(groups, key=lambda title: order[title]):
        lines += map(printable, [title, *groups[title]])
    print("\n".join(lines) or "nothing changes")


def _new_sets(before: Graph, after: Graph) -> list[_Set]:
    """Return the entries that `after` has and `before` has not, the latest first."""
    # Not by sequence numbers: they are global, and `before` is often loaded after `after`.
    old = {(each.path, each.origin) for each in _sets(before)}
    new = [each for each in _sets(after) if (each.path, each.origin) not in old]
    return sorted(new, key=lambda each: -each.sequence)


def _sets(graph: Graph) -> list[_Set]:
    from luthier.graph import origins
    from luthier.graph.paths import is_node, parse_path, walk

    found = []
    for place in [None, *walk(graph, defaults=False)]:
        node = graph if place is None else place.value
        if not is_node(node):
            continue
        at = parse_path(place.path) if place is not None and place.path else ()
        for key, entries in node.__argument_history__.items():
            # The class of a node, and the value of a shared value, are set at the path of the node.
            inside = () if key in ("__fn_or_cls__", "value") else parse_path(str(key))
            found += [
                _Set(entry.sequence_id, (*at, *inside), origins.entry_text(entry))
                for entry in entries
            ]
    return found


def _cause(sets: list[_Set], change: Any) -> _Set | None:
    """Return the latest entry at a changed path, or above it, inside of it, or at its old alias."""
    from luthier.graph.paths import parse_path

    path = parse_path(change.path)
    related = (
        lambda at: at == path,
        lambda at: path[: len(at)] == at,
        lambda at: at[: len(path)] == path,
        # Two places shared a node and no longer do: the entry is at the other place, and this one,
        # which is listed as changed, was left alone.
        lambda at: bool(change.same_as) and at == parse_path(change.same_as),
    )
    for is_related in related:
        for found in sets:
            if found.path and is_related(found.path):
                return found
    return None


def _written_path(after: Graph, change: Any, title: str) -> str:
    """Return the path that the user wrote for a shared value, instead of its first path."""
    # A shared value has several paths, and a change is listed under the first. The user should find
    # the one of the override again, if it is the same value. A gin file has a class where the graph
    # has a path: of `Training.steps`, the name of the argument decides.
    from luthier.errors import UnknownReference
    from luthier.graph.paths import find, walk

    match = _PATH.match(title)
    if match is None or not change.shared_as:
        return change.path
    written, value = match["path"], find(after, change.path).value
    with contextlib.suppress(UnknownReference):
        if find(after, written).value is value:
            return written
    argument = written.rpartition(".")[2]
    users = (place.path for place in walk(after, defaults=False) if place.value is value)
    return next((path for path in users if path.rpartition(".")[2] == argument), change.path)
