"""The settings of engines: which engine `--on` means, and its settings in the site's files.

A setting is taken from the first of these that has it:

1. the command line: `--on slurm:nodes=2,partition=gpu`
2. the graph of a study, where its `engine` is a `luthier.launch.Slices` and there is no `--on`
3. `launch.toml` beside the project's pyproject.toml
4. `~/.config/luthier/launch.toml` (or where `XDG_CONFIG_HOME` says)
5. the defaults of the engine's class

A file has a table for each engine, and may name sites of its own:

    [slurm]
    account = "lab"

    [big]
    engine = "slurm"
    partition = "h100"
    gpus_per_node = 8

`--on big:nodes=4` is SLURM with the settings of `[big]`, and behind them those of `[slurm]`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.graph import entry_points, signatures
from luthier.graph.grammar import types
from luthier.launch.jobs import Launch

ENGINES = {
    "slurm": "luthier.launch.slurm.Slurm",
    "ray": "luthier.launch.ray.Ray",
    "kubernetes": "luthier.launch.kubernetes.Kubernetes",
    "tpu-vm": "luthier.launch.tpu_vm.TpuVm",
    "local": "luthier.launch.here.Here",
}
"""The engines by the name that `--on` calls them; those of other distributions are beside them."""

FILE = "launch.toml"
SLICES = {"slices": int, "memory_bytes": int | None, "host": str | None}
"""Further settings where the device groups of a sweep are started: arguments of `Slices`."""

COMMAND_LINE = "--on"


@dataclasses.dataclass(frozen=True)
class EngineSetting:
    """A setting, and who set it.

    Args:
      value: Its value.
      origin: Where it was set: `--on`, or a file.
    """

    value: Any
    origin: str


@dataclasses.dataclass(frozen=True)
class Chosen:
    """An engine with its settings.

    Args:
      name: The engine's name, one of `engines()`.
      path: Its class, by import path.
      settings: What is set for it, by name.
      slices: What is set for the slices of a sweep, by name.
    """

    name: str
    path: str
    settings: Mapping[str, EngineSetting]
    slices: Mapping[str, EngineSetting] = dataclasses.field(default_factory=dict)

    def make(self) -> Any:
        """Return the engine.

        Raises:
          BadInput: Its class refuses the settings as they stand together.
        """
        return engine_class(self.path)(**{n: s.value for n, s in self.settings.items()})

    def lines(self) -> list[str]:
        """Return the settings and their origins, a line for each."""
        every = {**self.settings, **self.slices}
        return [f"{n} = {s.value!r}  [{s.origin}]" for n, s in every.items()]


def engines() -> list[str]:
    """Return the names that `--on` knows: luthier's own, then those of installed distributions."""
    return list(dict.fromkeys((*ENGINES, *entry_points.names(entry_points.ENGINES))))


def _path_of(name: str) -> str | None:
    """Return the import path of an engine; None where nothing is called like that.

    Raises:
      BadInput: Several distributions have an engine of that name.
    """
    if name in ENGINES:
        return ENGINES[name]
    targets = {one.target for one in entry_points.named(name, entry_points.ENGINES)}
    if len(targets) > 1:
        what = f"the engine {name!r} is in several distributions: {', '.join(sorted(targets))}"
        raise BadInput(Problem(what, "", COMMAND_LINE, "uninstall one of them"))
    return next(iter(targets), None)


def _installed_path(name: str) -> str:
    """Return the import path of an engine that something was started with before.

    Raises:
      BadInput: Its distribution is not installed any more.
    """
    path = _path_of(name)
    if path is None:
        remedy = "install the distribution that has it"
        raise BadInput(Problem(f"there is no engine {name!r} here", remedy=remedy))
    return path


