"""Completion: the candidates for the word at the cursor.

A Tab must answer in a fraction of a second, so nothing of the project is imported or run: files are
read as text, and everything that needs an import (the paths of an experiment, the options of
commands) is read from files in the cache.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence

import luthier
from luthier import folders
from luthier.cli.completion import index
from luthier.cli.completion.index import LIST, NODE, Candidate, Entry, Index

_MACRO = re.compile(r"^([A-Za-z_][\w/]*)[ \t]*=", re.MULTILINE)
_INCLUDE = re.compile(r"^include[ \t]+['\"](.+)['\"]", re.MULTILINE)
_MOST = 50  # gin files read for one answer


def offered(typed: str, endings: Sequence[str]) -> Iterator[Candidate]:
    """Yield the files that complete a path, and the folders that lead to them.

    Args:
      typed: The beginning of a path.
      endings: Suffixes of the files; none for folders only.
    """
    folder, name = os.path.split(typed)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not name.startswith(".")
        if is_hidden or entry.name == "__pycache__" or not entry.name.startswith(name):
            continue
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            yield Candidate(path + os.sep)
        elif endings and entry.name.endswith(tuple(endings)):
            yield Candidate(path)


def macros(paths: Sequence[str]) -> Iterator[str]:
    """Yield the macros of gin files and of the files that they include.

    Args:
      paths: The files; those that cannot be read are left out.
    """
    # Read with regular expressions, because gin is not imported at a Tab. An included name is
    # relative to the working directory or to the file, so both are tried. Includes may form a
    # circle.
    pending: list[str] = list(paths)
    seen: set[str] = set()
    while pending and len(seen) < _MOST:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        text = _read(path)
        yield from _MACRO.findall(text)
        for found in _INCLUDE.findall(text):
            pending += [found, os.path.join(os.path.dirname(path), found)]


def keys(written: str) -> Iterator[str]:
    """Yield the keys of a ConfigDict that a file appears to set.

    Args:
      written: `FILE.py`, or `FILE.py:ARGUMENT`.
    """
    path = written.partition(".py:")[0].removesuffix(".py") + ".py"
    try:
        # Parsed and not run: a ConfigDict file is a program, which may take seconds or write files.
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = _names(target)
                if names:
                    yield ".".join(names)
                if names or isinstance(target, ast.Name):
                    yield from _inside(node.value, names)


def _names(target: ast.expr) -> list[str]:
    """Return the attributes of a variable: `optimizer`, `lr` of `config.optimizer.lr`."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return names if isinstance(target, ast.Name) else []


def _inside(value: ast.expr, above: Sequence[str]) -> Iterator[str]:
    """Yield the keys of a dict or ConfigDict literal, with those inside of it."""
    if not isinstance(value, ast.Call):
        pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
        named = [(k.value, v) for k, v in pairs if isinstance(k, ast.Constant)]
    elif getattr(value.func, "attr", getattr(value.func, "id", "")) in ("ConfigDict", "dict"):
        named = [(word.arg, word.value) for word in value.keywords if word.arg]
        for argument in value.args:
            yield from _inside(argument, above)
    else:
        return
    for name, inner in named:
        yield ".".join((*above, str(name)))
        yield from _inside(inner, (*above, str(name)))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


# Candidates that need no index: experiments, runs, and pages of the manual.

RUN = "run:"
RUNS, STUDIES = "runs", "studies"


def experiments() -> Iterator[Candidate]:
    """Yield experiments and studies; a file is parsed again only after it has changed."""
    own = [os.path.join(os.getcwd(), name) for name in folders.EXPERIMENT_FOLDERS]
    found: dict[str, Candidate] = {}
    for folder in (*own, *folders.shipped_folders()):
        for reference, text in _listing(folder):
            found.setdefault(reference, Candidate(reference, text))
    yield from found.values()


def _listing(folder: str) -> Iterator[list[str]]:
    name = f"experiments-{index.digest(folder.encode())}"
    # Hashing all files takes milliseconds; the cache saves parsing them.
    now = index.fingerprints(_python_files(folder))
    before = _read_listing(name)
    listed = {
        file: before[file][1] if before.get(file, [""])[0] == digest else _listed(folder, file)
        for file, digest in now.items()
    }
    listing = {file: [digest, listed[file]] for file, digest in now.items()}
    if listing != before:
        index.write(name, json.dumps(listing))
    for file in now:
        yield from listed[file]


