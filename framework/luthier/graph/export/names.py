"""Names in exported code: imports of classes and functions, and variables for shared parts."""

from __future__ import annotations

import builtins
import functools
import keyword
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from luthier.graph.paths import Part, Path

# Imports of exported Python, and the names that they bind.

OURS = "luthier"
# Modules with a customary alias.
ALIASES: Mapping[str, str] = {"fiddle": "fdl", "jax.numpy": "jnp", "numpy": "np"}


class Imports:
    """The imports of one module.

    Packages of luthier are imported as `from luthier import optim`, so that a name reads
    `optim.adamw`; all other modules by their whole names.

    Args:
      names: The public names that the module will use, `builtins.int` among them.
    """

    def __init__(self, names: Iterable[str]):
        self._modules: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        self._used: set[str] = set()
        for name in names:
            module, _ = split(name)
            if module != "builtins":
                self._modules.setdefault(module, self._short(module))

    def _short(self, module: str) -> str:
        if module in ALIASES:
            return ALIASES[module]
        package, _, last = module.rpartition(".")
        if package and module.split(".")[0] == OURS and last not in self._modules.values():
            return last
        return module

    def name(self, public: str) -> str:
        """Return the expression of an object with a public name, and import its module.

        Args:
          public: The public name.
        """
        module, rest = split(public)
        if module == "builtins":
            return rest
        return f"{self.module(module)}.{rest}"

    def member(self, module: str, name: str) -> str:
        """Import a name from a module (`from module import name`), and return the name.

        Args:
          module: The module.
          name: The name in the module.
        """
        self._members.setdefault(module, set()).add(name)
        return name

    def module(self, name: str) -> str:
        """Import a module, and return the name that it is bound to.

        Args:
          name: The module.
        """
        self._used.add(name)
        return self._modules.setdefault(name, ALIASES.get(name, name))

    def taken(self) -> set[str]:
        """Return the names that the imports bind."""
        return {short.split(".")[0] for short in self._modules.values()}

    def lines(self) -> list[str]:
        """Return the import statements of the names that were used, sorted like isort."""
        plain, members = [], {name: list(found) for name, found in self._members.items()}
        for module in self._used:
            short = self._modules[module]
            package, _, last = module.rpartition(".")
            if short == module:
                plain.append((module, f"import {module}"))
            elif short == last and module not in ALIASES:
                members.setdefault(package, []).append(last)
            else:
                plain.append((module, f"import {module} as {short}"))
        standard = [line for name, line in sorted(plain) if _is_standard(name)]
        others = [line for name, line in sorted(plain) if not _is_standard(name)]
        others += [_from(package, members[package]) for package in sorted(members)]
        return [*standard, *([""] if standard and others else []), *others]


def _from(package: str, names: list[str]) -> str:
    line = f"from {package} import {', '.join(sorted(names))}"
    if len(line) <= 100:
        return line
    return f"from {package} import (\n" + "".join(f"    {n},\n" for n in sorted(names)) + ")"


def _is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def split(public: str) -> tuple[str, str]:
    """Return the module and the rest of a public name.

    Args:
      public: A dotted name, as `public_name` returns it.
    """
    # A patch may name what a record names, of modules that were not imported and must not be. There
    # the split is a guess by PEP 8: the first name with a capital letter is a class.
    parts = public.split(".")
    lengths = range(len(parts) - 1, 0, -1)
    length = next((n for n in lengths if ".".join(parts[:n]) in sys.modules), 0)
    if not length or parts[length] not in vars(sys.modules[".".join(parts[:length])]):
        classes = (n for n in range(1, len(parts)) if parts[n][:1].isupper())
        length = next(classes, len(parts) - 1)
    return ".".join(parts[:length]), ".".join(parts[length:])


def find(public: str) -> Any:
    """Return the object of a public name that has been imported."""
    module, rest = split(public)
    return functools.reduce(getattr, rest.split("."), sys.modules[module])


# Names for shared parts of a graph: short, descriptive and unique.

_RESERVED = frozenset((*keyword.kwlist, *dir(builtins)))


class Names:
    """Generates unique names.

    Args:
      taken: Names to avoid, beside keywords and built-in functions.
    """

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def give(self, path: Path, wished: str = "") -> str:
        """Return a new name for the value at a path.

        Args:
          path: Its path; the last names on it are tried first.
          wished: Its own name, if it has one.
        """
        # Deterministic in the order of the calls: the same graph exports to the same text.
        words = _words(path) or ["value"]
        candidates = [_identifier(wished)] if wished else []
        candidates += ["_".join(words[-count:]) for count in range(1, min(len(words), 3) + 1)]
        candidates.append(f"{candidates[0]}_config")
        for name in candidates:
            if name not in self._taken and name not in _RESERVED:
                break
        else:
            name = self._counted(candidates[0])
        self._taken.add(name)
        return name

    def _counted(self, stem: str) -> str:
        while True:
            self._counts[stem] = self._counts.get(stem, 1) + 1
            name = f"{stem}_{self._counts[stem]}"
            if name not in self._taken:
                return name


def _words(path: Path) -> list[str]:
    """Return the names on a path, with list indices joined to the names of their lists."""
    words: list[str] = []
    for part in path:
        if isinstance(part, int) and words:
            words[-1] += f"_{part}"
        else:
            words.append(_identifier(part))
    return words


def _identifier(part: Part) -> str:
    text = re.sub(r"\W+", "_", str(part), flags=re.ASCII).strip("_")[:40]
    return text if text.isidentifier() else f"value_{text}".rstrip("_")