def engine_class(path: str) -> Any:
    """Return a class by its import path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def engine_of(launch: Launch) -> Any:
    """Rebuild the engine that a launch was submitted to.

    Args:
      launch: The launch.

    Returns:
      An engine with the settings that were recorded.
    """
    return engine_class(_installed_path(launch.engine))(**launch.values)


def user_file(environment: Mapping[str, str] | None = None) -> pathlib.Path:
    """Return the file of the user's own settings, which may be missing.

    Args:
      environment: Such as `os.environ`, which None means.

    Returns:
      The path: `luthier/launch.toml` below `XDG_CONFIG_HOME`, or below `~/.config`.

    Example:
      >>> from luthier import launch
      >>> launch.user_file({"XDG_CONFIG_HOME": "/config"}).as_posix()
      '/config/luthier/launch.toml'
    """
    given = os.environ if environment is None else environment
    root = given.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config"
    return pathlib.Path(root, "luthier", FILE)


def choose(text: str, project: str | os.PathLike[str], of_sweep: bool = False) -> Chosen:
    """Return the engine that `--on` means, with all its settings.

    Args:
      text: `slurm`, `slurm:nodes=2,partition=gpu`, or a site that a file names.
      project: The folder of the project's pyproject.toml.
      of_sweep: Whether slices are started, which have settings too.

    Returns:
      The engine's name and its class by import path, its settings, each with its origin, and
      those of slices.

    Raises:
      BadInput: A name or a value is wrong; all problems are in it.

    Example:
      >>> from luthier import launch
      >>> launch.choose("slurm:nodes=2,partition=gpu", ".").name
      'slurm'
    """
    name, _, words = text.partition(":")
    problems: list[Problem] = []
    tables = _tables(project, problems)
    # A name may be a site: a table with `engine = "slurm"` of its own. The project's file is read
    # after the user's, so that it wins.
    engine = name
    for table in tables.values():
        engine = table.get(name, {}).get("engine", engine)
    path = _path_of(engine)
    if path is None:
        known = sorted({*engines(), *(site for table in tables.values() for site in table)})
        what = f"there is no engine or site {engine!r}"
        near = difflib.get_close_matches(engine, known)
        remedy = f"there are {', '.join(known)}; sites are tables of {' or '.join(tables)}"
        # Raised here and not collected: settings cannot be checked without the class that takes
        # them.
        raise BadInput([*problems, Problem(what, "", COMMAND_LINE, remedy, near)])
    known_here = _Known(engine, problems)
    known_here.take_tables(tables, name)
    for key, word in _split(words, problems):
        if key in SLICES and not of_sweep:
            remedy = "leave it out: a single run is one group"
            problems.append(Problem(f"{key} is for sweeps", "", COMMAND_LINE, remedy))
            continue
        known_here.take(key, word, COMMAND_LINE, typed=False)
    known_here.check_complete()
    if problems:
        raise BadInput(problems)
    # A file serves runs and sweeps alike, so its settings of slices are no mistake for a run.
    slices = known_here.slices if of_sweep else {}
    return Chosen(engine, path, known_here.settings, slices)


def of_site(engine: str, project: str | os.PathLike[str]) -> Chosen:
    """Return an engine with the settings of the files alone.

    Args:
      engine: Its name, one of `engines()`.
      project: The folder of the project's pyproject.toml.

    Returns:
      As of `choose`.

    Raises:
      BadInput: A name or a value in a file is wrong; all problems are in it.

    Example:
      >>> from luthier import launch
      >>> launch.of_site("slurm", ".").name
      'slurm'
    """
    problems: list[Problem] = []
    known_here = _Known(engine, problems)
    known_here.take_tables(_tables(project, problems), engine)
    if problems:
        raise BadInput(problems)
    return Chosen(engine, _installed_path(engine), known_here.settings, known_here.slices)


def _tables(
    project: str | os.PathLike[str], problems: list[Problem]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tables of both files by the files' paths, the one that counts more last."""
    files = [user_file(), pathlib.Path(project, FILE)]
    return {str(path): _read(path, problems) for path in files}


