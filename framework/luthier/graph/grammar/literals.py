"""Values in overrides: literals, read by the annotation of their place, and arithmetic on them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import operator
import pathlib
import re
import typing
from typing import Any

import fiddle as fdl

from luthier.errors import Problem
from luthier.graph import signatures, values
from luthier.graph.grammar import expressions, names, types
from luthier.graph.grammar import expressions as calls  # its first part, up to `make_node`
from luthier.graph.grammar import types as fitting  # its last part: conversion, refusal
from luthier.graph.grammar.expressions import parse
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.grammar.types import NOTHING, choice, choices
from luthier.graph.paths import nearest
from luthier.graph.signatures import UNSET

# Values of the override grammar: text and an annotation in, a value or node out. Never `eval`.
#
# The annotation directs the reading: `1e3` is an int where an int is wanted, `bf16` a dtype, a bare
# word a string where a string is wanted, a member of an enum by name or value. `pkg.Mlp(dim=3)`
# becomes a node, `$model.dim * 4` a live value node, and `safetensors:DIR` the node of the class
# that defines this prefix.
#
# The text is parsed as Python where that is possible. Where the annotation admits text or a path,
# all else is that text as written, so that `name=my run` needs no quotes in quotes for the shell.


def read(
    text: str,
    annotation: Any = Any,
    current: Any = UNSET,
    around: expressions.Surroundings = expressions.Surroundings(),
) -> Any:
    """Read `text` as a value of a place, checked against the annotation.

    Args:
      text: The value as it was written.
      annotation: The resolved annotation of the place; `Any` where there is none.
      current: The current value, or the default.
      around: Where names and references are looked up.

    Raises:
      Unreadable: It cannot be read, or does not fit the annotation.
    """
    value = interpret(text, annotation, current, around)
    fitting.check(value, fitting.expected(annotation, current))
    return value


def interpret(
    text: str,
    annotation: Any = Any,
    current: Any = UNSET,
    around: expressions.Surroundings = expressions.Surroundings(),
) -> Any:
    """Read `text` as a value of a place, whether it fits there or not.

    Args:
      text: The value as it was written.
      annotation: The resolved annotation of the place; `Any` where there is none.
      current: The current value, or the default: its type counts where there is no annotation, and
        a template (`fdl.Partial`) is replaced by a template.
      around: Where names and references are looked up.

    Raises:
      Unreadable: It cannot be read.
    """
    text = text.strip()
    annotation = fitting.expected(annotation, current)
    if text[:1] == "$" and not text[1:2].isdigit():
        around = dataclasses.replace(around, only_references=False)
    elif text.startswith("ref:"):
        text, around = text[4:].strip(), dataclasses.replace(around, only_references=True)
    return fitting.coerce(_read(text, annotation, current, around), annotation)


def _read(text: str, annotation: Any, current: Any, around: expressions.Surroundings) -> Any:
    # In this order: a kind (`partial:`), a prefix of a class (`safetensors:DIR`), a member of an
    # enum or literal type, None, plain text where only text is wanted, and else an expression. A
    # member called NONE therefore wins over None. If the expression cannot be read, the whole is
    # text, a path or a tuple of texts where the annotation admits one; but not if it looks like a
    # call, a reference or a node: then a typo would silently become text.
    wanted = types.members(annotation)
    is_text = str in wanted and not types.is_dtype_annotation(annotation)
    if types.is_dtype_annotation(annotation):
        text = _text(text)  # `model.dtype="bfloat16"`
    # Hydra would fill it in. As text it would be refused much later, or be the name of a folder.
    if "${" in text and text[:1] not in "'\"":
        is_resolver = re.search(r"\$\{[^}]*:", text) is not None
        remedy = "resolvers of Hydra are not run here: write the value" if is_resolver else ""
        raise Unreadable(Problem(f"cannot read {text!r}", remedy=remedy))
    kind: type[fdl.Buildable] | None = None
    for word, of_kind in (("partial:", fdl.Partial), ("config:", fdl.Config)):
        if text.startswith(word):
            text, kind = text.removeprefix(word).strip(), of_kind
    if (node := _by_word(text, annotation)) is not None:
        return node
    referring = around.only_references or (text[:1] == "$" and text[1:2].isidentifier())
    if kind is None and not referring:
        if (member := choice(text, annotation)) is not NOTHING:
            return member
        if text in ("None", "null"):
            return None
        if set(wanted) <= {str, type(None)}:
            return _text(text)
    try:
        source, tree = parse(text)
        reader = expressions.ExpressionReader(source, current, around, kind)
        value = reader.convert(tree, annotation)
        if kind is not None and not isinstance(value, fdl.Buildable):
            value = calls.make_node(value, kind)
        if is_text and not isinstance(value, str) and not types.fits(value, annotation):
            return _text(text)
        return value
    except Unreadable as error:
        is_call = re.match(r"[\w.]+\(", text) is not None
        if not is_call and not referring and kind is None:
            if is_text:
                return _text(text)
            if pathlib.Path in wanted or pathlib.PurePath in wanted:
                return pathlib.Path(_text(text))
            if types.element(annotation, tuple) is str and not text.startswith(("(", "[")):
                return tuple(part.strip() for part in text.split(",") if part.strip())
        _raise_better(error, text, annotation)


def _by_word(text: str, annotation: Any) -> fdl.Buildable | None:
    """Return the node that `prefix:text` makes at a place; None if no class there has prefixes."""
    match = re.match(r"([a-z]\w*):", text)
    words = names.words(annotation) if match else []
    if not match or not words:
        return None
    word, rest = match[1], text[match.end() :].strip()
    target = names.word_class(annotation, word)
    if target is None:
        known = ", ".join(f"{other}:" for other in words)
        near = [f"{other}:" for other in nearest(word, words)]
        what = f"there is no {word}: here"
        raise Unreadable(Problem(what, nearest=near, remedy="" if near else f"there is {known}"))
    if not rest:
        raise Unreadable(Problem(f"{text!r} has nothing after the colon"))
    return calls.make_node(target, fdl.Config, {signatures.arguments(target).names[0]: _text(rest)})


def _raise_better(error: Unreadable, text: str, annotation: Any) -> typing.NoReturn:
    """Raise `error`, or for an unknown bare word, a message that lists the valid ones."""
    wanted = types.members(annotation)
    if known := names.words(annotation):
        forms = " or ".join(f"{word}:..." for word in known)
        raise Unreadable(dataclasses.replace(error.problem, remedy=f"write {forms}")) from None
    options = choices(annotation)
    if options and re.fullmatch(r"[\w.\-']+", text):
        what = f"{text!r} is not {types.describe(annotation)}"
        remedy = f"choose from {', '.join(options)}"
        near = nearest(text.split(".")[-1], options)
        raise Unreadable(Problem(what, nearest=near, remedy=remedy)) from None
    plain = all(m in (bool, int, float, complex, type(None)) for m in wanted)
    if (plain or types.is_dtype_annotation(annotation)) and re.fullmatch(r"[^\W\d][\w\-]*", text):
        near = nearest(text, names.DTYPES) if types.is_dtype_annotation(annotation) else []
        what = f"{text!r} is not {types.describe(annotation)}"
        raise Unreadable(Problem(what, nearest=near)) from None
    if re.search(r"[(,=]\s*(alias:|ref:|&)", text):
        remedy = (
            "inside of a call write $PATH for a value; share a node afterwards, FIELD=alias:PATH"
        )
        raise Unreadable(dataclasses.replace(error.problem, remedy=remedy)) from None
    raise error


def _text(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        with contextlib.suppress(Unreadable, ValueError):
            _, tree = parse(text)
            if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
                return tree.value
    return text


# `+=`, `-=` and `*=`: a current value and an operand.

_ON_NUMBERS = {"+=": operator.add, "-=": operator.sub, "*=": operator.mul}
_ON_NODES = {"+=": values.add, "-=": values.subtract, "*=": values.multiply}


def combine(
    symbol: str, current: Any, text: str, annotation: Any, around: expressions.Surroundings
) -> Any:
    """Return the result of `+=`, `-=` or `*=` on a value.

    Args:
      symbol: `+=` adds to numbers, text, lists, tuples and dicts; `-=` and `*=` work on numbers.
      current: The value now, or a value node: arithmetic nodes stay live.
      text: The operand, as it was written.
      annotation: The annotation of the place.
      around: Where names and references are looked up.

    Raises:
      Unreadable: They do not go together.
    """
    # Three cases for numbers. A constant is computed at once and keeps its users (`_put` sets the
    # constant to the result). Arithmetic, or an operand with references, becomes an arithmetic node
    # and stays live. Plain numbers are computed.
    plain = values.evaluate(current)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        operand = read(text, types.NUMBER, plain, around)
        if values.is_value_node(operand) or values.is_operation(current):
            # With the number of a constant: as an operand, the constant would contain itself
            # when the result is put in it.
            base = plain if values.is_constant(current) else current
            return _ON_NODES[symbol](base, operand)
        try:
            return fitting.coerce(_ON_NUMBERS[symbol](plain, operand), annotation)
        except OverflowError as error:
            raise Unreadable(f"{plain} {symbol} {text}: {error}") from None
    if symbol != "+=":
        raise Unreadable(f"{symbol} works on numbers, not on {fitting.shown(plain)}")
    if isinstance(plain, str):
        return plain + read(text, str, plain, around)
    if type(plain) in (list, tuple):
        return _extended(plain, text, annotation, around)
    if type(plain) is dict:
        added = read(text, annotation, plain, around)
        if not isinstance(added, dict):
            raise Unreadable(f"{text!r} is not a dict, which += adds to a dict")
        return plain | added
    description = fitting.shown(plain)
    raise Unreadable(f"+= works on numbers, text, lists, tuples and dicts, not on {description}")


def _extended(
    current: list | tuple, text: str, annotation: Any, around: expressions.Surroundings
) -> list | tuple:
    # One element or several? By the brackets or a comma outside of them: whether `(1, 2)` is an
    # element of a list of tuples, the annotation of the elements does not always say.
    inside = types.element(annotation, type(current), 0)
    is_many = re.match(r"[\[(].*[\])]$|[^(\[{'\"]*,", text, re.DOTALL) is not None
    if is_many:
        added = read(text, annotation, current, around)
    else:
        sample = current[-1] if current else None
        added = [read(text, inside, sample, around)]
    if not isinstance(added, list | tuple):
        added = [added]
    return type(current)([*current, *added])
