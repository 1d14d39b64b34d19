"""Finds experiments and studies without importing them: the project's, and those of luthier.

Files are parsed, not imported: this is fast, and works where an import would fail. A line
`Pax: C4Spmd1BAdam4Replicas` in an experiment's docstring is its name in Pax, and with arguments,
`Pax: C4Spmd1BAdam4ReplicasLimitSteps(steps=15_000)`, the name of a variant of it. The lines
`Parameters:`, `Hardware:` and `Expected:` of a docstring are columns of `luthier list`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from luthier import folders

DEFAULT_FUNCTION, STUDY = "experiment", "study"
PAX_PACKAGE = "configs.pax"
_RETURNED = re.compile(r"\b(Experiment|Study)\b")
_COUNT = re.compile(r"([\d.,]+) (million|billion) parameters")
_HARDWARE = re.compile(r"\bon ([\d,]+ (?:chips|devices|GPUs|machines of \d+ GPUs))")
_PAX = re.compile(r"^Pax: (\w+)(?:\((.*)\))?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Alias:
    """A name that Pax has for an experiment.

    Args:
      name: The name, as `--exp` takes it.
      reference: The experiment, with arguments: `configs.lm.c4(steps=300)`.
    """

    name: str
    reference: str


@dataclasses.dataclass(frozen=True)
class Listed:
    """An experiment or a study.

    Args:
      reference: Its name for `luthier train`: `configs.lm.quickstart` or `configs.lm.c4:wide`.
      description: The first paragraph of its docstring; the reason if its file cannot be read.
      arguments: The names of its required arguments, such as `size`.
      aliases: Its names in Pax.
      is_shipped: Whether it comes with luthier, and the project has none of this name.
      parameters: The number of its parameters, `821,376` or `1.10 billion`; empty if its docstring
        does not state it.
      hardware: The hardware that it is for, and the time that it takes there; empty if not stated.
      expected: The result that is expected, or `not measured yet`; empty if not stated.
    """

    reference: str
    description: str
    arguments: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()
    is_shipped: bool = False
    parameters: str = ""
    hardware: str = ""
    expected: str = ""

    @property
    def text(self) -> str:
        """The text that `luthier list WORD` searches."""
        names = (f"Pax: {alias.name}" for alias in self.aliases)
        return " ".join([self.reference, self.description, *names]).lower()


def find_all(package: str) -> Iterator[Listed]:
    """Yield the experiments or studies that can be named here.

    Those of the working directory come first, as references are imported from there.

    Args:
      package: `configs` or `sweeps`.
    """
    own = Path.cwd() / package
    # A module of the project hides one of luthier, whatever is in it.
    modules = {
        ".".join(path.relative_to(own.parent).with_suffix("").parts) for path in own.rglob("*.py")
    }
    yield from find(own)
    for folder in map(Path, folders.shipped_folders()):
        # The same folder in a clone of luthier's repository.
        if folder.name == package and folder.resolve() != own.resolve():
            for listed in find(folder):
                if listed.reference.partition(":")[0] not in modules:
                    yield dataclasses.replace(listed, is_shipped=True)


def is_of_pax(listed: Listed) -> bool:
    """Return whether an experiment is one of those of Pax that come with luthier."""
    in_clone = any(
        Path(folder).resolve() == Path.cwd() / "configs" for folder in folders.shipped_folders()
    )
    return (listed.is_shipped or in_clone) and listed.reference.startswith(PAX_PACKAGE + ".")


def about(package: str) -> str:
    """Return the first line of the docstring of a package of experiments; empty without one.

    Args:
      package: Its name, as `configs.lm`.
    """
    parents = (Path.cwd(), *(Path(folder).parent for folder in folders.shipped_folders()))
    for parent in parents:
        try:
            text = parent.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8")
            return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        except (OSError, SyntaxError, ValueError):
            continue
    return ""


def moved_modules() -> dict[str, str]:
    """Return the new names of modules by their old ones: `MOVED` of `configs`, here and shipped."""
    known: dict[str, str] = {}
    if (Path.cwd() / "configs" / "__init__.py").is_file():
        known |= _moved("configs")
    # A name of the project's own is its own.
    return {**_moved(f"{folders.SHIPPED}.configs"), **known}


def find(folder: Path) -> Iterator[Listed]:
    """Yield the experiments in the Python files below a folder, by name.

    Args:
      folder: A package of experiments; references begin with its name.
    """
    for path in sorted(folder.rglob("*.py")):
        yield from find_in(folder, path)


def _moved(package: str) -> Mapping[str, str]:
    # Imported, as resolving a reference does.
    try:
        return getattr(importlib.import_module(package), "MOVED", {})
    except Exception:  # the user's code; whoever resolves a reference below it reports this
        return {}


def find_in(folder: Path, path: Path) -> Iterator[Listed]:
    """Yield the experiments in one file below a folder.

    Args:
      folder: As `find` takes it.
      path: The file.
    """
    # A file that cannot be parsed is listed with the reason: leaving it out would look as if the
    # experiment did not exist. Files whose names cannot be imported are not experiments.
    relative = path.relative_to(folder.parent).with_suffix("")
    if path.name == "__init__.py" or not all(part.isidentifier() for part in relative.parts):
        return
    module = ".".join(relative.parts)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:  # not Python; not UTF-8, or with a null byte
        yield Listed(module, f"(cannot be read: {error})")
        return
    # At the top level only, where `MODULE:FUNCTION` can name them. The module's docstring stands in
    # for that of its default experiment, and not for those of its variants.
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = {function.name for function in functions}
    default = STUDY if STUDY in names and DEFAULT_FUNCTION not in names else DEFAULT_FUNCTION
    about_module = ast.get_docstring(tree) or ""
    for function in functions:
        if _is_listed(function):
            is_default = function.name == default
            reference = module if is_default else f"{module}:{function.name}"
            text = ast.get_docstring(function) or (about_module if is_default else "")
            description = " ".join(text.split("\n\n")[0].split())
            aliases = tuple(
                Alias(name, f"{reference}({given})" if given else reference)
                for name, given in _PAX.findall(text)
            )
            header = f"{text}\n{about_module}" if is_default else text
            count, place = _COUNT.search(description), _HARDWARE.search(description)
            in_text = f"{count[1]} {count[2]}" if count else ""
            yield Listed(
                reference,
                description,
                _required(function),
                aliases,
                parameters=_line(header, "Parameters") or in_text,
                hardware=_line(header, "Hardware").partition(";")[0] or (place[1] if place else ""),
                expected=_expected(_line(header, "Expected")),
            )


def _line(header: str, name: str) -> str:
    """Return an entry of a docstring, without its period; it may continue on indented lines."""
    found = re.search(rf"^{name}: (.*(?:\n +\S.*)*)", header, re.MULTILINE)
    return " ".join(found[1].split()).removesuffix(".") if found else ""


def _expected(line: str) -> str:
    """Return an expected result without what was measured, which is in parentheses."""
    bound = re.match(r"\w+ [<>]= [\d.]*\d on \w+", line)
    return bound[0] if bound else line.partition(" (")[0]


def _is_listed(function: ast.FunctionDef) -> bool:
    """Return whether a function returns an experiment or a study, by its name or annotation."""
    if function.name.startswith("_"):
        return False
    returns = ast.unparse(function.returns) if function.returns else ""
    return function.name in (DEFAULT_FUNCTION, STUDY) or bool(_RETURNED.search(returns))


def _required(function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names of the arguments without a default."""
    # `defaults` belong to the last positional arguments; `kw_defaults` has None where there is
    # none.
    positional = [*function.args.posonlyargs, *function.args.args]
    required = positional[: len(positional) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return tuple(a.arg for a in (*required, *(k for k, default in keywords if default is None)))
