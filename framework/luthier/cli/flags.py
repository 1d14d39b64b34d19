"""Flags of Fiddle, Pax, gin and ConfigDict as overrides; hints for what a shell damaged."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from luthier.cli import listing
from luthier.errors import BadInput, Problem, UnknownReference

# What shells do to words without quotes, and the hint for a word that arrived damaged.
#
# Shells replace `$name` by a variable, end the command at `&`, `;`, `|`, `<` and `>`, split at
# spaces, take quotes away and make several words of `{a,b}`. What is left of such a word seldom
# means anything. What a shell takes whole cannot be told: shells drop `#Name=1` as a comment, and
# fish drops a word with `()` or with an unknown `$name`.

HINT = "if you typed it in a shell, put the whole word in single quotes"

_OPERATOR = re.compile(r":=|[+*-]?=")
_EMPTIED = re.compile(r"(ref:|alias:)?(\.[A-Za-z_]|[*/%+)\]]|$)")
_CLOSING = {")": "(", "]": "[", "}": "{"}


def with_hints(problems: Iterable[Problem], words: Sequence[str]) -> list[Problem]:
    """Return problems, with a hint where a shell may have changed the word.

    Args:
      problems: Their origins say which word is meant: `argument 2: steps=`.
      words: The words of the grammar on the command line.
    """
    told = []
    for problem in problems:
        match = re.match(r"argument (\d+): ", problem.origin)
        index = int(match[1]) - 1 if match else len(words)
        wants_quotes = " quote" in problem.remedy
        if index < len(words) and (wants_quotes or _is_damaged(words, index)):
            remedy = f"{problem.remedy}; {HINT}" if problem.remedy else HINT
            problem = dataclasses.replace(problem, remedy=remedy)
        told.append(problem)
    return told


def _is_damaged(words: Sequence[str], index: int) -> bool:
    word = words[index]
    if word.startswith(("fiddler:", "file:")):
        return not _is_balanced(word) or word.endswith(":")
    match = _OPERATOR.search(word)
    if match is None:
        return not word.startswith("reset:") or " " in word
    target, value = word[: match.start()], word[match.end() :].strip()
    if _EMPTIED.match(value) or not _is_balanced(word) or re.search(r"\[[^'\"\]]* ", target):
        return True
    # Brace expansion (`a={1,2}` became `a=1 a=2`): a neighbour that sets the same path.
    beside = [other for i, other in enumerate(words) if abs(i - index) == 1]
    return any(other.startswith(word[: match.end()]) for other in beside)


def _is_balanced(text: str) -> bool:
    """Return whether brackets and quotes are closed; quotes inside of words are apostrophes."""
    opened: list[str] = []
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not text[position - 1 : position].isalnum():
            quote = letter
        elif letter in "([{":
            opened.append(letter)
        elif letter in _CLOSING and (not opened or opened.pop() != _CLOSING[letter]):
            return False
    return not opened and not quote


# Flags of Fiddle, Pax, gin and ConfigDict, as words of the grammar at the same place.
#
# --fdl.PATH=VALUE, --fdl_set PATH=VALUE         PATH=VALUE
# --fdl_tag.NAME=VALUE, --fdl_tags_set ...       tag:NAME=VALUE
# --fiddler NAME                                 fiddler:NAME
# --overrides FILE                               file:FILE
# --job_log_dir DIR                              records.directory=DIR
# --config_dict FILE.py[:ARGUMENT]               config_dict:FILE.py[:ARGUMENT]
# --config_dict_rename FILE.toml                 config_dict_rename:FILE.toml
# --gin_file FILE, --gin_bindings BINDING        gin_file:FILE, gin_bindings:BINDING
# --gin_search_paths, --gin_skip_unknown         gin_search_paths:DIR,DIR, gin_skip_unknown:true
# --gin.SCOPE/NAME.ARGUMENT=VALUE, --gin.M=VALUE gin_bindings:SCOPE/NAME.ARGUMENT = VALUE
# --gin_root NAME                                the experiment: what gin files configure
# --fdl_config REF, --fdl_config_file FILE.json  the experiment
# --exp MODULE.NAME                              the experiment, also below configs/
# --exp NAME                                     what Pax calls NAME, as `luthier list pax` shows it

HELP = "--fdl_help"

_GIN, _SKIP = "--gin.", "--gin_skip_unknown"
_PREFIXES = {"--fdl.": "", "--fdl_tag.": "tag:"}
_WORDS = {
    "--fdl_set": "",
    "--fdl_tags_set": "tag:",
    "--fiddler": "fiddler:",
    "--overrides": "file:",
    "--job_log_dir": "records.directory=",
    "--config_dict": "config_dict:",
    "--config_dict_rename": "config_dict_rename:",
    "--gin_file": "gin_file:",
    "--gin_bindings": "gin_bindings:",
    "--gin_search_paths": "gin_search_paths:",
}


def flags(names_experiment: bool = True) -> tuple[str, ...]:
    """Return the flags with a value that `translate` knows.

    Args:
      names_experiment: Whether to include those that name the experiment.
    """
    return (*_WORDS, *(_EXPERIMENTS if names_experiment else ()))


def translate(
    words: Sequence[str], names_experiment: bool = True
) -> tuple[list[str], list[Problem]]:
    """Return `words` with the flags of Fiddle, Pax and gin as words of the grammar.

    Args:
      words: The words after the command.
      names_experiment: Whether the first of them names an experiment.

    Returns:
      The words, the experiment first where a flag names it; and what is wrong with the flags.
    """
    end = words.index("--") if "--" in words else len(words)
    known = flags(names_experiment)
    experiments: list[str] = []
    made: list[str] = []
    problems: list[Problem] = []
    coming = iter(range(end))
    for index in coming:
        word = words[index]
        prefix = next((p for p in _PREFIXES if word.startswith(p)), "")
        name, equals, value = word.partition("=")
        if word.startswith(_GIN) and equals:
            made.append(f"gin_bindings:{name.removeprefix(_GIN)} = {value}")
            continue
        if word in (_SKIP, f"{_SKIP}=true"):  # as absl takes a flag that is on or off
            made.append("gin_skip_unknown:true")
            continue
        if prefix:
            made.append(_PREFIXES[prefix] + word.removeprefix(prefix))
            continue
        if name not in known:
            made.append(word)
            continue
        if not equals and index + 1 < end:
            value = words[next(coming)]
        if not value:
            problems.append(Problem(f"{name} has no value", remedy="`luthier help overrides`"))
        elif name in _WORDS:
            made.append(_WORDS[name] + value)
        else:
            try:
                experiments.append(_EXPERIMENTS[name](value))
            except BadInput as error:
                problems += error.problems
                experiments.append("")  # it was named, so nobody need say that it was not
    if len(experiments) > 1:
        what = f"two experiments are named: {' and '.join(experiments)}"
        problems.append(Problem(what, remedy="leave out one"))
    return [*experiments[:1], *made, *words[end:]], problems


def find_experiment(name: str) -> str:
    """Return the reference of an experiment by its name, as `c4:decoder_2b`.

    Args:
      name: Module and function, with a dot or a colon between them: as they stand, or the end of
        an experiment's name below configs/; or its name in Pax, with or without Pax's modules.

    Raises:
      UnknownReference: There is none, or several; the problem holds the nearest.
    """
    target, bracket, given = name.partition("(")
    wanted = target.replace(":", ".")
    folder = Path.cwd() / "configs"
    found = list(listing.find(folder)) if folder.is_dir() else []
    known = {listed.reference.replace(":", "."): listed.reference for listed in found}
    for old, new in listing.moved(folder).items():
        known |= {
            old + dotted.removeprefix(new): reference
            for dotted, reference in known.items()
            if f"{dotted}.".startswith(f"{new}.")
        }
    fitting = [known[dotted] for dotted in known if f".{dotted}".endswith(f".{wanted}")]
    fitting = list(dict.fromkeys(fitting))
    aliases = {alias.name: alias.reference for listed in found for alias in listed.aliases}
    own = wanted.rpartition(".")[2]
    if wanted in known or len(fitting) == 1:
        return known.get(wanted, fitting[0]) + bracket + given
    if own in aliases and not fitting:
        return _called(aliases[own], given)
    if fitting:
        remedy = "write more of the name"
        raise UnknownReference(Problem(f"{name!r} may mean {' and '.join(fitting)}", remedy=remedy))
    if _exists(wanted.split(".")[0]):
        module, _, last = wanted.rpartition(".")
        is_module = ":" not in target and (not module or _exists(wanted))
        return name if ":" in target or is_module else f"{module}:{last}{bracket}{given}"
    from luthier.graph.paths import nearest

    count = wanted.count(".") + 1
    ends = {".".join(dotted.split(".")[-count:]): known[dotted] for dotted in known}
    near = [ends[end] for end in nearest(wanted, ends)] + nearest(own, aliases)
    what = f"there is no experiment {name!r}, as it stands or below configs/"
    raise UnknownReference(Problem(what, nearest=near, remedy="`luthier list` shows them"))


def _called(reference: str, given: str) -> str:
    """Return a reference with further arguments, as they stand on the command line: `steps=2)`."""
    if not given:
        return reference
    return f"{reference[:-1]}, {given}" if reference.endswith(")") else f"{reference}({given}"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _recorded(file: str) -> str:
    if not Path(file).is_file():
        raise UnknownReference(Problem(f"--fdl_config_file: there is no file {file!r}"))
    return file


_EXPERIMENTS: dict[str, Callable[[str], str]] = {
    "--fdl_config": str,
    "--fdl_config_file": _recorded,
    "--exp": find_experiment,
    "--gin_root": "gin_root:{}".format,
}
