"""Output of `luthier show`, `luthier diff` and `luthier help`: formats, differences, components."""

from __future__ import annotations

from luthier.facade import lazy_exports

# The place of each public name. Names are resolved on first use, so that `--help` imports none of
# these modules.
_PLACES = {
    "FORMS": "forms",
    "PACKAGES": "settings",
    "Component": "settings",
    "ComponentSetting": "settings",
    "account_as_json": "goodput:as_json",
    "account_lines": "goodput:lines_of",
    "comparison_of": "differences",
    "components": "settings",
    "describe": "settings",
    "duration": "goodput",
    "entry": "entries",
    "lines_of": "differences",
    "matrix_of": "differences",
    "print_changes": "differences",
    "print_difference": "differences",
    "print_matrix": "differences",
    "print_parameters": "parameters",
    "print_text": "differences",
    "print_why": "forms",
    "readable": "formulas",
    "save": "forms",
    "snapshot": "settings",
    "subtotals": "parameters",
    "unicode_of": "formulas",
    "written": "forms",
}

__all__ = [
    "FORMS",
    "PACKAGES",
    "Component",
    "ComponentSetting",
    "account_as_json",
    "account_lines",
    "comparison_of",
    "components",
    "describe",
    "duration",
    "entry",
    "lines_of",
    "matrix_of",
    "print_changes",
    "print_difference",
    "print_matrix",
    "print_parameters",
    "print_text",
    "print_why",
    "readable",
    "save",
    "snapshot",
    "subtotals",
    "unicode_of",
    "written",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
