"""The command line: one module per command, each a thin wrapper around a call in Python.

`main(["train", "configs.lm.quickstart"])` runs a command line in this process and returns its exit
code. Nothing here imports JAX, or another package of luthier, before a command needs it.
"""

from __future__ import annotations

# The module of each public name. A Tab in the shell imports this package, too, and must answer in a
# fraction of a second; so names are resolved on first use, without importing even `typing`.
_EXPORTS = {
    "COMMANDS": "luthier.cli.command_line",
    "Alias": "luthier.cli.listing",
    "Listed": "luthier.cli.listing",
    "Parser": "luthier.cli.arguments",
    "Problems": "luthier.cli.arguments",
    "Process": "luthier.cli.hosts",
    "find_experiment": "luthier.cli.flags",
    "find_run": "luthier.cli.experiments",
    "is_override": "luthier.cli.experiments",
    "load": "luthier.cli.experiments",
    "load_reference": "luthier.cli.experiments",
    "main": "luthier.cli.command_line",
    "parser_of": "luthier.cli.command_line",
    "print_json": "luthier.cli.printing",
    "table": "luthier.cli.printing",
    "translate": "luthier.cli.flags",
    "with_hints": "luthier.cli.flags",
}

__all__ = [
    "COMMANDS",
    "Alias",
    "Listed",
    "Parser",
    "Problems",
    "Process",
    "find_experiment",
    "find_run",
    "is_override",
    "load",
    "load_reference",
    "main",
    "parser_of",
    "print_json",
    "table",
    "translate",
    "with_hints",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        import importlib

        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'luthier.cli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
