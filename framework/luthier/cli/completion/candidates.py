"""What could stand at the place of the cursor; nothing here imports an experiment, or JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from luthier.cli.completion import background, files, index, listing, syntax
from luthier.cli.completion.index import LIST, NODE, Candidate, Entry, Index

WORDS = ("any:", "class:", "config_dict:", "fiddler:", "gin:", "reset:", "tag:")
"""How words of the override grammar begin that are no paths."""

VARIABLE = "LUTHIER_WORDS"
"""The environment's variable with the words up to the cursor, each with a line break after it."""

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
    """Return what the last of some words could become.

    Args:
      words: What was typed after `luthier`, up to the cursor; the last may be empty.
    """
    known = syntax.commands()
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
    found = {c.word: c for c in offered if c.word.startswith(typed) and c.word != typed}
    return list(found.values())


class _Line:
    """A command line up to the cursor, as far as it matters what may come next.

    Args:
      known: What `syntax.commands` returns.
      command: The command.
      before: The words between the command and the one that is typed.
      typed: The word that is typed.
    """

    def __init__(self, known: dict, command: str, before: Sequence[str], typed: str):
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
        said = f"{self._waiting}={word}" if self._waiting else word
        for begins, found in (
            (("--gin_file=", "gin_file:"), self._gin_files),
            (("--config_dict=", "config_dict:"), self._config_dicts),
        ):
            found += [said.removeprefix(b) for b in begins if said.startswith(b)]
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
        """Yield what may come, and more: words that begin otherwise are left out later."""
        for candidate in self._offered():
            yield Candidate(self._prefix + candidate.word, candidate.text)

    def _offered(self) -> Iterator[Candidate]:
        typed = self._typed
        if self._waiting in self._options:
            _, choices, metavar, _ = self._options[self._waiting]
            yield from self._of_place(metavar, choices)
        elif self._waiting in _REFERENCES:
            yield from listing.experiments()
        elif self._waiting:
            yield from self._of_flag(self._waiting)
        elif typed.startswith("--fdl."):
            inside = self._settings(typed.removeprefix("--fdl."))
            yield from (Candidate(f"--fdl.{c.word}", c.text) for c in inside)
        elif typed.startswith("--fdl_tag."):
            yield from (Candidate(f"--fdl_tag.{c.word}", c.text) for c in self._tags())
        elif typed.startswith("-"):
            yield from (Candidate(name, told) for name, (*_, told) in self._options.items())
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
            yield from files.offered(self._typed, _FILES[flag])

    def _of_place(self, metavar: str, choices: Sequence[str]) -> Iterator[Candidate]:
        if choices:
            yield from (Candidate(choice) for choice in choices)
        elif "REF" in metavar.split("|"):
            yield from self._references()
        elif metavar in ("OVERRIDE", "OVERRIDE|PATH"):
            yield from self._overrides()
        elif metavar == "PATH":
            yield from self._paths(self._typed, ends="")
        elif metavar in ("ID", "RUN", "ID|DIR"):
            yield from listing.runs()
        elif metavar == "PAGE":
            yield from listing.pages()

    def _references(self) -> Iterator[Candidate]:
        if self._typed.startswith("run:"):
            yield from (Candidate(f"run:{run.word}", run.text) for run in listing.runs())
            return
        yield from listing.experiments()
        yield Candidate("run:", "a run that was recorded")

    @property
    def _index(self) -> Index | None:
        """The index of the experiment that was typed; a missing one is begun."""
        choices = self._places[0][1] if self._places else []
        reference = next((word for word in self._given if word not in choices), "")
        if not reference:
            return None
        found = index.load(reference)
        if found is None or not found.is_fresh():
            background.start(reference)
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
        """Yield the next parts of a path; a leaf with what `ends` it."""
        for entry in self._entries("path", typed):
            rest = entry.word[len(typed) :]
            # What lies below comes when a dot or a bracket was typed.
            if "." in rest or "[" in rest[1 if typed.endswith("[") else 0 :]:
                continue
            goes_on = entry.text in (NODE, LIST)
            yield Candidate(
                entry.word + (entry.text if goes_on else ends), "" if goes_on else entry.text
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
        yield from (Candidate(f"{name}=") for name in files.macros(self._gin_files))

    def _keys(self, typed: str) -> Iterator[Candidate]:
        for written in self._config_dicts:
            yield from (Candidate(f"{key}=") for key in files.keys(written))
        yield from files.offered(typed, _FILES["--config_dict"])

    def _fiddlers(self) -> Iterator[Candidate]:
        yield from (Candidate(entry.word, entry.text) for entry in self._entries("fiddler"))
