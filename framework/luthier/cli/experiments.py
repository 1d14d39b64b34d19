"""Loads the graph that a command line describes: reference, overrides, checks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from luthier import project
from luthier.cli import flags, schedule_lengths
from luthier.cli.arguments import Problems, UnknownOption
from luthier.errors import BadInput, Problem, RunError
from luthier.facade import root_function
from luthier.storage.bucket import is_url
from luthier.terminal import printable

if TYPE_CHECKING:
    from luthier.graph import Graph
    from luthier.graph.compare import Document
    from luthier.records import Run, RunDirectory
    from luthier.view.diff.page import Difference

RUN = "run:"
STUDY = "study:"
# An id of a run or its beginning, `978c70d0-2`, with the name before it or not. A digit must be in
# it, so that `cafe` and `configs` stay names of modules.
_RUN_ID = re.compile(r"(?:[\w-]+/)?(?=[a-f]*\d)[0-9a-f]{4,8}(?:-\d+)?")
RUNS = "runs"
"""The folder in which runs are looked up."""


_Function = TypeVar("_Function", bound="Callable[..., Graph]")


def _with_one_list(function: _Function) -> _Function:
    """Return a function that rejects overrides which are not in one list, with that list."""

    # A wrapper, so that the signature in `help` is the one to write.
    @functools.wraps(function)
    def call(reference: str, overrides: Sequence[str] = (), *others: str) -> Graph:
        if isinstance(overrides, str) or others:
            words = [overrides] if isinstance(overrides, str) else [*overrides]
            remedy = f"write luthier.experiment({reference!r}, {[*words, *others]!r})"
            raise BadInput(Problem("the overrides are not in one list", remedy=remedy))
        return function(reference, overrides)

    return cast(_Function, call)


@root_function("experiment")
@_with_one_list
def experiment(reference: str, overrides: Sequence[str] = ()) -> Graph:
    """Return the config that a reference names, with overrides applied.

    It takes what `luthier show` takes, and finds the same project: its experiments, those that come
    with luthier, its packages and its fiddlers.

        experiment("quickstart", ["training.steps=200", "fiddler:debug"])
        experiment("run:last")

    Args:
      reference: A full or short name (`configs.lm.quickstart`, `quickstart`), `package.module:name`
        for another function than `experiment`, a run (`run:ID`, its folder), a trial
        (`study:NAME/7`) or a file of a config.
      overrides: Overrides as on the command line, applied in order.

    Returns:
      The config: an `fdl.Config` of an `Experiment` or of a `Study`.

    Raises:
      BadInput: There is nothing of that name, or an override cannot be applied; all problems at
        once.
    """
    # Scripts in other folders, and notebooks below the project's, lack its `configs` on the path.
    with project.importable(project.root()):
        graph, _ = load(reference, overrides, Problems(), command="show", checked=False)
    return graph


@root_function("diff")
def diff(a: Graph | Document | Run | str, b: Graph | Document | Run | str) -> Difference:
    """Compare two experiments, or those of two runs.

    Args:
      a: A config; a run of `luthier.runs()`; a reference, as `experiment` takes it; or a record
        read by `luthier.graph.compare.read`.
      b: The same.

    Returns:
      The difference; empty, and so false, if and only if nothing differs.

    Raises:
      BadInput: The reference does not exist, or the argument is not a config.
      RecordError: A graph contains a cycle, or is nested too deeply.

    Example:
      >>> import luthier
      >>> after = luthier.experiment("quickstart", ["optimizer.b2=0.99"])
      >>> bool(luthier.diff("quickstart", after)), bool(luthier.diff("quickstart", "quickstart"))
      (True, False)
    """
    from luthier.view.diff import page

    return page.diff(_described(a, "the first"), _described(b, "the second"))


def _described(given: Graph | Document | Run | str, name: str) -> Graph | Document:
    from luthier.graph.compare import Document, document
    from luthier.graph.paths import is_node
    from luthier.records import Run

    if isinstance(given, str):
        return document(experiment(given), given)
    if isinstance(given, Run):
        return document(experiment(str(given.directory.path)), f"{given.name}/{given.id}")
    if isinstance(given, Document) or is_node(given):
        return given
    what = f"{name} is a {type(given).__name__} and not a config"
    raise BadInput(Problem(what, remedy="give a config, a reference such as run:last, or a run"))


def load_reference(reference: str, packages: Sequence[str] = ()) -> Graph:
    """Return the graph that a reference names.

    Args:
      reference: `configs.lm.quickstart`, `package.module:function(a=1)`; `hf:DIR`, the folder of a
        pretrained model; a run that was recorded: its folder, or `run:` with its id, the beginning
        of it, NAME/ID or `last`; or a trial of a study, `study:NAME/17`.
      packages: The user's packages that a recorded graph may name.

    Returns:
      The graph. That of a run has the history that was recorded with it.

    Raises:
      BadInput: There is nothing of that name, the name is ambiguous, or it cannot be read.
    """
    if reference.startswith(STUDY):
        from luthier import study as studies

        return studies.trial_graph(reference.removeprefix(STUDY))
    run = find_run(reference)
    if run is not None:
        return _load_run(run, packages)
    from luthier import graph as graphs

    return graphs.resolve(reference)


def source_of(reference: str, packages: Sequence[str] = ()) -> str:
    """Return the source of a module whose function `experiment` makes the graph of a reference.

    Args:
      reference: As for `load_reference`, such as `hf:DIR`.
      packages: The user's packages that a recorded graph may name.

    Raises:
      BadInput: There is nothing of that name, or a part of it cannot be written as Python.
    """
    from luthier import graph as graphs

    _, _, code = graphs.to_python(load_reference(reference, packages)).partition("\n")
    return f'"""The experiment of {reference}, written out."""\n{code}'


def find_run(reference: str) -> RunDirectory | None:
    """Return the directory of the run that a reference names; None if it names something else.

    Args:
      reference: As for `load_reference`.

    Raises:
      BadInput: There is no such run, or the name is ambiguous.
    """
    # As `evaluate`, `generate` and `runs` take them: `last`, and an id as `runs` prints it.
    is_id = reference == "last" or _RUN_ID.fullmatch(reference) is not None
    if is_id and importlib.util.find_spec(reference.partition("/")[0]) is None:
        reference = f"{RUN}{reference}"
    is_folder = bool(reference) and (Path(reference) / "config.json").is_file()
    if not is_folder and not reference.startswith(RUN) and not is_url(reference):
        return None
    from luthier import records

    name = reference.removeprefix(RUN)
    if not name:
        remedy = "write `run:ID`; `luthier runs` lists them"
        raise BadInput(Problem(f"{reference!r} does not name a run", remedy=remedy))
    return records.find(RUNS, name)


def _load_run(run: RunDirectory, packages: Sequence[str]) -> Graph:
    from luthier import graph as graphs
    from luthier.graph.recorded_defaults import restore_defaults
    from luthier.records import trust

    # Three files: the graph, the defaults of its time, and its history. A new default would
    # otherwise change the values of an old run, so the recorded ones are put in their place.
    text = run.read_config()
    packages = trust.packages_for(run.config_path, text, packages)
    graph = graphs.from_json(text, packages, source=str(run.config_path))
    with contextlib.suppress(RunError):  # missing or damaged: today's defaults
        restore_defaults(graph, run.read_values())
    with contextlib.suppress(RunError):  # a damaged history hides who set what, and nothing else
        graphs.restore_history(graph, run.read_history(), f"{run.name}/{run.id}")
    return graph


# From a command line to a graph: reference, overrides and checks, with all errors at once.

GIN = ("gin_file:", "gin_bindings:", "gin_search_paths:", "gin_skip_unknown:")
GIN_ROOT = "gin_root:"
TARGETS = ("hydra:", "konfig:")
CONFIG_DICT = ("config_dict:", "config_dict_rename:")


def load(
    reference: str | None,
    overrides: Sequence[str],
    problems: Problems,
    *,
    command: str,
    checked: bool = True,
    prepare: Callable[[Graph], Graph] | None = None,
) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph that a command line describes.

    Args:
      reference: `configs.lm.quickstart`, `package.module:function(a=1)`, a run, a JSON, YAML or gin
        file of a graph, or `gin_root:NAME` for a node of a class that gin files configure;
        `hydra:FILE.yaml:KEY` or `konfig:FILE.json` for dicts that name what they build.
      overrides: Overrides, applied in order.
      problems: Problems of the command line found so far; raised together with those found here.
      command: The command, for the message when there is no reference.
      checked: Whether the graph must be complete: `train` needs that, `show` does not.
      prepare: Returns the graph with changes that come before the overrides; it may raise
        BadInput. None changes nothing.

    Returns:
      The graph, and the user's packages that a recorded graph may name.

    Raises:
      BadInput: All problems, at once.
    """
    # Every stage adds its problems instead of raising, so that one start reports all of them; a
    # stage is left out only where it needs the result of one that failed. Validation is left out
    # where an override failed: it would report values that the user meant to change.
    found = project.Project(Path.cwd())
    with problems.collected():
        found = project.find()
    packages = allowed = found.packages
    # Without packages of the user there is no code of theirs that a file of overrides could reach.
    if packages:
        problems_before = len(problems)
        with problems.collected():
            allowed = _allowed_in_files(overrides, packages)
        if len(problems) > problems_before:
            problems.raise_any()  # untrusted files are not read any further
    graph = _resolve(reference, problems, command, packages, overrides, allowed)
    if graph is not None and checked and _is_study(graph):
        what = f"{reference} is a study, not an experiment"
        problems.add(what, remedy=f"`luthier sweep {reference}` runs it")
        problems.raise_any()  # its paths are not those of an experiment
    if graph is not None and command == "train" and (reference or "").startswith(STUDY):
        graph = _named_by_itself(graph, reference or "")
    problems_before = len(problems)
    if graph is not None and prepare is not None:
        with problems.collected():
            graph = prepare(graph)
        if len(problems) > problems_before:
            problems.raise_any()  # overrides of what it sets would fail, too
    if graph is not None:
        from luthier import graph as graphs

        base = graph
        problems.revise(lambda problem: _as_override(problem, base))
        try:
            graph = graphs.apply(
                graph,
                overrides,
                shelves=found.shelves,
                packages=allowed,
                # All packages: for a run, its own record decides which of them it may name.
                recorded=_recorded(packages),
                on_note=_print_note,
            )
        except BadInput as error:
            problems.note(error)
            problems.extend(flags.with_hints(error.problems, overrides))
        if checked and len(problems) == problems_before:
            try:
                graphs.validate(graph, packages)
            except BadInput as error:
                problems.extend(schedule_lengths.with_fix(error.problems, graph, base, overrides))
    problems.raise_any()
    return graph, packages


