"""Translates flags of Fiddle, Pax, gin and ConfigDict; hints for arguments that a shell damaged."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from luthier.cli import listing
from luthier.errors import BadInput, Problem, UnknownReference

# Arguments that a shell has changed because they were not quoted.
#
# Shells replace `$name` by a variable, end the command at `&`, `;`, `|`, `<` and `>`, split at
# spaces, remove quotes and expand `{a,b}` to several words. What is left is seldom a valid
# override, so an override that cannot be read and looks damaged gets a hint about quotes. An
# argument that the shell removes altogether cannot be detected: shells drop `#Name=1` as a comment,
# and fish drops a word with `()` or with an unknown `$name`.

HINT = "if you typed it in a shell, put the whole word in single quotes"

_OPERATOR = re.compile(r":=|[+*-]?=")
_EMPTIED = re.compile(r"(ref:|alias:)?(\.[A-Za-z_]|[*/%+)\]]|$)")
_CLOSING = {")": "(", "]": "[", "}": "{"}


def with_hints(problems: Iterable[Problem], words: Sequence[str]) -> list[Problem]:
    """Return problems, with a hint about quotes where a shell may have changed the argument.

    Args:
      problems: Problems whose origins name the argument: `argument 2: steps=`.
      words: The overrides of the command line.
    """
    hinted = []
    for problem in problems:
        match = re.match(r"argument (\d+): ", problem.origin)
        index = int(match[1]) - 1 if match else len(words)
        wants_quotes = " quote" in problem.remedy
        if index < len(words) and (wants_quotes or _is_damaged(words, index)):
            remedy = f"{problem.remedy}; {HINT}" if problem.remedy else HINT
            problem = dataclasses.replace(problem, remedy=remedy)
        hinted.append(problem)
    return hinted


def _is_damaged(words: Sequence[str], index: int) -> bool:
    """Return whether an override looks as if a shell had changed it."""
    # Signs of damage, in this order: no operator is left (`a=b & c` was cut at `&`), the value is
    # empty or begins in the middle of an expression (a `$name` was replaced by nothing), brackets
    # or quotes do not match (it was split at a space), or a neighbour sets the same path.
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
    """Return whether brackets and quotes are closed; a quote after a letter is an apostrophe."""
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


# Flags of Fiddle, Pax, gin and ConfigDict, as overrides at the same place: their order matters.
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
# --fdl_config config:REF, config_file:FILE     the experiment
# --fdl_config set:PATH=VALUE, fiddler:NAME      PATH=VALUE, fiddler:NAME
# --config FILE.py[:ARGUMENT], --config.KEY=X    config_dict:FILE.py[:ARGUMENT], config_dict:KEY=X
# --exp MODULE.NAME                              the experiment, also below configs/
# --exp NAME                                     what Pax calls NAME, as `luthier list pax` shows it

HELP = "--fdl_help"

_GIN, _SKIP = "--gin.", "--gin_skip_unknown"
_CONFIG, _CONFIG_KEY = "--config", "--config."

# Commands of a flag that `fiddle.absl_flags.DEFINE_fiddle_config` defines: `--fdl_config=set:a=1`.
# `--cfg` is the name that its documentation gives such a flag.
_COMMAND = re.compile(r"(config|config_file|config_str|set|fiddler):")
_COMMANDED = ("--fdl_config", "--cfg", _CONFIG)
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
    """Return the flags with a value that `translate` accepts.

    Args:
      names_experiment: Whether to include those that name the experiment.
    """
    return (*_WORDS, *(_EXPERIMENTS if names_experiment else ()))


def translate(
    words: Sequence[str], names_experiment: bool = True
) -> tuple[list[str], list[Problem]]:
    """Return `words` with the flags of Fiddle, Pax, gin and ConfigDict as overrides.

    Args:
      words: The arguments after the command.
      names_experiment: Whether the first of them names an experiment.

    Returns:
      The arguments, the experiment first if a flag names it; and the problems of the flags.
    """
    # One pass from left to right, since flags and overrides apply in their order. A flag is written
    # `--flag=value` or `--flag value`; the second form takes the next word, except after `--`,
    # where the words of another command begin (`luthier launch --on X -- train ...`).
    end = words.index("--") if "--" in words else len(words)
    known = flags(names_experiment)
    experiments: list[str] = []
    translated: list[str] = []
    problems: list[Problem] = []
    has_config_dict = any(_names_config_dict(word) for word in words[:end])
    coming = iter(range(end))
    for index in coming:
        word = words[index]
        prefix = next((p for p in _PREFIXES if word.startswith(p)), "")
        name, equals, value = word.partition("=")
        if word.startswith(_GIN) and equals:
            translated.append(f"gin_bindings:{name.removeprefix(_GIN)} = {value}")
            continue
        if word.startswith(_CONFIG_KEY) and equals:
            # Of the dict that --config names, or of the experiment where none is named.
            key = "config_dict:" if has_config_dict else ""
            translated.append(key + word.removeprefix(_CONFIG_KEY))
            continue
        # The two forms of a boolean flag of absl. `=false` is the default and stays an unknown
        # option.
        if word in (_SKIP, f"{_SKIP}=true"):
            translated.append("gin_skip_unknown:true")
            continue
        if prefix:
            translated.append(_PREFIXES[prefix] + word.removeprefix(prefix))
            continue
        ahead = value if equals else words[index + 1] if index + 1 < end else ""
        if name in _COMMANDED and (command := _COMMAND.match(ahead)) and names_experiment:
            if not equals:
                next(coming)
            own, is_experiment, problem = _commanded(name, command[1], ahead[command.end() :])
            problems += problem
            (experiments if is_experiment else translated).append(own)
            continue
        if name == _CONFIG and ahead.partition(":")[0].endswith(".py"):
            if not equals:
                next(coming)
            translated.append(f"config_dict:{ahead}")
            continue
        if name not in known:
            translated.append(word)
            continue
        if not equals and index + 1 < end:
            value = words[next(coming)]
        if not value:
            problems.append(Problem(f"{name} has no value", remedy="see `luthier help overrides`"))
        elif name in _WORDS:
            translated.append(_WORDS[name] + value)
        else:
            try:
                experiments.append(_EXPERIMENTS[name](value))
            except BadInput as error:
                problems += error.problems
                experiments.append("")  # keeps `load` from reporting that no experiment is given
    if len(experiments) > 1:
        what = f"two experiments are given: {' and '.join(experiments)}"
        problems.append(Problem(what, remedy="leave out one"))
    return [*experiments[:1], *translated, *words[end:]], problems


def _names_config_dict(word: str) -> bool:
    """Return whether an argument names the file of a ConfigDict."""
    file = word.partition(":")[0]
    is_file = file.startswith(f"{_CONFIG}=") and file.endswith(".py")
    return is_file or word.startswith(("config_dict:", "--config_dict")) or word == _CONFIG


def _commanded(flag: str, command: str, value: str) -> tuple[str, bool, list[Problem]]:
    """Return what a command of Fiddle's flag means here.

    Args:
      flag: The flag, as `--fdl_config`.
      command: `config`, `config_file`, `config_str`, `fiddler` or `set`.
      value: The text behind the colon.

    Returns:
      The override or the reference, whether it is a reference, and problems.
    """
    if command == "set":
        return value, False, []
    if command == "fiddler":
        return f"fiddler:{value.removesuffix('()')}", False, []
    try:
        if command == "config":
            return value.removesuffix("()"), True, []
        if command == "config_file":
            return _recorded(value), True, []
    except BadInput as error:
        return "", True, list(error.problems)
    what = f"{flag}=config_str:... holds a whole config, which is not read from a command line"
    return "", True, [Problem(what, remedy="save it: --fdl_config_file FILE.json")]


def find_experiment(name: str) -> str:
    """Return the reference of an experiment by its name, as `c4:decoder_2b`.

    Args:
      name: Module and function, with a dot or a colon between them: in full, or the end of the
        name of an experiment below configs/; or its name in Pax, with or without Pax's modules.

    Raises:
      UnknownReference: There is none, or several; the problem holds the nearest.
    """
    # The rules of Pax's --exp, in the order of certainty: the full name of an experiment below
    # configs/; the only one that ends so; a name of Pax in a docstring; any importable module. A
    # dot before the last part is ambiguous (`a.b` may be a module, or a function of `a`), so
    # whether `a.b` is a module decides. `find_spec` imports the parents of a module, but not the
    # module.
    target, bracket, arguments = name.partition("(")
    wanted = target.replace(":", ".")
    found = list(listing.find_all("configs"))
    known = {listed.reference.replace(":", "."): listed.reference for listed in found}
    # Modules that moved are found by their old names as well, which papers and scripts keep.
    for old, new in listing.moved_modules().items():
        known |= {
            old + dotted.removeprefix(new): reference
            for dotted, reference in known.items()
            if f"{dotted}.".startswith(f"{new}.")
        }
    fitting = [known[dotted] for dotted in known if f".{dotted}".endswith(f".{wanted}")]
    fitting = list(dict.fromkeys(fitting))
    # The project's own come first: a copy of one of luthier's experiments has its names, too.
    shipped = {listed.reference for listed in found if listed.is_shipped}
    fitting = [reference for reference in fitting if reference not in shipped] or fitting
    aliases: dict[str, str] = {}
    for listed in found:
        for alias in listed.aliases:
            aliases.setdefault(alias.name, alias.reference)
    own = wanted.rpartition(".")[2]
    # A full name wins, even where others end so. It is in `fitting`, too, so `fitting[0]` exists.
    if wanted in known or len(fitting) == 1:
        return known.get(wanted, fitting[0]) + bracket + arguments
    if own in aliases and not fitting:
        return _called(aliases[own], arguments)
    if fitting:
        remedy = "write more of the name"
        what = f"{name!r} is ambiguous: it may mean {' or '.join(fitting)}"
        raise UnknownReference(Problem(what, remedy=remedy))
    if _exists(wanted.split(".")[0]):
        module, _, last = wanted.rpartition(".")
        is_module = ":" not in target and (not module or _exists(wanted))
        return name if ":" in target or is_module else f"{module}:{last}{bracket}{arguments}"
    from luthier.graph.paths import nearest

    # Compared with ends of as many parts: a mistyped short name is not near to any full one.
    count = wanted.count(".") + 1
    ends = {".".join(dotted.split(".")[-count:]): known[dotted] for dotted in known}
    near = [ends[end] for end in nearest(wanted, ends)] + nearest(own, aliases)
    what = f"there is no experiment {name!r}, neither importable nor listed by `luthier list`"
    raise UnknownReference(Problem(what, nearest=near))


def _called(reference: str, arguments: str) -> str:
    """Return a reference with further arguments, in the form `steps=2)` of the command line."""
    if not arguments:
        return reference
    is_call = reference.endswith(")")
    return f"{reference[:-1]}, {arguments}" if is_call else f"{reference}({arguments}"


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