class _Known:
    """Collects the settings of one engine; later ones override earlier ones.

    Args:
      engine: The engine's name.
      problems: The list to which problems are added.
    """

    def __init__(self, engine: str, problems: list[Problem]):
        self._engine, self._problems = engine, problems
        # Settings are the arguments of the engine's class: there is no second list of them that
        # could differ.
        cls = engine_class(_installed_path(engine))
        self._arguments, self._hints = signatures.arguments(cls), signatures.type_hints(cls)
        self.settings: dict[str, EngineSetting] = {}
        self.slices: dict[str, EngineSetting] = {}

    def take_tables(self, tables: Mapping[str, Mapping[str, Any]], name: str) -> None:
        """Take the settings of the engine from files, and those of a site over them.

        Args:
          tables: The tables of each file, by its path.
          name: The site, or the engine again.
        """
        # File by file, and the engine's table before the site's in each: so the project's `[slurm]`
        # wins over the user's `[big]`, and `[big]` over `[slurm]` of the same file.
        for path, table in tables.items():
            for site in dict.fromkeys((self._engine, name)):
                for key, value in table.get(site, {}).items():
                    if key != "engine":
                        self.take(key, value, f"[{site}] in {path}", typed=True)

    def take(self, key: str, given: Any, origin: str, *, typed: bool) -> None:
        """Take one setting.

        Args:
          key: Its name; `options.qos` is an entry of the mapping `options`.
          given: Its value, or the text of it.
          origin: Where it was set.
          typed: Whether it is a value already.
        """
        name, _, entry = key.partition(".")
        names = self._arguments.names
        if name not in names and name not in SLICES:
            near = difflib.get_close_matches(name, [*names, *SLICES])
            what = f"{self._engine} has no setting {name!r}"
            remedy = "" if near else f"its settings are {', '.join(names)}"
            self._problems.append(Problem(what, "", origin, remedy, near))
            return
        kept = self.settings if name in names else self.slices
        annotation = SLICES[name] if kept is self.slices else self._hints[name]
        value = given if typed else _value(given)
        if entry:
            # An entry is set alone: the others keep their values. The mapping has one origin, that
            # of the entry that was set last, because it is one argument of the engine.
            earlier = kept[name].value if name in kept else None
            before = dict(earlier) if isinstance(earlier, Mapping) else {}
            value, given = before | {entry: value}, before | {entry: given}
        # `--on slurm:account=1234`: read as TOML it is a number, but the setting wants a string.
        if not types.fits(value, annotation) and types.fits(given, annotation):
            value = given  # text that reads as a number
        if not types.fits(value, annotation):
            what = f"{name} is {value!r}, and not {types.describe(annotation)}"
            self._problems.append(Problem(what, "", origin))
            return
        kept[name] = EngineSetting(value, origin)

    def check_complete(self) -> None:
        """Add a problem for each setting that has no default and was not set."""
        for name in self._arguments.names:
            if name not in self._arguments.defaults and name not in self.settings:
                remedy = f"write {COMMAND_LINE} {self._engine}:{name}=..."
                what = f"{self._engine} needs the setting {name!r}"
                self._problems.append(Problem(what, "", COMMAND_LINE, remedy))


def _read(path: pathlib.Path, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """Return the tables of a file; none where there is no such file."""
    try:
        # A file that cannot be read is a problem and not a reason to stop: mistakes of the other
        # file and of the command line are listed with it.
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(Problem(f"cannot read {path}: {error}"))
        return {}
    tables = {}
    for name, table in found.items():
        if not isinstance(table, dict):
            what = f"{name} is not in a table"
            problems.append(Problem(what, "", str(path), "write [slurm] above it"))
        elif "engine" not in table and name not in ENGINES and name not in engines():
            near = difflib.get_close_matches(name, engines())
            remedy = 'name its engine: engine = "slurm"'
            problems.append(Problem(f"[{name}] is not an engine", "", str(path), remedy, near))
        else:
            tables[name] = table
    return tables


def _split(words: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of `nodes=2,setup=["a","b"]`: commas within brackets do not part."""
    for part in _parts(words):
        name, equals, text = part.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.[\w-]+)?", name.strip()):
            remedy = "write --on slurm:nodes=2,partition=gpu"
            problems.append(Problem(f"cannot read {part!r}", "", COMMAND_LINE, remedy))
        else:
            yield name.strip(), text.strip()


def _parts(words: str) -> Sequence[str]:
    # A scanner and not a regular expression: values may be lists and tables of TOML with commas of
    # their own.
    found, depth, quote = [""], 0, ""
    for letter in words:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append("")
            continue
        found[-1] += letter
    return [part for part in found if part.strip()]


def _value(text: str) -> Any:
    """Return the value of a text in TOML, or the text itself where it is not valid TOML."""
    try:
        # Without quotes a name such as `gpu` is no TOML, and is taken as text; `2`, `true` and
        # `["a"]` are values.
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
