"""The command line: one module per command, each a thin wrapper around a call in Python.

`main(["train", "configs.lm.quickstart"])` runs a command line in this process and returns its exit
code. Nothing here imports JAX, or another package of luthier, before a command needs it.
"""

from __future__ import annotations

from luthier.facade import lazy_exports

# The place of each public name, as `module` or `module:name`. A Tab in the shell imports this
# package, too, and must answer in a fraction of a second; so names are resolved on first use,
# without importing even `typing`.
_PLACES = {
    "COMMANDS": "command_line",
    "HINT": "flags",
    "Alias": "listing",
    "End": "launcher",
    "Listed": "listing",
    "Parser": "arguments",
    "Problems": "arguments",
    "Process": "hosts",
    "choose_run": "reruns",
    "find_experiment": "flags",
    "find_experiments": "listing:find",
    "find_run": "experiments",
    "flag_names": "flags:flags",
    "is_override": "experiments",
    "joined": "hosts",
    "judge": "launcher",
    "load": "experiments",
    "load_reference": "experiments",
    "main": "command_line",
    "manual_pages": "commands.project.help:pages",
    "number_within": "arguments",
    "parser_of": "command_line",
    "positive": "arguments",
    "print_json": "printing",
    "print_rerun": "reruns:print_changes",
    "source_of": "experiments",
    "table": "printing",
    "token_ids": "arguments",
    "translate": "flags",
    "whole": "arguments",
    "with_hints": "flags",
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
    "choose_run",
    "find_experiment",
    "find_experiments",
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
    "source_of",
    "table",
    "token_ids",
    "translate",
    "whole",
    "with_hints",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
