"""Finds what a name means for `luthier help`: exported objects, packages, fiddlers and settings.

The exported names are read from the source of the packages: which package has a name is known
without importing all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import luthier
from luthier.facade import exported_names

ROOT = Path(luthier.__file__).parent
# Packages below the others that hold recipes and components, which configs name.
_BELOW = ("recipes/*", "contrib/*")
# Fields of an experiment whose nodes are components of these packages.
_PACKAGES_OF = {
    "checkpoints": "checkpoint",
    "data": "data",
    "model": "models",
    "optimizer": "optim",
    "task": "tasks",
}


@functools.cache
def exported() -> Mapping[str, tuple[str, ...]]:
    """Return the exported names of each public package and module, by its name."""
    found = {"luthier": _names_in(ROOT / "__init__.py")}
    for pattern in ("*", *_BELOW):
        for path in sorted(ROOT.glob(pattern)):
            is_package = (path / "__init__.py").is_file()
            is_module = path.suffix == ".py" and path.stem != "__init__"
            if not (is_package or is_module) or path.stem.startswith("_"):
                continue
            relative = path.relative_to(ROOT).with_suffix("")
            package = ".".join(["luthier", *relative.parts])
            names = _names_in(path / "__init__.py" if is_package else path)
            # A module is public if the package above lists it; `contrib` has no list.
            above = found.get(package.rpartition(".")[0])
            if names and (
                above is None or path.stem in above or (package.count(".") == 1 and is_package)
            ):
                found[package] = names
    return found


def _names_in(file: Path) -> tuple[str, ...]:
    return exported_names(file.read_text(encoding="utf-8"), file.name == "__init__.py")


@dataclasses.dataclass(frozen=True)
class Symbol:
    """An exported object, or a package.

    Args:
      name: Its shortest public name, as `luthier.optim.adamw`.
      value: The object.
      others: Its other public names.
    """

    name: str
    value: Any
    others: tuple[str, ...] = ()


def all_names() -> Iterator[str]:
    """Yield the full name of everything that `find` finds in luthier."""
    yield from (package for package in exported() if package != "luthier")
    for package, names in exported().items():
        yield from (f"{package}.{name}" for name in names)


def find(name: str) -> list[Symbol]:
    """Return the exported objects that a name means, each once.

    Args:
      name: A full name, or the end of one (`graph.apply`, `apply`), in any case; also a name that
        the object had in an earlier version.
    """
    from luthier.graph import entry_points
    from luthier.graph.public_names import current_name

    others = [one.target for one in entry_points.extensions()]
    known = dict.fromkeys([*all_names(), *others])
    wanted = name.replace(":", ".")
    lower = wanted.lower()
    # The best kind of match only: `Commit` and `commit` of one package are two objects.
    found = [full for full in known if full == wanted]
    found = found or [full for full in known if full.lower() == lower]
    found = found or [full for full in known if full.endswith(f".{wanted}")]
    found = found or [full for full in known if full.lower().endswith(f".{lower}")]
    if not found:
        moved = current_name(name if name.startswith("luthier.") else f"luthier.{name}")
        found = [moved] if moved in known else []
    symbols: dict[Any, Symbol] = {}
    for full in sorted(found, key=lambda full: (full.count("."), full)):
        value = _load(full)
        if value is None:
            continue
        # Names of the same object (`luthier.train`, `luthier.trainer.run`) have one entry. By
        # identity, as constants may be equal without being the same.
        key = id(value)
        before = symbols.get(key)
        if before is None:
            symbols[key] = Symbol(full, value)
        else:
            symbols[key] = dataclasses.replace(before, others=(*before.others, full))
    return list(symbols.values())


def _load(full: str) -> Any:
    """Return the object of a full name; None if it needs something that is not installed."""
    package, _, name = full.rpartition(".")
    try:
        module = importlib.import_module(package)
        # A package that the one above does not import is no attribute of it yet.
        return getattr(module, name) if hasattr(module, name) else importlib.import_module(full)
    except ImportError:
        return None


def fiddlers(shelves: Sequence[str]) -> dict[str, Any]:
    """Return the functions that `fiddler:NAME` calls, by name.

    Args:
      shelves: The modules whose fiddlers need no module; later ones win.
    """
    from luthier.graph import fiddlers_of

    return {
        name: function
        for shelf in shelves
        for name, function in fiddlers_of(importlib.import_module(shelf))
    }


def is_component(name: str) -> bool:
    """Return whether a node of a config may be of the object of a public name."""
    from luthier.graph import public_names

    return public_names.role_of(name) in public_names.NODES


def is_field(name: str) -> bool:
    """Return whether a name is that of a field of an experiment, where paths begin."""
    from luthier.program import Experiment

    return name in Experiment.__annotations__


def settings(path: str) -> list[tuple[str, str]]:
    """Return the settings that a path of an experiment may mean, as (component, setting).

    Args:
      path: As `training.steps` or `optimizer.b2`, or the name of a setting alone.
    """
    from luthier.cli.showing.settings import components
    from luthier.program import Experiment

    *above, name = re.sub(r"\[[^\]]*\]", "", path).split(".")
    if above and not is_field(above[0]):
        return []
    found = [c for c in components() if any(s.name == name for s in c.settings)]
    if len(above) == 1:
        # The annotation of the field leads to its component; where any may be there (`task: Any`),
        # the package of the field does. What a deeper path leads to depends on the experiment.
        field = str(Experiment.__annotations__[above[0]])
        typed = [c for c in found if re.search(rf"\b{c.name.rpartition('.')[2]}\b", field)]
        found = typed or [c for c in found if c.package == _PACKAGES_OF.get(above[0])]
    return [(component.name, name) for component in found]