def runs() -> Iterator[Candidate]:
    """Yield the ids of the runs below runs/, by name."""
    root = _records_folder(RUNS)
    for name in _folders(root):
        for run in _folders(os.path.join(root, name)):
            if os.path.isfile(os.path.join(root, name, run, "config.json")):
                yield Candidate(run, name)


def studies() -> Iterator[Candidate]:
    """Yield the names of the studies below studies/."""
    root = _records_folder(STUDIES)
    for name in _folders(root):
        if os.path.isfile(os.path.join(root, name, "study.json")):
            yield Candidate(name)


def _records_folder(name: str) -> str:
    """Return the folder of the project's runs or studies (see `luthier.project.records_folder`)."""
    # Again here, because a Tab does not wait for the imports of that module.
    return os.path.join(folders.project_folder(os.getcwd()) or "", name)


def pages() -> Iterator[Candidate]:
    """Yield the pages of the manual."""
    for name in folders.manual_pages():
        yield Candidate(name)


def _python_files(folder: str) -> list[str]:
    found = []
    for where, below, names in os.walk(folder):
        # Only what can be imported: `sweeps/` may hold results as well.
        below[:] = [name for name in below if name.isidentifier() and name[:2] != "__"]
        found += [os.path.join(where, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _folders(folder: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []


def _read_listing(name: str) -> dict:
    try:
        found = json.loads(index.read(name))
        return {file: [str(digest), list(listed)] for file, (digest, listed) in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # damaged or missing


def _listed(folder: str, file: str) -> list[list[str]]:
    from pathlib import Path

    from luthier.cli import listing

    found = listing.find_in(Path(folder), Path(file))
    return [[listed.reference, listed.description] for listed in found]


# The commands and their arguments, from the cache: building the parsers is too slow for a Tab.


def commands() -> dict:
    """Return the syntax of the command line.

    Returns:
      `commands`, their help by name; `flags` of Fiddle and Pax that take a value; `options` of each
      command by name: [takes a value, choices, metavar, help]; `places` of each command, its
      positional arguments: [metavar, choices]. An action of a command, as `data prepare`, has
      options and places of its own.
    """
    name = f"syntax-{index.digest(_state().encode())}"
    try:
        found = json.loads(index.read(name))
        if {"commands", "flags", "options", "places"} <= found.keys():
            return found
    except (ValueError, AttributeError):
        pass  # damaged or missing
    found = _found()
    index.write(name, json.dumps(found))
    return found


def _state() -> str:
    """Return a text that changes whenever the files of the command line do."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = [
        entry
        for folder in (here, os.path.join(here, "commands"))
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    ]
    # By time of modification and not by content: these files change only when luthier is installed
    # or edited, and a `stat` is cheaper than reading them.
    stats = sorted(f"{file.path} {file.stat().st_mtime_ns}" for file in files)
    return "\n".join([luthier.__version__, *stats])


def _found() -> dict:
    from luthier.cli import command_line, flags

    parsers = {}
    for command in command_line.COMMANDS:
        parser = parsers[command] = command_line.parser_of(command)
        parsers |= {f"{command} {name}": each for name, each in parser.actions.items()}
    options, places = {}, {}
    for command, parser in parsers.items():
        # `_actions` is private: argparse has no public list of a parser's options. "==SUPPRESS=="
        # is the value of `argparse.SUPPRESS`. It is written out, since this module must not import
        # argparse at its top: a Tab that finds the cache never gets here, where `command_line`
        # imports it anyway.
        shown = [action for action in parser._actions if action.help != "==SUPPRESS=="]
        options[command] = {
            option: [
                action.nargs != 0,
                _choices(action),
                str(action.metavar or ""),
                action.help or "",
            ]
            for action in shown
            for option in action.option_strings
        }
        places[command] = [
            [str(action.metavar or action.dest), _choices(action) or _words_in_help(action)]
            for action in shown
            if not action.option_strings
        ]
    return {
        "commands": dict(command_line.COMMANDS),
        "flags": list(flags.flags()),
        "options": options,
        "places": places,
    }


def _choices(action: object) -> list[str]:
    return [str(choice) for choice in getattr(action, "choices", None) or ()]


def _words_in_help(action: object) -> list[str]:
    """Return the words of an argument whose help is just a list of them."""
    # ACTION and SHELL have no `choices`, because their commands report a wrong word themselves.
    is_list = getattr(action, "metavar", None) in ("ACTION", "SHELL")
    return str(getattr(action, "help", "")).split(", ") if is_list else []


# Starts building an index in the background: a Tab does not wait for imports.


def start(reference: str) -> bool:
    """Start building the index of an experiment; return whether this call started it.

    Args:
      reference: The experiment, as it was typed.
    """
    if not sources(reference) or not index.claim(index.name_of(reference)):
        return False
    # posix_spawn and not subprocess, whose import alone takes longer than an answer. All streams
    # lead to /dev/null, because a shell waits for every process that holds its pipe open; and the
    # process gets a group of its own, so that Ctrl-C at the prompt does not reach it.
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "luthier", "completion", "index", reference],
        os.environ | {"JAX_PLATFORMS": "cpu"},  # it must not take an accelerator
        file_actions=quiet,
        setpgroup=0,
    )
    return True


def sources(reference: str) -> list[str]:
    """Return the files that a reference names, as far as they can be found without importing."""
    # A module may come from anywhere on `sys.path`; only the project's own are looked for. A
    # reference without such a file gets no index.
    if reference.startswith(RUN):
        import glob

        run = glob.escape(reference.removeprefix(RUN))
        files = (
            []
            if run in ("", "last")
            else glob.glob(f"{_records_folder(RUNS)}/*/{run}*/config.json")
        )
    else:
        module = reference.partition("(")[0].partition(":")[0]
        files = [f"{module.replace('.', os.sep)}.py", os.path.join(reference, "config.json")]
    return [os.path.abspath(file) for file in files if os.path.isfile(file)]


# The candidates at the cursor.

WORDS = ("any:", "class:", "config_dict:", "fiddler:", "gin:", "reset:", "tag:")
"""Prefixes of overrides that are not paths."""

VARIABLE = "LUTHIER_WORDS"
"""The environment variable with the words up to the cursor, each followed by a line break."""

_PREFIXES = ("--fdl.", "--fdl_tag.")
_FILES = {
    "--config_dict": (".py",),
    "--config_dict_rename": (".toml",),
    "--gin_file": (".gin",),
    "--gin_search_paths": (),
    "--overrides": (".txt",),
}
_REFERENCES = ("--exp", "--fdl_config", "--fdl_config_file")


def main() -> int:
    """Print the candidates for the words in LUTHIER_WORDS, one a line; return the exit code."""
    for word, text in complete(os.environ[VARIABLE].split("\n")[:-1]):
        print(f"{word}\t{text}" if text else word)
    return 0


def complete(words: Sequence[str]) -> list[Candidate]:
    """Return the candidates for the last of the words.

    Args:
      words: The words after `luthier`, up to the cursor; the last may be empty.
    """
    known = commands()
    *before, typed = words or [""]
    if not before:
        offered = [Candidate(name, text) for name, text in known["commands"].items()]
        options = [Candidate(name) for name in ("--help", "--version", "--debug")]
        return _beginning(typed, options if typed.startswith("-") else offered)
    command, *given = before
    if command not in known["commands"]:
        return []
    line = _Line(known, command, given, typed)
    return _beginning(typed, line.candidates())


def _beginning(typed: str, offered: Iterator[Candidate] | list[Candidate]) -> list[Candidate]:
    # The functions below may offer too much; here everything is filtered, and listed once.
    unique = {c.word: c for c in offered if c.word.startswith(typed) and c.word != typed}
    return list(unique.values())


class _Line:
    """A command line up to the cursor, and the candidates for its last word.

    Args:
      known: The syntax of `commands`.
      command: The command.
      before: The words between the command and the typed one.
      typed: The word at the cursor.
    """

    # argparse cannot parse an incomplete line, so the words are read here: those before the cursor
    # say which experiment is meant, which gin and ConfigDict files it uses, and whether the last of
    # them is an option that waits for its value. `_typed` is the part of the typed word that is
    # completed, `_prefix` what stands before it in the same word (`--exp=`).

    def __init__(self, known: dict, command: str, before: Sequence[str], typed: str):
        action = next((word for word in before if f"{command} {word}" in known["options"]), None)
        if action is not None:
            command = f"{command} {action}"
            before = [word for word in before if word != action]
        self._commands = known["commands"]
        self._flags = known["flags"]
        self._options = known["options"][command]
        self._places = known["places"][command]
        self._given: list[str] = []
        self._gin_files: list[str] = []
        self._config_dicts: list[str] = []
        self._waiting = ""
        for word in before:
            self._take(word)
        flag, is_set, value = typed.partition("=")
        if is_set and typed.startswith("--") and self._takes_value(flag):
            self._waiting, self._prefix, self._typed = flag, f"{flag}=", value
        else:
            self._prefix, self._typed = "", typed

    def _take(self, word: str) -> None:
        flag, is_set, value = word.partition("=")
        # `--gin_file x` and `--gin_file=x` look the same from here on.
        full = f"{self._waiting}={word}" if self._waiting else word
        for begins, found in (
            (("--gin_file=", "gin_file:"), self._gin_files),
            (("--config_dict=", "config_dict:"), self._config_dicts),
        ):
            found += [full.removeprefix(b) for b in begins if full.startswith(b)]
        if self._waiting in _REFERENCES:
            self._given.insert(0, word)
        elif flag in _REFERENCES and is_set:
            self._given.insert(0, value)
        elif not self._waiting and not word.startswith("-"):
            self._given.append(word)
        self._waiting = word if not self._waiting and self._takes_value(word) else ""

    def _takes_value(self, flag: str) -> bool:
        return self._options[flag][0] if flag in self._options else flag in self._flags

    def candidates(self) -> Iterator[Candidate]:
        """Yield candidates; those that do not begin with the typed word are filtered later."""
        for candidate in self._offered():
            yield Candidate(self._prefix + candidate.word, candidate.text)

    def _offered(self) -> Iterator[Candidate]:
        """Yield candidates for what is completed, by the place where it is."""
        # The value of an option of luthier, of a flag that names an experiment, of another flag;
        # flags that contain a path; an option; last, a positional argument, where the last place
        # repeats.
        typed = self._typed
        if self._waiting in self._options:
            _, choices, metavar, _ = self._options[self._waiting]
            yield from self._of_place(metavar, choices)
        elif self._waiting in _REFERENCES:
            yield from experiments()
        elif self._waiting:
            yield from self._of_flag(self._waiting)
        elif typed.startswith("--fdl."):
            inside = self._settings(typed.removeprefix("--fdl."))
            yield from (Candidate(f"--fdl.{c.word}", c.text) for c in inside)
        elif typed.startswith("--fdl_tag."):
            yield from (Candidate(f"--fdl_tag.{c.word}", c.text) for c in self._tags())
        elif typed.startswith("-"):
            yield from (Candidate(name, text) for name, (*_, text) in self._options.items())
            yield from (Candidate(name) for name in (*self._flags, *_PREFIXES))
        elif self._places:
            yield from self._of_place(*self._places[min(len(self._given), len(self._places) - 1)])

    def _of_flag(self, flag: str) -> Iterator[Candidate]:
        if flag == "--fiddler":
            yield from self._fiddlers()
        elif flag == "--fdl_set":
            yield from self._settings(self._typed)
        elif flag == "--fdl_tags_set":
            yield from self._tags()
        elif flag in _FILES:
            yield from offered(self._typed, _FILES[flag])

    def _of_place(self, metavar: str, choices: Sequence[str]) -> Iterator[Candidate]:
        if choices:
            yield from (Candidate(choice) for choice in choices)
        elif "REF" in metavar.split("|"):
            yield from self._references()
            # The actions of `luthier sweep` are among them.
            yield from (Candidate(word) for word in metavar.split("|") if word.islower())
        elif metavar in ("OVERRIDE", "OVERRIDE|PATH", "OVERRIDE|STUDY"):
            yield from self._overrides()
        elif metavar == "PATH":
            yield from self._paths(self._typed, ends="")
        elif metavar in ("ID", "RUN", "ID|DIR"):
            yield from runs()
        elif metavar == "STUDY":
            yield from studies()
        elif metavar == "TOPIC":
            yield from pages()
            yield from (Candidate(name, text) for name, text in self._commands.items())

    def _references(self) -> Iterator[Candidate]:
        if self._typed.startswith("run:"):
            yield from (Candidate(f"run:{run.word}", run.text) for run in runs())
            return
        yield from experiments()
        yield Candidate("run:", "a run that was recorded")

    @property
    def _index(self) -> Index | None:
        """The index of the typed experiment; a stale or missing one is built in the background."""
        # A stale index is used meanwhile: nearly all of it is right still, and the next Tab has the
        # new.
        choices = self._places[0][1] if self._places else []
        reference = next((word for word in self._given if word not in choices), "")
        if not reference:
            return None
        found = index.load(reference)
        if found is None or not found.is_fresh():
            start(reference)
        return found

    def _entries(self, kind: str, beginning: str = "") -> Iterator[Entry]:
        found = self._index
        return iter(()) if found is None else found.starting(kind, beginning)

    def _overrides(self) -> Iterator[Candidate]:
        head, colon, rest = self._typed.partition(":")
        if colon and head + colon in WORDS and "=" not in rest:
            inside = {
                "any:": self._anywhere,
                "class:": lambda: self._classes(rest),
                "config_dict:": lambda: self._keys(rest),
                "fiddler:": self._fiddlers,
                "gin:": self._constants,
                "reset:": lambda: self._paths(rest, ends=""),
                "tag:": self._tags,
            }[head + colon]()
            yield from (Candidate(head + colon + c.word, c.text) for c in inside)
            return
        yield from self._settings(self._typed)
        yield from (Candidate(word) for word in WORDS)

    def _settings(self, typed: str) -> Iterator[Candidate]:
        path, is_set, value = typed.partition("=")
        if not is_set:
            yield from self._paths(typed, ends="=")
            return
        for word in ("ref:", "alias:"):
            if value.startswith(word):
                below = self._paths(value.removeprefix(word), ends="")
                yield from (Candidate(f"{path}={word}{c.word}", c.text) for c in below)
        for entry in self._entries("path", path):
            if entry.word == path:
                yield from (Candidate(f"{path}={known}") for known in entry.values)
                return

    def _paths(self, typed: str, ends: str) -> Iterator[Candidate]:
        """Yield the next parts of a path; `ends` is added to a leaf."""
        for entry in self._entries("path", typed):
            rest = entry.word[len(typed) :]
            # Only the next part of the path: what is below it is offered after its dot or bracket.
            if "." in rest or "[" in rest[1 if typed.endswith("[") else 0 :]:
                continue
            has_parts = entry.text in (NODE, LIST)
            yield Candidate(
                entry.word + (entry.text if has_parts else ends), "" if has_parts else entry.text
            )

    def _anywhere(self) -> Iterator[Candidate]:
        for entry in self._entries("path"):
            name = entry.word.rpartition(".")[2]
            if name.isidentifier() and entry.text not in (NODE, LIST):
                yield Candidate(f"{name}=")

    def _classes(self, typed: str) -> Iterator[Candidate]:
        for entry in self._entries("class", typed):
            if "." in typed or "." not in entry.word:
                yield Candidate(entry.word + (NODE if entry.text == NODE else "="))

    def _tags(self) -> Iterator[Candidate]:
        yield from (Candidate(f"{entry.word}=", entry.text) for entry in self._entries("tag"))

    def _constants(self) -> Iterator[Candidate]:
        yield from (Candidate(f"{e.word}=", e.text) for e in self._entries("constant"))
        yield from (Candidate(f"{name}=") for name in macros(self._gin_files))

    def _keys(self, typed: str) -> Iterator[Candidate]:
        for written in self._config_dicts:
            yield from (Candidate(f"{key}=") for key in keys(written))
        yield from offered(typed, _FILES["--config_dict"])

    def _fiddlers(self) -> Iterator[Candidate]:
        yield from (Candidate(entry.word, entry.text) for entry in self._entries("fiddler"))
