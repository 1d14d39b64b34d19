"""`luthier diff A B`: two operands, in the terminal, as JSON, as words, as a fiddler, as a page."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier.cli.operands.operand import Operand
from luthier.errors import BadInput, Problem


def show(before: Operand, after: Operand, arguments: argparse.Namespace) -> bool:
    """Show what differs, in the form that is asked for; return whether anything does.

    Args:
      before: The first operand.
      after: The second operand.
      arguments: What `luthier.cli.commands.diff` describes.
    """
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
        told = comparison if effects is None else {**comparison, "effects": effects}
        print(json.dumps(told, indent=1))
    elif arguments.as_overrides:
        _print_overrides(comparison)
    elif not (arguments.patch or arguments.html or arguments.open):
        print_difference(comparison, effects, why=arguments.why)
    return bool(comparison["changes"])


def comparison_of(
    before: Operand, after: Operand, only: Any = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what differs between two operands, as JSON values.

    Args:
      before: The first operand.
      after: The second operand.
      only: As for `luthier.view.diff.filters.chosen`.
      ignore: As for `luthier.view.diff.filters.chosen`.
    """
    from luthier.graph import compare
    from luthier.view.diff import filters

    found = compare.compare(before.document, after.document).as_json()
    return filters.chosen(found, only, ignore)


def print_difference(
    comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None, *, why: bool = False
) -> None:
    """Print the tree of what differs, and what follows from it.

    Args:
      comparison: The JSON of a comparison.
      effects: The JSON of its effects; None where they are not asked for.
      why: Whether to tell what set both sides of each change.
    """
    from luthier.view.diff import consequences, terminal

    content = [terminal.difference(comparison, why)]
    if effects is not None:
        content.append(consequences.consequences(effects, unicode=knows_unicode()))
    for part in content:
        print_drawn(part)


def print_drawn(content: Any) -> None:
    """Print what Rich draws: in colour and as wide as the terminal, or plain into a pipe."""
    from luthier.view.diff import terminal

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    drawn = terminal.rendered(
        content, width=width_of_output(), colour=colour, unicode=knows_unicode()
    )
    print(drawn, end="")


def width_of_output() -> int:
    """Return the columns of the terminal; in a pipe no line is broken."""
    from luthier.view.diff import terminal

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else terminal.UNBOUNDED


def knows_unicode() -> bool:
    """Return whether more than ASCII can be printed."""
    return (sys.stdout.encoding or "utf").lower().startswith("utf")


def write_page(html: str, file: str | None, opens: bool) -> None:
    """Write a page, and show it in a browser.

    Args:
      html: The page.
      file: Where to write it; None is a temporary file, which stays.
      opens: Whether to show it.

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
    patch = comparison["patch"]
    if patch is None:
        reasons = [Problem(one["reason"], one["path"]) for one in comparison["unsayable"]]
        raise BadInput([Problem("what differs cannot be written as a fiddler"), *reasons])
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
    """Print the overrides, as a shell takes them; what they do not make is a comment."""
    for word in comparison["overrides"]:
        print(_quoted(word))
    for one in comparison["unsayable"]:
        print(f"# {one['path'] or 'the root'}: {one['reason']}")


def _quoted(word: str) -> str:
    """Return a word as a shell takes it, in the quotes that leave it readable."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
