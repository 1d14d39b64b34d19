"""Create a folder for your own project, outside of luthier's repository.

The folder contains configs/, sweeps/, tests, a CI workflow and a Python package.
The package defines a layer, a data set and a task with its own metric, and
configs.addition uses them. --from REF adds a copy of an experiment that comes
with luthier, with its variants, as a starting point. The example study then
tunes this experiment. With hf:DIR, the experiment starts from the weights of a
Hugging Face folder. Run all commands from inside the project folder.

examples:
  luthier init my_models
  luthier init my_models --from quickstart
  luthier init my_models --from configs.vision.digits:resnet
  luthier init my_models --from hf:path/to/llama
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from luthier import folders
from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

PACKAGE = "my_project"
"""The placeholder for the user's package in the file names and texts of the template."""

RENAMED = {"gitignore": ".gitignore", "github": ".github"}
RESERVED = ("configs", "sweeps", "tests", "runs", "studies", "luthier", PACKAGE)


USAGE = "luthier init NAME [--from REF]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the folder to create, such as my_models"
    )
    parser.add_argument(
        "--from",
        dest="base",
        metavar="REF",
        help="start from an experiment of luthier (quickstart, digits, ...) or from hf:DIR",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier init`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # Nothing is written unless every check has passed; a folder that exists must be empty.
    problems = Problems(unknown)
    folder = Path(arguments.name or "")
    package = folder.name.replace("-", "_")
    if not arguments.name:
        problems.add("no name is given", remedy="write `luthier init NAME`")
    else:
        known = len(problems)
        _check_name(arguments.name, package, problems)
        if len(problems) == known:
            _check_folder(folder, problems)
    base = None
    if arguments.base is not None:
        with problems.collected():
            base = _find(arguments.base)
    problems.raise_any()
    written = list(_copy(_template(), folder, package))
    if base is not None:
        written += base.write(folder, package)
    for path in sorted(written):
        print(f"  {path}")
    reference = "configs.addition" if base is None else base.reference
    print(f"created {folder}. Next:\n  cd {folder}\n  luthier list\n  luthier train {reference}")
    return EXIT_DONE


def _check_name(name: str, package: str, problems: Problems) -> None:
    """Add the problem of a name that cannot be imported, or that would hide another package."""
    # The folder is first on `sys.path` of every command that is run in it: a package `random` in it
    # would take the place of Python's own for everything that is imported after it.
    remedy = "use letters, digits and _, beginning with a letter, as my_models"
    if not (package.isascii() and package.isidentifier()) or package.startswith("_"):
        problems.add(f"{name!r} does not end in a valid package name", remedy=remedy)
    elif keyword.iskeyword(package) or keyword.issoftkeyword(package):
        problems.add(f"{package!r} is a keyword of Python", remedy="choose another name")
    elif package in RESERVED:
        problems.add(f"the name {package!r} is reserved", remedy="choose another name")
    elif package in sys.stdlib_module_names or _is_installed(package):
        problems.add(
            f"{package!r} is the name of an installed package, which yours would hide",
            remedy="choose another name",
        )


def _is_installed(package: str) -> bool:
    """Return whether a package of this name exists outside of the working directory."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return any(Path.cwd() not in Path(place).parents for place in places)


def _check_folder(folder: Path, problems: Problems) -> None:
    if folder.is_dir():
        if any(folder.iterdir()):
            problems.add(f"{folder} exists and is not empty", remedy="choose another name")
    elif folder.exists() or folder.is_symlink():
        problems.add(f"{folder} exists and is not a folder", remedy="choose another name")
    for parent in folder.parents:
        if parent.exists():
            if not parent.is_dir():
                problems.add(f"{parent} is not a folder", remedy="choose another place")
            break


# Experiments that come with luthier, as a start of one's own. They are copied as source, so that
# they read as their authors wrote them, with those of the same folder that they import.

SHORT_STEPS = 200
"""Steps of a trial in the project's study, at most."""

_STUDY = Path("sweeps", "learning_rate.py")
_IN_README = "learns to add.\n"


@dataclasses.dataclass(frozen=True)
class _Base:
    """An experiment that is written into a project.

    Args:
      reference: Its name in the project.
      about: A sentence about where it is from, for the README.
      texts: The modules, by the names of their files: the one that defines it, and those of its
        folder that it imports.
      graph: Its config.
    """

    reference: str
    about: str
    texts: Mapping[str, str]
    graph: Graph

    def write(self, folder: Path, package: str) -> list[Path]:
        """Write the copies, and adapt the project's study and texts; return the files added."""
        added = []
        for name, text in self.texts.items():
            path = folder / "configs" / name
            path.write_text(text.replace('project="luthier"', f'project="{package}"'), "utf-8")
            added.append(path)
        study = _adapted((folder / _STUDY).read_text(encoding="utf-8"), self.reference, self.graph)
        (folder / _STUDY).write_text(study, encoding="utf-8")
        for name, old, new in (
            ("README.md", _IN_README, f"{_IN_README}{self.about}\n"),
            # The extra has the data of luthier's examples.
            ("pyproject.toml", '["luthier"]', '["luthier[examples]"]'),
        ):
            text = (folder / name).read_text(encoding="utf-8")
            (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        return added


def _find(reference: str) -> _Base:
    """Return the experiment of luthier that a reference names.

    Raises:
      BadInput: There is none of this name.
    """
    from luthier import graph as graphs

    if reference.startswith(folders.HUGGING_FACE):
        return _of_weights(Path(reference.removeprefix(folders.HUGGING_FACE)).resolve())
    graph = graphs.resolve(reference)
    target, bracket, arguments = reference.strip().partition("(")
    module_name, colon, function = target.partition(":")
    module = graphs.load_module(module_name)
    file = Path(module.__file__ or "").resolve()
    shipped = Path(folders.shipped_folders()[0]).resolve()
    if not file.is_relative_to(shipped):
        what = f"{reference!r} is not an experiment that comes with luthier"
        remedy = "`luthier list` in an empty folder lists them"
        raise BadInput(Problem(what, "--from", remedy=remedy))
    rest = f"{colon}{function}{bracket}{arguments}"
    own = f"configs.{file.stem}{rest}"
    about = f"`{own}` is a copy of luthier's `{_name_of(file)}{rest}`; change it as you like."
    files = _with_imports(file)
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    # Headers name the command; in the project the modules are directly below configs/.
    for path in files:
        name = rf"\b{re.escape(_name_of(path))}\b"
        texts = {at: re.sub(name, f"configs.{path.stem}", text) for at, text in texts.items()}
    return _Base(own, about, texts, graph)


def _of_weights(folder: Path) -> _Base:
    """Return an experiment that starts from the weights of a Hugging Face folder."""
    # By its whole path: the commands of the project run in another folder than this one.
    reference = f"{folders.HUGGING_FACE}{folder}"
    graph = experiments.load_reference(reference)
    name = re.sub(r"\W+", "_", folder.name, flags=re.ASCII).strip("_").lower()
    name = name if name.isidentifier() and not keyword.iskeyword(name) else "pretrained"
    about = f"`configs.{name}` starts from the weights in `{folder}`."
    return _Base(f"configs.{name}", about, {f"{name}.py": experiments.source_of(reference)}, graph)


def _name_of(file: Path) -> str:
    """Return the name of a shipped module: configs.lm.quickstart."""
    shipped = Path(folders.shipped_folders()[0]).resolve()
    return ".".join(file.relative_to(shipped.parent).with_suffix("").parts)


def _with_imports(file: Path) -> tuple[Path, ...]:
    """Return a module and all modules of its folder that it imports, directly or not."""
    found, pending = dict[Path, None](), [file]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                pending += [path.parent / f"{name}.py" for name in names]
    return tuple(found)


def _adapted(text: str, reference: str, graph: Graph) -> str:
    """Return the template's study for another experiment; as it is, if that has no single rate."""
    from luthier import graph as graphs
    from luthier.study.checks import evaluations_of

    rates = (f"optimizer.learning_rate{end}" for end in (".peak", ".value", ""))
    rate = next((path for path in rates if _number(graph, path) is not None), None)
    evaluations = evaluations_of(graph) or {}
    metrics = next(((name, found[0]) for name, found in evaluations.items() if found), None)
    if rate is None or metrics is None:
        return text
    middle = _number(graph, rate)
    assert middle is not None
    # Fewer steps where the schedule follows them.
    shorter = f"training.steps={min(int(_number(graph, 'training.steps') or 0), SHORT_STEPS)}"
    try:
        graphs.validate(graphs.apply(graph, [shorter]))
    except BadInput:
        shorter = ""
    name, metric = metrics
    lines = {
        "BASE": f"BASE = {json.dumps(reference)}",
        "SHORTER": f"SHORTER = {json.dumps([shorter] if shorter else [])}",
        "LEARNING_RATE": f"LEARNING_RATE = {json.dumps(rate)}",
        "LOWEST, HIGHEST": f"LOWEST, HIGHEST = {middle / 10:.2g}, {middle * 10:.2g}",
        "OBJECTIVE": f'OBJECTIVE = ("{name}", "{metric.name}", "{metric.better}")',
    }
    rows = text.splitlines(keepends=True)
    return "".join(
        f"{lines[name]}\n" if (name := row.partition(" = ")[0]) in lines else row for row in rows
    )


def _number(graph: Graph, path: str) -> float | None:
    """Return the number at a path of a config; None if there is none."""
    from luthier import graph as graphs

    try:
        value = graphs.evaluate(graphs.get(graph, path))
    except BadInput:
        return None
    return value if isinstance(value, int | float) else None


def _template() -> Traversable:
    return resources.files("luthier.cli").joinpath("template")


def _copy(source: Traversable, target: Path, package: str) -> Iterator[Path]:
    """Copy the template with the user's package name; yield the files written."""
    # `.gitignore` has another name in the template (RENAMED): the glob of the package's data does
    # not match names with a dot, and git would apply the file to this repository.
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
        name = RENAMED.get(entry.name, entry.name.replace(PACKAGE, package))
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _copy(entry, target / name, package)
        elif not entry.name.endswith(".pyc"):
            text = entry.read_text(encoding="utf-8").replace(PACKAGE, package)
            (target / name).write_text(text, encoding="utf-8")
            yield target / name
