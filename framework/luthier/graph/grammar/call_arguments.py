"""Arguments of functions that are called at once: experiments of references, and fiddlers."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from luthier.errors import Problem
from luthier.graph import signatures
from luthier.graph.grammar import expressions, front_ends, literals
from luthier.graph.grammar import expressions as calls  # its first part, up to `make_node`
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.paths import Part


def read_arguments(
    function: Callable[..., Any],
    name: str,
    text: str,
    packages: Sequence[str] = (),
    taken: int = 0,
) -> dict[Part, Any]:
    """Return the arguments of a call by name (by index for positional-only ones), checked.

    Args:
      function: The function to call.
      name: Its name in messages.
      text: The arguments as they were written, brackets included; empty for none.
      packages: Modules that values may name, beside those that every value may.
      taken: How many of the first arguments the caller passes itself.

    Raises:
      Unreadable: One cannot be read, has the wrong type, is missing, or does not exist.
    """
    # The same grammar as for values in overrides, not Python's: `shrink(kind=exact)` needs no
    # quotes, because the annotation is read. Each argument is cut out of the parsed call as source
    # text and read on its own.
    arguments: dict[Part, Any] = {}
    if text:
        hints, known = signatures.type_hints(function), signatures.arguments(function)
        around = expressions.Surroundings([function], packages=packages)
        for part, item in calls.bind(function, name, _parse(text, name), taken).items():
            source = ast.get_source_segment(f"f{text}", item) or ast.unparse(item)
            named = known.positional_only[part] if isinstance(part, int) else part
            default = known.defaults.get(named, signatures.UNSET)
            reader = front_ends.reader_of(hints.get(named))
            # Files are named in quotes: Python parses a bare `configs/a.py` as a division.
            if reader is not None and isinstance(item, ast.Constant):
                # None is no file: the argument is left empty on purpose.
                arguments[part] = None if item.value is None else reader(str(item.value))
                continue
            try:
                arguments[part] = literals.read(source, hints.get(named, Any), default, around)
            except Unreadable as error:
                what = f"argument {part} of {name}: {error.problem.what}"
                raise Unreadable(dataclasses.replace(error.problem, what=what)) from None
    known, free = signatures.arguments(function), calls.slots(function, taken)
    missing = [part for part in known.required if part in free and part not in arguments]
    if missing:
        written = ["..." if isinstance(part, int) else f"{part}=..." for part in missing]
        what = f"{name} needs {', '.join(map(known.name_of, missing))}"
        raise Unreadable(Problem(what, remedy=f"write {name}({', '.join(written)})"))
    return arguments


def _parse(text: str, name: str) -> ast.Call:
    try:
        tree = ast.parse(f"f{text}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable(f"cannot read the arguments {text!r} of {name}") from None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise Unreadable(f"cannot read the arguments {text!r} of {name}")
    return tree


def call(function: Callable[..., Any], arguments: dict[Part, Any], *first: Any) -> Any:
    """Call a function and return its result.

    Args:
      function: The function.
      arguments: The result of `read_arguments`.
      *first: The arguments that the caller passes itself.
    """
    by_position = [arguments[part] for part in sorted(p for p in arguments if isinstance(p, int))]
    by_name = {part: value for part, value in arguments.items() if isinstance(part, str)}
    return function(*first, *by_position, **by_name)