def _is_study(graph: Graph) -> bool:
    # The graph of a study refers to its class, so that its module is imported.
    studies = sys.modules.get("luthier.study.study")
    return studies is not None and studies.is_study(graph)


def _named_by_itself(graph: Graph, reference: str) -> Graph:
    """Return a trial's graph without the name of the trial's run in W&B.

    Its study would otherwise have two runs of one name; without, it is called `<name>/<id>`, as
    other runs are. It stays in the group of the study.
    """
    from luthier import graph as graphs

    try:
        name = graphs.get(graph, "records.wandb.name")
    except BadInput:
        return graph  # it does not record to W&B
    number = reference.rpartition("/")[2]
    if not isinstance(name, str) or not name.endswith(f"/{int(number)}"):
        return graph
    return graphs.apply(graph, ["records.wandb.name=None"], f"another run of {reference}:")


def _print_note(note: str) -> None:
    # On the standard error: the output of `show --to gin > FILE` stays a file of gin.
    print(f"note: {printable(note)}", file=sys.stderr)


def _as_override(problem: Problem, graph: Graph) -> Problem:
    """Return a problem; that of an unknown option with the override that was meant, if one was."""
    # `--seed=3` of absl, `--lr 1e-3` of argparse: overrides have no dashes here.
    if not isinstance(problem, UnknownOption) or not problem.value:
        return problem
    from luthier import graph as graphs

    name = problem.option.lstrip("-").replace("-", "_")
    near, is_certain = [f"{name}={problem.value}"], graphs.is_alias(name)
    try:
        graphs.apply(graph, near)
        is_certain = True
    except BadInput as error:
        paths = error.problems[0].nearest
        near = [path if "=" in path else f"{path}={problem.value}" for path in paths]
    # An option of a similar name is the better guess where no setting is called so.
    if not near or (problem.nearest and not is_certain):
        return problem
    return dataclasses.replace(problem, nearest=tuple(near), remedy="")


