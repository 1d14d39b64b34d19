"""The command line: one module per command, each a thin wrapper around a call in Python.

`main(["train", "configs.lm.quickstart"])` runs a command line in this process and returns its exit
code. Nothing here imports JAX, or another package of luthier, before a command needs it.
"""

from __future__ import annotations

# The place of each public name, as `module` or `module:name`. A Tab in the shell imports this
# package, too, and must answer in a fraction of a second; so names are resolved on first use,
# without importing even `typing`.
_EXPORTS = {
    "COMMANDS": "luthier.cli.command_line",
    "HINT": "luthier.cli.flags",
    "Alias": "luthier.cli.listing",
    "End": "luthier.cli.launcher",
    "Listed": "luthier.cli.listing",
    "Parser": "luthier.cli.arguments",
    "Problems": "luthier.cli.arguments",
    "Process": "luthier.cli.hosts",
    "Project": "luthier.cli.project",
    "choose_run": "luthier.cli.reruns",
    "find_experiment": "luthier.cli.flags",
    "find_experiments": "luthier.cli.listing:find",
    "find_project": "luthier.cli.project:find",
    "find_run": "luthier.cli.experiments",
    "flag_names": "luthier.cli.flags:flags",
    "is_override": "luthier.cli.experiments",
    "joined": "luthier.cli.hosts",
    "judge": "luthier.cli.launcher",
    "load": "luthier.cli.experiments",
    "load_reference": "luthier.cli.experiments",
    "main": "luthier.cli.command_line",
    "manual_pages": "luthier.cli.commands.project.help:pages",
    "number_within": "luthier.cli.arguments",
    "parser_of": "luthier.cli.command_line",
    "positive": "luthier.cli.arguments",
    "print_json": "luthier.cli.printing",
    "print_rerun": "luthier.cli.reruns:print_changes",
    "table": "luthier.cli.printing",
    "translate": "luthier.cli.flags",
    "whole": "luthier.cli.arguments",
    "with_hints": "luthier.cli.flags",
}

__all__ = [
    "COMMANDS",
    "HINT",
    "Alias",
    "End",
    "Listed",
    "Parser",
    "Problems",
    "Process",
    "Project",
    "choose_run",
    "find_experiment",
    "find_experiments",
    "find_project",
    "find_run",
    "flag_names",
    "is_override",
    "joined",
    "judge",
    "load",
    "load_reference",
    "main",
    "manual_pages",
    "number_within",
    "parser_of",
    "positive",
    "print_json",
    "print_rerun",
    "table",
    "translate",
    "whole",
    "with_hints",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        import importlib

        module, _, attribute = _EXPORTS[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'luthier.cli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
