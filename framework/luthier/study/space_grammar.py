"""Spaces on the command line: `optimizer.learning_rate.peak=log(1e-4,1e-2)`.

    PATH=log(LOW, HIGH)            PATH=uniform(LOW, HIGH, step=0.1)
    PATH=int(LOW, HIGH, step=2)    PATH=int(LOW, HIGH, log=true)
    PATH=normal(MEAN, STD)         PATH=lognormal(MEAN, STD)   (of the logarithm)
    PATH=pow2(LOW, HIGH)           PATH=ordinal(A, B, ...)     PATH=choice(A, B, ...)
    PATH,PATH=rows((A, B), ...)    (values that change together)
    when: PATH=OPTION: PATH=...    (what is chosen only where that option is)

PATH may be a pattern of the override grammar. The items of `ordinal`, `choice` and `rows` are read
by that grammar at PATH; `@NAME(...)` and `fiddler:NAME(...)` are fiddlers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.graph import nearest
from luthier.study.space import (
    Choice,
    Gaussian,
    Int,
    Log,
    LogNormal,
    Option,
    Ordinal,
    Pow2,
    Space,
    Uniform,
    Zipped,
)

_RANGES: dict[str, tuple[type, type]] = {
    "log": (Log, float),
    "uniform": (Uniform, float),
    "int": (Int, int),
    "pow2": (Pow2, int),
    "normal": (Gaussian, float),
    "lognormal": (LogNormal, float),
}
_LISTS = ("ordinal", "choice")
_TABLE = "rows"
# Names of Optuna, Ray Tune, Hyperopt and W&B that mean the same with the same arguments.
_ELSEWHERE = {
    **dict.fromkeys(
        ("loguniform", "log_uniform", "suggest_loguniform", "log_uniform_values"), "log"
    ),
    **dict.fromkeys(("categorical", "suggest_categorical", "grid_search", "values"), "choice"),
    **dict.fromkeys(
        ("suggest_float", "suggest_uniform", "uniform_values", "quniform", "q_uniform"), "uniform"
    ),
    **dict.fromkeys(("randn", "gauss"), "normal"),
    **dict.fromkeys(("log_normal",), "lognormal"),
    "suggest_int": "int",
}
_FORMS = (
    "log(LOW,HIGH), uniform(LOW,HIGH,step=0.1), int(LOW,HIGH,step=1), int(LOW,HIGH,log=true), "
    "normal(MEAN,STD), lognormal(MEAN,STD), pow2(LOW,HIGH), ordinal(A,B), choice(A,B), "
)
REMEDY = f"write PATH={_FORMS}choice(@FIDDLER,@FIDDLER(1)), or PATH,PATH=rows((A,B),(C,D))"


def parse_space(words: Sequence[str], when: Sequence[str] = ()) -> Space:
    """Parse the search space of the command line.

    Args:
      words: What was given to `--space`.
      when: What was given to `--when`.

    Returns:
      The space, with a dimension for each argument.

    Raises:
      BadInput: Some cannot be read; all problems are in it.

    Example:
      >>> from luthier import study
      >>> study.parse_space(["optimizer.b2=uniform(0.9,0.999)"]).dimensions
      {'optimizer.b2': Uniform(low=0.9, high=0.999, step=None)}
    """
    # All problems of all arguments are collected: fixing them one run at a time is tedious.
    problems: list[Problem] = []
    dimensions: dict[str, Any] = {}
    for word in words:
        try:
            key, dimension = parse_dimension(word)
        except BadInput as error:
            problems += _at(error, f"--space {word}")
            continue
        if key in dimensions:
            problems.append(Problem("is given twice", key, f"--space {word}"))
        dimensions[key] = dimension
    for word in when:
        try:
            dimensions = _with_condition(dimensions, word)
        except BadInput as error:
            problems += _at(error, f"--when {word}")
    if problems:
        raise BadInput(problems)
    return Space(dimensions)


def _at(error: BadInput, origin: str) -> list[Problem]:
    return [dataclasses.replace(problem, origin=origin) for problem in error.problems]


def parse_dimension(word: str) -> tuple[str, Any]:
    """Parse one dimension; return its path and the dimension.

    Args:
      word: `model.dim=pow2(64,256)`.

    Returns:
      The path, and the dimension: a range, or options.

    Raises:
      BadInput: It cannot be read.

    Example:
      >>> from luthier import study
      >>> study.parse_dimension("optimizer.learning_rate.peak=log(1e-4,1e-2)")
      ('optimizer.learning_rate.peak', Log(low=0.0001, high=0.01))
    """
    # Not `partition`: a pattern in the path may hold a `=` within quotes or brackets.
    cut = _find(word, "=")
    key, text = word[:cut].strip(), word[cut + 1 :].strip()
    match = re.fullmatch(r"(\w+)\s*\((.*)\)", text, re.DOTALL)
    if cut < 1 or match is None:
        raise BadInput(Problem(f"{word!r} is not a space", remedy=REMEDY))
    # In lower case, so that the class names of dimensions in Python (`Log`) are right, too.
    name, items = match[1].lower(), split(match[2])
    if name in _RANGES:
        return key, _range(name, items)
    if name == _TABLE:
        return key, _table(key, items)
    if name not in _LISTS:
        near = nearest(name, [*_RANGES, *_LISTS, _TABLE])
        if name in _ELSEWHERE:
            # By its meaning: the nearest name to `loguniform` is another distribution.
            near = [f"{key}={_ELSEWHERE[name]}({match[2]})"]
        raise BadInput(
            Problem(f"there is no {name}(...)", nearest=near, remedy="" if near else REMEDY)
        )
    values = [_item(key, item) for item in items]
    return key, Ordinal(values) if name == "ordinal" else Choice(values)


def _range(name: str, items: Sequence[str]) -> Any:
    kind, number = _RANGES[name]
    fields = [field.name for field in dataclasses.fields(kind)]
    given: dict[str, Any] = {}
    for index, item in enumerate(items):
        # Arguments by position or by name, as in Python; each at most once.
        named = re.fullmatch(r"(\w+)\s*=\s*(.+)", item)
        field = named[1] if named else fields[index] if index < len(fields) else ""
        if field not in fields or field in given:
            what = f"{name} takes {', '.join(fields)}, not {item!r}"
            raise BadInput(Problem(what, nearest=nearest(field, fields) if named else ()))
        text = named[2] if named else item
        if field == "log":
            if text.lower() not in _SWITCH:
                raise BadInput(Problem(f"log of {name}: {item!r} is not true or false"))
            given[field] = _SWITCH[text.lower()]
            continue
        try:
            given[field] = number(text)
        except ValueError:
            wanted = "a whole number" if number is int else "a number"
            raise BadInput(Problem(f"{field} of {name}: {item!r} is not {wanted}")) from None
    if missing := [field for field in fields[:2] if field not in given]:
        raise BadInput(Problem(f"{name} needs {' and '.join(missing)}"))
    return kind(**given)


_SWITCH = {"true": True, "false": False}


def _table(key: str, items: Sequence[str]) -> Zipped:
    """Return the table of `PATH,PATH=rows((A,B),(C,D))`."""
    paths = split(key)
    example = "write PATH,PATH=rows((A,B),(C,D))"
    if len(paths) < 2:
        what = f"rows sets several paths together, and {key!r} is one"
        raise BadInput(Problem(what, remedy=f"{example}, or {key}=choice(...)"))
    if repeated := [path for index, path in enumerate(paths) if path in paths[:index]]:
        raise BadInput(Problem("is given twice", repeated[0]))
    if len(items) < 2:
        raise BadInput(Problem("a table needs two rows or more", remedy=example))
    rows = []
    for item in items:
        if not (item.startswith("(") and item.endswith(")")):
            raise BadInput(Problem(f"{item!r} is not a row in parentheses", remedy=example))
        values = split(item[1:-1])
        if len(values) != len(paths):
            what = f"the row {item} has {len(values)} values for {len(paths)} paths"
            raise BadInput(Problem(what, remedy=example))
        rows.append({p: _item(p, v) for p, v in zip(paths, values, strict=True)})
    return Zipped(rows)


def _item(key: str, item: str) -> Any:
    if item.startswith("@"):
        return Option(overrides=(f"fiddler:{item[1:]}",), name=item)
    if item.startswith("fiddler:"):
        return Option(overrides=(item,), name=item)
    # Whole numbers first: `choice(1,2)` for a setting that wants an int must not give floats.
    for read in (int, float):
        try:
            return read(item)
        except ValueError:
            continue
    # Anything else stays text for the override grammar, which knows the types and the references of
    # the path.
    return Option(overrides=(f"{key}={item}",), name=item)


def _with_condition(dimensions: Mapping[str, Any], word: str) -> dict[str, Any]:
    """Return the dimensions with one more in the sub-space of an option."""
    # The colon that separates the condition, and not one of a path (`any:dropout`): it comes after
    # the first `=`, which is not one within quotes or brackets of the path.
    equals = _find(word, "=")
    cut = _find(word, ":", after=equals)
    key, wanted = word[:equals].strip(), word[equals + 1 : cut].strip()
    inner = word[cut + 1 :].strip()
    if equals < 0 or cut < 0 or not wanted:
        remedy = "write --when 'optimizer=adafactor: optimizer.decay=uniform(0.7,0.9)'"
        raise BadInput(Problem(f"{word!r} is not a condition", remedy=remedy))
    # Only among the dimensions at the top: in words a condition cannot depend on another one, as
    # spaces of options in Python can.
    choice = dimensions.get(key)
    if not isinstance(choice, Choice):
        choices = [name for name, found in dimensions.items() if isinstance(found, Choice)]
        remedy = f"there are choices at {', '.join(choices)}" if choices else "add a choice there"
        raise BadInput(Problem(f"there is no choice at {key}", remedy=remedy))
    options = list(choice.all_options)
    # Exactly one must fit: short names may be ambiguous (`@scale(2)` and `@scale(3)`).
    fitting = [i for i, option in enumerate(options) if wanted in _names(option)]
    if len(fitting) != 1:
        labels = [option.label for option in options]
        what = f"there is no option {wanted!r} at {key}"
        remedy = f"the options are {', '.join(labels)}"
        raise BadInput(Problem(what, nearest=nearest(wanted, labels), remedy=remedy))
    option = options[fitting[0]]
    inside = dict(option.space.dimensions) if option.space is not None else {}
    path, dimension = parse_dimension(inner)
    if path in inside:
        raise BadInput(Problem("is given twice", path))
    inside[path] = dimension
    # Dimensions are immutable: the choice is replaced by one whose option has a larger space. Its
    # dimensions are all that a space on the command line has; constraints exist in Python only.
    options[fitting[0]] = dataclasses.replace(option, space=Space(inside))
    return {**dimensions, key: Choice(options)}


def _names(option: Option) -> set[str]:
    """Return the names of an option: its label, also without @ and brackets."""
    label = option.label
    return {label, label.lstrip("@"), label.lstrip("@").partition("(")[0]}


def split(text: str) -> list[str]:
    """Return the items of a list: split at commas that are in no brackets and no quotes."""
    items, start = [], 0
    while (cut := _find(text, ",", after=start - 1)) >= 0:
        items.append(text[start:cut].strip())
        start = cut + 1
    last = text[start:].strip()
    return [*items, last] if last else items


def _find(text: str, wanted: str, after: int = -1) -> int:
    """Return the index of a character outside of brackets and quotes, or -1."""
    depth, quote = 0, ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == wanted and depth == 0 and index > after:
            return index
    return -1
