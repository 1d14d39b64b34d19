"""The page about fiddlers: their docstrings, and what they change in the quickstart."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "configs.lm.quickstart"
SHELVES = ("luthier.recipes",)
NAMES = (
    "debug",
    "scale_width",
    "scale_depth",
    "scale_length",
    "scale_to",
    "freeze",
    "train_only",
    "lora",
    "without_lora",
    "remat",
    "swap_optimizer",
    "seed",
    "text",
    "quick_compile",
)
_WORD = re.compile(r"'(fiddler:[^']*)'|(fiddler:\S+)")
_SECTION = re.compile(r"^(Args|Returns|Raises|Example|Source):", re.MULTILINE)
_LINE = re.compile(r"  \[\S+:\d+\]$", re.MULTILINE)

START = """\
# Fiddlers

A fiddler is a function that edits a config. Use fiddlers for changes that involve many settings,
for example to scale a model or to swap the optimizer. On the command line, luthier applies fiddlers
and overrides from left to right:

    luthier train configs.lm.quickstart 'fiddler:scale_width(2.0)' optimizer.b2=0.95

Arguments use the syntax of component references. luthier checks them against the type annotations
of the fiddler. Put a fiddler in quotes if it has arguments, because the shell would interpret the
parentheses. To see the effect of a fiddler, add `--changes` to `luthier show`. It lists every
change below the override that caused it. `--why PATH` prints all assignments to a value, starting
with the oldest one.

To use your own fiddler, write its import path, as in
`fiddler:my_project.fiddlers.shrink(layers=2)`. The first argument of the function is the config.
The function either returns a new config, or changes the config in place and returns None. The
fiddlers of `luthier.recipes` do not change their argument. See
[Write a fiddler](../how_to/write_a_fiddler.md).

The following sections describe the fiddlers of `luthier.recipes`. Each section shows an example and
the changes that it makes.
"""


def render() -> str:
    """Return the page."""
    from luthier import recipes

    parts = [START]
    for name in NAMES:
        function = getattr(recipes, name)
        arguments = ", ".join(list(inspect.signature(function).parameters)[1:])
        text = inspect.getdoc(function) or ""
        parts.append(f"## {name}({arguments})\n\n{_described(text)}\n\n{_changes(text)}")
    return "\n".join(parts)


def _described(text: str) -> str:
    """Return a docstring as Markdown, without the graph: commands do not pass it."""
    kept, *sections = _SECTION.split(text)
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    items = re.split(r"\n  (?=\w+: )", "\n" + named.get("Args", "").strip("\n"))[2:]
    listed = [" ".join(item.split()) for item in items]
    listed = [re.sub(r"^(\w+): ", r"- `\1`: ", item) for item in listed]
    return "\n".join([kept.strip(), *([""] if listed else []), *listed])


def _changes(text: str) -> str:
    """Return what the example of a docstring changes in the quickstart."""
    sys.path.insert(0, str(ROOT))
    try:
        from luthier import graph as graphs
        from luthier.cli.showing.differences import print_changes

        example = next(
            line for line in text.splitlines() if "luthier" in line and "fiddler:" in line
        )
        words = [quoted or plain for quoted, plain in _WORD.findall(example)]
        before = graphs.resolve(EXPERIMENT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            print_changes(before, graphs.apply(before, words, shelves=SHELVES))
    finally:
        sys.path.remove(str(ROOT))
    changes = _LINE.sub("", printed.getvalue())
    return "".join(f"    {line}\n" for line in changes.splitlines())
