"""The lazy description of an experiment: paths, overrides, validation, recording, comparison.

This is the one package that knows Fiddle. It never imports jax, flax or optax by itself.

Some functions are called like the module that holds them (`paths`, `build`, `resolve`): here the
names mean the functions; import from a module by its full name
(`from luthier.graph.paths import find`).
"""

from __future__ import annotations

from luthier.graph.build import build
from luthier.graph.copies import copy_graph
from luthier.graph.diff import Change, diff, render_diff
from luthier.graph.export import from_yaml, to_python, to_svg, to_yaml
from luthier.graph.fingerprint import fingerprint
from luthier.graph.formats.config_dict import (
    apply_config_dict,
    load_config_dict,
    to_config_dict,
)
from luthier.graph.formats.gin import from_gin, to_gin
from luthier.graph.formats.targets import from_hydra, from_konfig
from luthier.graph.load import equal, from_json
from luthier.graph.origins import origin_of
from luthier.graph.overrides import apply
from luthier.graph.paths import get, nearest, nearest_paths, paths, walk
from luthier.graph.provenance import explain, last_causes
from luthier.graph.record import history, history_record, restore_history, to_dict, to_json
from luthier.graph.render import render
from luthier.graph.resolve import resolve
from luthier.graph.setting import set_value
from luthier.graph.signatures import UNSET
from luthier.graph.validation import validate
from luthier.graph.values import (
    Graph,
    add,
    evaluate,
    expression,
    floor_divide,
    is_value_node,
    modulo,
    multiply,
    power,
    subtract,
    true_divide,
    value,
)

__all__ = [
    "UNSET",
    "Change",
    "Graph",
    "add",
    "apply",
    "apply_config_dict",
    "build",
    "copy_graph",
    "diff",
    "equal",
    "evaluate",
    "explain",
    "expression",
    "fingerprint",
    "floor_divide",
    "from_gin",
    "from_hydra",
    "from_json",
    "from_konfig",
    "from_yaml",
    "get",
    "history",
    "history_record",
    "is_value_node",
    "last_causes",
    "load_config_dict",
    "modulo",
    "multiply",
    "nearest",
    "nearest_paths",
    "origin_of",
    "paths",
    "power",
    "render",
    "render_diff",
    "resolve",
    "restore_history",
    "set_value",
    "subtract",
    "to_config_dict",
    "to_dict",
    "to_gin",
    "to_json",
    "to_python",
    "to_svg",
    "to_yaml",
    "true_divide",
    "validate",
    "value",
    "walk",
]