def _allowed_in_files(overrides: Sequence[str], packages: Sequence[str]) -> tuple[str, ...]:
    """Return the user's packages that overrides may name, given the files among them."""
    # A file of overrides or of gin can name any class or function, and so run code of the user's
    # packages when it is applied. Foreign files (downloads, records of another project) may do so
    # only after `--trust`; `luthier.records.trust` decides, by the file's place and its text. All
    # files are read here, also those that gin files include, before anything is imported. A file of
    # `config_dict:` is not among them: it is a Python program, which runs because it was named.
    from luthier.graph import override_files
    from luthier.graph.formats import gin
    from luthier.records import trust

    words, texts = list[str](), dict[str, str]()
    for word in overrides:
        word = _bare(word)
        if not word.startswith(override_files.FILE):
            words.append(word)
            continue
        file = word.removeprefix(override_files.FILE).strip()
        try:
            inside = list(override_files.read_overrides(file))
        except BadInput:
            continue  # reported where the file is applied
        # A file with nothing but inclusions is judged, too: what they name is named through it.
        texts.setdefault(file, "")
        for text, where in inside:
            words.append(_bare(text))
            name = where.rpartition(":")[0]  # FILE:LINE, and FILE may be one that `file` includes
            texts[name] = f"{texts.get(name, '')}{text}\n"
    if any(word.startswith(GIN) for word in words):
        texts |= gin.files_of(words)
    # A graph is made of all files together, so a package may be named only where every one of them
    # may name it.
    allowed = tuple(packages)
    # `packages_for` returns a subset of `packages` for each file.
    for file, text in texts.items():
        theirs = trust.packages_for(file, text, packages)
        allowed = tuple(package for package in allowed if package in theirs)
    return allowed


