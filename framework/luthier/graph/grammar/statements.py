"""Statements of the override grammar, and the exception for unreadable ones."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from luthier.errors import Problem


class Unreadable(Exception):
    """A statement, a value or a name cannot be read; `problem` has the reason."""

    # Not a `BadInput`: `apply` and `resolve` convert it when they know the path and the origin. In
    # between, readers catch it to try another reading.

    def __init__(self, problem: Problem | str):
        self.problem = Problem(problem) if isinstance(problem, str) else problem
        super().__init__(str(self.problem))


# Statements of the override grammar, before the graph is looked at.
#
#     PATH=VALUE   PATH:=VALUE   PATH+=VALUE   PATH-=VALUE   PATH*=VALUE   reset:PATH (PATH~)
#     fiddler:NAME   fiddler:NAME(ARGUMENTS)
#     config_dict:FILE.py[:ARGUMENT]   config_dict_rename:FILE.toml
#     gin_file:FILE   gin_bindings:BINDING   gin_search_paths:DIR,DIR   gin_skip_unknown:true
#
# PATH may be `any:SUFFIX` (`**.SUFFIX`), hold `*` for one part and `**` for any number of them, or
# be `class:NAME.FIELD` (`@NAME.FIELD`), `tag:NAME` (`#NAME`), or `gin:NAME` for the constant that
# is called so, or `config_dict:KEY` for what that key of a ConfigDict set. `--fdl.PATH=VALUE` is
# accepted too. The statements of gin and ConfigDict are read by `luthier.graph.formats`;
# `file:FILE`, which includes the overrides of a file, by `luthier.graph.override_files`.

EXPECTED = "expected PATH=VALUE (or :=, +=, -=, *=, reset:PATH, fiddler:NAME)"
FIDDLER = "fiddler:"
WORDS_OF_GIN = "words of gin"
GIN = ("gin_file:", "gin_bindings:", "gin_search_paths:", "gin_skip_unknown:")

WORDS_OF_CONFIG_DICT = "words of config_dict"
CONFIG_DICT = ("config_dict:", "config_dict_rename:")
# `config_dict:FILE.py` and `config_dict:FILE.py:ARGUMENT`, but not `config_dict:KEY=VALUE`, nor
# `config_dict:file.py:=1`, whose key happens to end in .py.
_FILE_OF_CONFIG_DICT = re.compile(r"config_dict:[^=]*?\.py(?:$|:(?!=))|config_dict_rename:")

# The words, which shells pass on as they are, and the symbols for them, which are for files.
_WORDS = {
    "any:": "any",
    "class:": "class",
    "tag:": "tag",
    "gin:": "gin",
    "config_dict:": "config_dict",
    "**.": "any",
    "@": "class",
    "#": "tag",
}
# In this order, because `=` is a part of the others.
_OPERATORS = (":=", "+=", "-=", "*=", "=")


@dataclasses.dataclass(frozen=True)
class Statement:
    """One override.

    Args:
      selector: The meaning of `target`: `path`, `any`, `glob`, `class`, `tag`, `gin`,
        `config_dict`, `fiddler`, `words of gin` or `words of config_dict`.
      target: The path, suffix, pattern, class and field, tag, or call of a fiddler.
      operator: `=`, `:=`, `+=`, `-=`, `*=` or `~`; empty for a fiddler.
      text: The value as it was written.
      value: The value itself, where the override came from Python and not as text.
      has_value: Whether `value` counts instead of `text`.
      adds: Whether it may add a key to a dict, as Hydra's `+a=1` and `++a=1`.
    """

    selector: str
    target: str
    operator: str
    text: str = ""
    value: Any = None
    has_value: bool = False
    adds: bool = False


def parse_statement(text: str) -> Statement:
    """Parse one override into its parts.

    Args:
      text: `optimizer.b2=0.9`, say.

    Raises:
      Unreadable: It has no operator, no path or no value.
    """
    # Whole statements with a prefix of their own come first: the text behind `fiddler:` or of gin
    # may contain any operator. All others are split at their first operator.
    left = text.strip().removeprefix("--fdl.").strip()
    if left.startswith(FIDDLER):
        call = left.removeprefix(FIDDLER).strip()
        if not call:
            raise Unreadable(Problem(f"{EXPECTED}, got {text!r}", remedy="the name is missing"))
        return Statement("fiddler", call, "")
    if left.startswith(GIN):
        if not left.partition(":")[2].strip():
            raise Unreadable(Problem(f"{text!r} has nothing after the colon"))
        return Statement(WORDS_OF_GIN, left, "")
    if _FILE_OF_CONFIG_DICT.match(left):
        if not left.partition(":")[2].strip():
            raise Unreadable(Problem(f"{text!r} has nothing after the colon"))
        return Statement(WORDS_OF_CONFIG_DICT, left, "")
    if left.startswith("reset:"):
        return _statement(text, left.removeprefix("reset:"), "~", "")
    # Hydra adds a key with `+a=1` and sets or adds one with `++a=1`.
    adds = re.match(r"\+{1,2}(?=[A-Za-z_])", left)
    left = left[adds.end() :] if adds else left
    position, operator = _find_operator(left)
    if adds and operator == "=":
        # Else as `=`, which checks more than `:=`, and moves all users of a shared value.
        statement = _statement(text, left[:position], "=", left[position + 1 :].strip())
        return dataclasses.replace(statement, adds=True)
    if not operator:
        if left.endswith("~"):
            return _statement(text, left[:-1], "~", "")
        if left.startswith("~"):  # as Hydra writes it
            return _statement(text, left[1:], "~", "")
        # `#later` is read as a tag without an operator; the writer meant a comment.
        remedy = "a comment needs a space after its #" if left.startswith("#") else ""
        raise Unreadable(Problem(f"{EXPECTED}, got {text!r}", remedy=remedy))
    target, value = left[:position], left[position + len(operator) :].strip()
    if operator == "=" and target.rstrip().endswith("/"):
        raise Unreadable(_division(text, target.rstrip().rstrip("/"), value))
    return _statement(text, target, operator, value)


def _division(text: str, target: str, value: str) -> Problem:
    """Return the problem of `steps/=2`: there are `+=`, `-=` and `*=`."""
    try:
        remedy = f"write {target}*={1 / float(value):g}"
    except (ValueError, ZeroDivisionError):
        remedy = f"write {target}*=FACTOR"
    return Problem(f"{text!r}: there is +=, -= and *=, but not /=", remedy=remedy)


def pair(target: str, value: Any) -> Statement:
    """Return the statement that sets a Python value at a path, or at the matches of a pattern.

    Args:
      target: `optimizer.b2`, `any:dropout`, `gin:LEARNING_RATE`, say; the root's path is empty.
      value: The value.
    """
    if not target.strip():
        return Statement("path", target, "=", "", value, has_value=True)
    # With dots for the text of a value, which `_statement` would report as missing.
    statement = _statement(target, target, "=", "...")
    return dataclasses.replace(statement, text="", value=value, has_value=True)


def _find_operator(text: str) -> tuple[int, str]:
    """Return the position of the first operator outside brackets and quotes, and the operator."""
    # A scan and not a search: `['a=b'].x=1` has an `=` in a key. Quotes count only inside brackets,
    # as elsewhere a path has none, and the value behind the operator is not looked at.
    depth, quote = 0, ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif depth and letter in "'\"":
            quote = letter
        elif letter in "[]":
            depth += 1 if letter == "[" else -1
        elif depth <= 0:
            for operator in _OPERATORS:
                # `blocks[*]=1` and `model.*=1`: a star after a dot belongs to the path.
                starred = operator == "*=" and text[position - 1 : position] in ("", ".", "*")
                if text.startswith(operator, position) and not starred:
                    return position, operator
    return -1, ""


def _statement(text: str, target: str, operator: str, value: str) -> Statement:
    target, selector = target.strip(), "path"
    written = target
    for word, kind in _WORDS.items():
        if target.startswith(word):
            target, selector = target.removeprefix(word).strip(), kind
            break
    else:
        if "*" in target:
            selector = "glob"
    if not target:
        raise Unreadable(Problem(f"{EXPECTED}, got {text!r}", remedy="the path is missing"))
    # An empty value is ambiguous: a reset, None, or empty text. The message lists all three.
    if operator != "~" and not value:
        remedy = f"write reset:{written} to reset it, {written}=None for nothing, {written}='' for "
        remedy += "no text"
        raise Unreadable(Problem(f"{text!r} has no value", remedy=remedy))
    # Its name means the constant itself, not one of its users, so there is no place to replace.
    if selector == "gin" and operator in (":=", "~"):
        what = f"{text!r}: a constant can be neither replaced nor reset by its name"
        raise Unreadable(Problem(what, remedy=f"write gin:{target}=VALUE"))
    return Statement(selector, target, operator, value)
