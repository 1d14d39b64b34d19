"""Lazy descriptions of experiments: paths, overrides, validation, records, comparison.

This is the one package that knows Fiddle. It never imports jax, flax or optax by itself.

Some functions are called like the module that holds them (`paths`, `build`, `resolve`): here the
names mean the functions; import from a module by its full name
(`from luthier.graph.paths import find`).
"""

from __future__ import annotations

from luthier.graph import values
from luthier.graph.aliases import is_alias
from luthier.graph.build import build
from luthier.graph.copies import as_node, copy_graph
from luthier.graph.culprits import Culprit, culprit_of, users_components
from luthier.graph.deferred import deferred_steps
from luthier.graph.diff import Change, diff, render_diff
from luthier.graph.export import from_yaml, to_python, to_svg, to_yaml
from luthier.graph.fiddlers import fiddlers_of, find_fiddler, run_fiddler
from luthier.graph.fingerprint import fingerprint
from luthier.graph.formats.config_dict import (
    apply_config_dict,
    load_config_dict,
    to_config_dict,
)
from luthier.graph.formats.fiddle_json import from_fiddle_json, is_fiddle_json
from luthier.graph.formats.gin import from_gin, to_gin
from luthier.graph.formats.targets import from_hydra, from_konfig
from luthier.graph.load import equal, from_json
from luthier.graph.origins import origin_of
from luthier.graph.override_files import read_overrides
from luthier.graph.overrides import annotation_at, apply, matching
from luthier.graph.paths import (
    Place,
    children,
    find,
    format_path,
    get,
    is_container,
    is_node,
    join,
    locate,
    nearest,
    nearest_paths,
    parse_path,
    paths,
    walk,
)
from luthier.graph.provenance import explain, last_causes
from luthier.graph.public_names import display_name, load_object, public_name
from luthier.graph.record import history, history_record, restore_history, to_dict, to_json
from luthier.graph.recorded_defaults import restore_defaults
from luthier.graph.render import head_text, render, text_of
from luthier.graph.resolve import load_module, resolve
from luthier.graph.setting import set_value
from luthier.graph.signatures import UNSET
from luthier.graph.validation import declared_problems, validate
from luthier.graph.values import (
    Graph,
    add,
    evaluate,
    expression,
    floor_divide,
    is_constant,
    is_deferred,
    is_value_node,
    modulo,
    multiply,
    operands,
    power,
    subtract,
    true_divide,
    value,
)

__all__ = [
    "UNSET",
    "Change",
    "Culprit",
    "Graph",
    "Place",
    "add",
    "annotation_at",
    "apply",
    "apply_config_dict",
    "as_node",
    "build",
    "children",
    "copy_graph",
    "culprit_of",
    "declared_problems",
    "deferred_steps",
    "diff",
    "display_name",
    "equal",
    "evaluate",
    "explain",
    "expression",
    "fiddlers_of",
    "find",
    "find_fiddler",
    "fingerprint",
    "floor_divide",
    "format_path",
    "from_fiddle_json",
    "from_gin",
    "from_hydra",
    "from_json",
    "from_konfig",
    "from_yaml",
    "get",
    "head_text",
    "history",
    "history_record",
    "is_alias",
    "is_constant",
    "is_container",
    "is_deferred",
    "is_fiddle_json",
    "is_node",
    "is_value_node",
    "join",
    "last_causes",
    "load_config_dict",
    "load_module",
    "load_object",
    "locate",
    "matching",
    "modulo",
    "multiply",
    "nearest",
    "nearest_paths",
    "operands",
    "origin_of",
    "parse_path",
    "paths",
    "power",
    "public_name",
    "read_overrides",
    "render",
    "render_diff",
    "resolve",
    "restore_defaults",
    "restore_history",
    "run_fiddler",
    "set_value",
    "subtract",
    "text_of",
    "to_config_dict",
    "to_dict",
    "to_gin",
    "to_json",
    "to_python",
    "to_svg",
    "to_yaml",
    "true_divide",
    "users_components",
    "validate",
    "value",
    "values",
    "walk",
]