def _bare(word: str) -> str:
    return word.strip().removeprefix("--fdl.").strip()


def _recorded(packages: Sequence[str]) -> Callable[[str], Graph]:
    """Return the function that loads the graph of a run, for `model=run:ID.model`."""
    # Cached for one command line: several overrides often take values of the same run.

    @functools.cache
    def load_run(run: str) -> Graph:
        from luthier import graph as graphs
        from luthier import records
        from luthier.records import trust

        found = records.find(RUNS, run)
        text = found.read_config()
        return graphs.from_json(text, trust.packages_for(found.config_path, text, packages))

    return load_run


def _resolve(
    reference: str | None,
    problems: Problems,
    command: str,
    packages: Sequence[str],
    overrides: Sequence[str],
    allowed: Sequence[str],
) -> Graph | None:
    """Return the graph of a reference, or None with a problem added."""
    if reference == "" and len(problems):
        return None  # --run or a flag such as --exp named it: its problem is known already
    if not reference:
        problems.add(
            "no experiment is given",
            remedy=f"write `luthier {command} configs.lm.quickstart`; "
            "`luthier list` lists experiments",
        )
        return None
    if is_override(reference):
        problems.add(
            f"the first argument, {reference!r}, is an override, not an experiment",
            remedy=f"write `luthier {command} configs.lm.quickstart {reference}`",
        )
        return None
    with problems.collected():
        if reference.startswith(GIN_ROOT):
            from luthier.graph.formats import gin

            # The files of this reference are among the overrides, hence what they all may name.
            return gin.make_root(reference.removeprefix(GIN_ROOT), overrides, allowed)
        if reference.startswith(TARGETS):
            return _from_targets(reference, packages)
        if reference.endswith((".json", ".yaml", ".yml", ".gin")) and Path(reference).is_file():
            from luthier import graph as graphs
            from luthier.records import trust

            forms = {".json": graphs.from_json, ".gin": graphs.from_gin}
            read = forms.get(Path(reference).suffix, graphs.from_yaml)
            text = _text(reference)
            if read is graphs.from_json and graphs.is_fiddle_json(text):
                read = graphs.from_fiddle_json
            return read(text, trust.packages_for(reference, text, packages), reference)
        return load_reference(reference, packages)
    return None


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise BadInput(f"cannot read the file {file!r}: {reason}") from None


def _from_targets(reference: str, packages: Sequence[str]) -> Graph:
    """Return the graph of `hydra:FILE`, `hydra:FILE:KEY` or `konfig:FILE`."""
    from luthier import graph as graphs

    kind, _, rest = reference.partition(":")
    file, _, key = rest.partition(":") if kind == "hydra" else (rest, "", "")
    text = _text(file)
    from luthier.records import trust

    packages = trust.packages_for(file, text, packages)
    if kind == "konfig":
        return graphs.from_konfig(text, packages, file)
    return graphs.from_hydra(text, packages, file, key)


def is_override(word: str) -> bool:
    """Return whether an argument is an override, and not a path or a reference with arguments.

    Args:
      word: An argument of the command line.
    """
    # `a.b(c=1)` is a reference whose arguments hold an equals sign; `f(x)=1` is not a path, so what
    # counts is the part before the first bracket.
    is_word = word.startswith(("reset:", "fiddler:", "file:", "~", *GIN, *CONFIG_DICT))
    return is_word or word.endswith("~") or "=" in word.split("(")[0]
