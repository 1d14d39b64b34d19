"""Output of `luthier show`, `luthier diff` and `luthier help`: formats, differences, components."""

from __future__ import annotations

# The place of each public name. Names are resolved on first use, so that `--help` imports none of
# these modules.
_EXPORTS = {
    "FORMS": "luthier.cli.showing.forms",
    "PACKAGES": "luthier.cli.showing.settings",
    "Component": "luthier.cli.showing.settings",
    "ComponentSetting": "luthier.cli.showing.settings",
    "Parameter": "luthier.cli.showing.parameters",
    "account_as_json": "luthier.cli.showing.goodput:as_json",
    "account_lines": "luthier.cli.showing.goodput:lines_of",
    "comparison_of": "luthier.cli.showing.differences",
    "components": "luthier.cli.showing.settings",
    "describe": "luthier.cli.showing.settings",
    "duration": "luthier.cli.showing.goodput",
    "entry": "luthier.cli.showing.settings",
    "lines_of": "luthier.cli.showing.differences",
    "list_parameters": "luthier.cli.showing.parameters:parameters",
    "matrix_of": "luthier.cli.showing.differences",
    "page": "luthier.cli.showing.settings",
    "print_changes": "luthier.cli.showing.differences",
    "print_difference": "luthier.cli.showing.differences",
    "print_matrix": "luthier.cli.showing.differences",
    "print_parameters": "luthier.cli.showing.parameters",
    "print_text": "luthier.cli.showing.differences",
    "print_why": "luthier.cli.showing.forms",
    "save": "luthier.cli.showing.forms",
    "snapshot": "luthier.cli.showing.settings",
    "subtotals": "luthier.cli.showing.parameters",
    "written": "luthier.cli.showing.forms",
}

__all__ = [
    "FORMS",
    "PACKAGES",
    "Component",
    "ComponentSetting",
    "Parameter",
    "account_as_json",
    "account_lines",
    "comparison_of",
    "components",
    "describe",
    "duration",
    "entry",
    "lines_of",
    "list_parameters",
    "matrix_of",
    "page",
    "print_changes",
    "print_difference",
    "print_matrix",
    "print_parameters",
    "print_text",
    "print_why",
    "save",
    "snapshot",
    "subtotals",
    "written",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        import importlib

        module, _, attribute = _EXPORTS[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'luthier.cli.showing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
