"""Nodes of a Pax dump, with tracking of which settings the importer has read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from luthier.errors import BadInput, Problem

FORMAT = "luthier pax dump"
VERSIONS = (1,)

_LAYOUT = ("weight_split_dims_mapping", "activation_split_dims_mapping")
_SILENT = frozenset(
    {
        *("name", "checkpoint_str", "lookup_style", "ici_mesh_shape", "dcn_mesh_shape"),
        *("mesh_axis_names", "mesh_shape", "contiguous_submeshes", "params_init", "dtype"),
        *("fprop_dtype", "packed_input", "fold_padding_with_segment_mask", "decode_cache"),
        *("consolidate_rope_key_state", "cast_rotary_position_emb", "unroll_in_decode"),
        *("attention_mask_summary", "decoding_maybe_shard_projections", "apply_padding_first"),
        *("mask_self_attention", "reductions_in_fp32", "intermediate_dtype", "cast_as_fprop_dtype"),
        *("scale_query_by_dim_per_head", "set_nan_for_oob_id", "zero_fully_masked"),
    }
)
"""Settings that change no result in float32, or that are read where they are inherited from."""


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A setting that has no place in our graph.

    Args:
      path: Path of the node: `task.model.lm_tpl`.
      target: Full name of its class.
      field: The setting.
      value: Its value as text.
      why: The reason why it has no place.
      is_essential: Whether the model computes something else without it.
    """

    path: str
    target: str
    field: str
    value: str
    why: str
    is_essential: bool

    def __str__(self) -> str:
        kind = self.target.rpartition(".")[2]
        return f"{self.path}.{self.field} = {self.value} ({kind}): {self.why}"


@dataclasses.dataclass(frozen=True)
class PaxObject:
    """A class, function or object that a dump names but does not contain.

    Args:
      name: Its full name.
      settings: The plain attributes of an object.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Node:
    """A node of Praxis, which records which of its settings were read.

    Args:
      dump: The dump that it belongs to.
      path: Its path in the dump.
      content: Its content in the dump.
      parent: The node that holds it.
    """

    # Pax has hundreds of settings, and one that the importer does not know may change the model. So
    # nothing is ignored silently: a setting that is set, and was neither read (`get`), passed over
    # nor reported, is reported as a leftover in the end (`unread`).

    def __init__(self, dump: Dump, path: str, content: Mapping[str, Any], parent: Node | None):
        self.dump, self.path, self.parent = dump, path, parent
        self.target: str = content["class"]
        self._set: Mapping[str, Any] = content["set"]
        self._children: dict[str, Any] = {}
        self._read: set[str] = set()
        self._left: set[str] = set()

    @property
    def kind(self) -> str:
        """The name of the class."""
        return self.target.rpartition(".")[2]

    def is_a(self, *kinds: str) -> bool:
        """Return whether the class, or one that it is derived from, has one of the names."""
        every = (self.target, *self.dump.bases(self.target))
        return any(name.rpartition(".")[2] in kinds for name in every)

    def has(self, field: str) -> bool:
        """Return whether the class has a setting."""
        return field in self._set or field in self.dump.defaults(self.target)

    def get(self, field: str, default: Any = None) -> Any:
        """Return a setting: a node, a list, a plain value; `default` where the class has none.

        Args:
          field: The setting.
          default: Result for a setting that the class does not have.
        """
        self._read.add(field)
        return self.peek(field, default)

    def peek(self, field: str, default: Any = None) -> Any:
        """Return a setting as `get` does, without marking it as read."""
        if field not in self._children:
            defaults = self.dump.defaults(self.target)
            content = self._set[field] if field in self._set else defaults.get(field, default)
            self._children[field] = self._value(f"{self.path}.{field}", content)
        return self._children[field]

    def is_set(self, field: str) -> bool:
        """Return whether a setting differs from its class's default."""
        return field in self._set

    def pass_over(self, *fields: str) -> None:
        """Mark settings as read that have no effect here."""
        self._read.update(fields)
        self._left.update(fields)

    def leave(self, field: str, why: str, is_essential: bool = False) -> None:
        """Report a setting that has no place in our graph.

        Args:
          field: The setting.
          why: The reason.
          is_essential: Whether the model computes something else without it.
        """
        self._read.add(field)
        self._left.add(field)
        text = _format(self.peek(field))
        left = Leftover(self.path, self.target, field, text, why, is_essential)
        self.dump.leftovers.append(left)

    def refuse(self, field: str, why: str) -> None:
        """Report a setting without which the model computes something else; see `leave`."""
        self.leave(field, why, is_essential=True)

    def only(self, field: str, *allowed: Any) -> None:
        """Reject a value of a setting that our layers do not support.

        Args:
          field: The setting.
          *allowed: The supported values.
        """
        value = self.get(field, allowed[0])
        if value not in allowed:
            self.refuse(field, f"supported: {' or '.join(_format(one) for one in allowed)}")

    def inherited(self, field: str, is_default: Any) -> Any:
        """Return a setting of this node, or of the nearest ancestor if it is not set here.

        Args:
          field: The setting.
          is_default: Returns whether a value means that it is not set.
        """
        value = self.peek(field)
        if is_default(value) and self.parent is not None:
            above = self.parent.inherited(field, is_default)
            return value if above is None else above
        return value

    def unread(self, is_essential: bool) -> Iterator[Leftover]:
        """Yield the settings that were set here or below and never read.

        Args:
          is_essential: Whether unknown settings may change the results of the model.
        """
        # Children that were read are searched in turn. A child that was not read is one leftover,
        # with all that is in it, unless it is of the default class: then only what is set below
        # counts.
        for field, content in self._set.items():
            if field in self._left or field in _SILENT:
                continue
            value = self.peek(field)
            if field in _LAYOUT:
                yield from _layouts(value)
            elif field in self._read:
                for child in _nodes(value):
                    yield from child.unread(is_essential)
            elif isinstance(value, Node) and self._is_default_class(field, content):
                yield from value.unread(is_essential)
            else:
                why = "the importer does not know this setting"
                text = _format(value)
                yield Leftover(self.path, self.target, field, text, why, is_essential)

    def _is_default_class(self, field: str, content: Any) -> bool:
        default = self.dump.defaults(self.target).get(field)
        return isinstance(default, Mapping) and default.get("class") == content["class"]

    def _value(self, path: str, content: Any) -> Any:
        # The inverse of `Dumper.dump` in `dump_pax.py`, which defines the format.
        if isinstance(content, list):
            return [self._value(f"{path}[{i}]", one) for i, one in enumerate(content)]
        if not isinstance(content, Mapping):
            return content
        if "class" in content:
            return Node(self.dump, path, content, self)
        if "dict" in content:
            return {k: self._value(f"{path}[{k!r}]", v) for k, v in content["dict"].items()}
        for word in ("dtype", "value"):
            if word in content:
                return content[word]
        if "float" in content:
            return float(content["float"])
        return PaxObject(content.get("name") or content["object"], content.get("set", {}))


class Dump:
    """A dumped experiment; also records the memory layout of its weights, once that is known.

    Args:
      content: The content of the file.
      source: The file, for messages.
    """

    def __init__(self, content: Mapping[str, Any], source: str):
        self.source = source
        self.experiment: str = content["experiment"]
        self.versions: Mapping[str, str] = content.get("versions", {})
        self.variables: Mapping[str, Any] = content.get("variables", {})
        self.leftovers: list[Leftover] = []
        self.heads_first: bool | None = None
        self.interleaved = False
        self._classes: Mapping[str, Any] = content["classes"]
        self.task = Node(self, "task", content["task"], None)
        self.datasets = [
            Node(self, f"datasets[{index}]", data, None)
            for index, data in enumerate(content.get("datasets", []))
        ]

    def bases(self, target: str) -> list[str]:
        """Return the bases of a class, nearest first."""
        found: list[str] = self._classes.get(target, {}).get("bases", [])
        return found

    def defaults(self, target: str) -> Mapping[str, Any]:
        """Return the defaults of a class."""
        found: Mapping[str, Any] = self._classes.get(target, {}).get("defaults", {})
        return found


def read_dump(path: str | Path) -> Dump:
    """Read a file that `dump_pax.py` wrote.

    Args:
      path: The file.

    Raises:
      BadInput: It is unreadable, not a dump, or of another version.
    """
    # Problems are found from the outside in, and only the first is reported: a file that is not a
    # dump would have hundreds. The remedy is the same for all of them.
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(Problem(f"cannot read {path}: {reason}")) from None
    remedy = "write it with the file that `luthier import pax --print-dumper` prints"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(Problem(f"{path} is not JSON: {error}", remedy=remedy)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadInput(Problem(f"{path} is not a dump of Pax", remedy=remedy))
    if content.get("version") not in VERSIONS:
        what = f"{path} is a dump of version {content.get('version')!r}, which is not known"
        raise BadInput(Problem(what, remedy=remedy))
    wrong = next(_malformed(content), None)
    if wrong is not None:
        raise BadInput(Problem(f"{path} is damaged: {wrong}", remedy=remedy))
    return Dump(content, str(path))


def _malformed(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is malformed in a dump."""
    # Files come from elsewhere: all of it is checked once, so that the readers need not expect
    # anything. `read_dump` has checked format and version before, and nothing reads inside of
    # `versions` and `variables`.
    classes, data = content.get("classes"), content.get("datasets", [])
    if not isinstance(content.get("experiment"), str):
        yield "experiment is not a string"
    if not isinstance(data, list):
        yield "datasets is not a list"
        data = []
    for name in ("versions", "variables"):
        if not isinstance(content.get(name, {}), dict):
            yield f"{name} is not an object"
    for path, node in [
        ("task", content.get("task")),
        *((f"datasets[{i}]", n) for i, n in enumerate(data)),
    ]:
        if not isinstance(node, dict) or "class" not in node:
            yield f"{path} is not a node"
        yield from _bad_nodes(path, node)
    if not isinstance(classes, dict):
        yield "classes is not an object"
        return
    for name, entry in classes.items():
        if not isinstance(entry, dict) or not _are_texts(entry.get("bases")):
            yield f"classes[{name!r}] has no bases"
        elif not isinstance(entry.get("defaults"), dict):
            yield f"classes[{name!r}] has no defaults"
        else:
            yield from _bad_nodes(f"classes[{name!r}].defaults", entry["defaults"], is_plain=True)


def _bad_nodes(path: str, content: Any, is_plain: bool = False) -> Iterator[str]:
    """Yield what is malformed in a value; `is_plain` for a mapping of names that is no value."""
    # A value is plain, a list, or an object with one of the keys that `Dumper.dump` writes.
    if isinstance(content, list):
        for index, one in enumerate(content):
            yield from _bad_nodes(f"{path}[{index}]", one)
        return
    if not isinstance(content, dict):
        return
    inside: Any = content
    if not is_plain:
        if isinstance(content.get("class"), str):
            inside = content.get("set")
        elif "dict" in content:
            inside = content["dict"]
        else:
            yield from _bad_leaf(path, content)
            return
    if not isinstance(inside, dict):
        yield f"{path} holds no settings"
        return
    for name, one in inside.items():
        yield from _bad_nodes(f"{path}.{name}", one)


def _bad_leaf(path: str, content: Mapping[str, Any]) -> Iterator[str]:
    texts = [content.get(word) for word in ("dtype", "name", "object", "float", "enum")]
    if not any(isinstance(text, str) for text in texts):
        yield f"{path} is nothing that a dump holds"
    if isinstance(content.get("float"), str) and content["float"] not in ("inf", "-inf", "nan"):
        yield f"{path} is not a number"
    if not isinstance(content.get("set", {}), dict):
        yield f"{path} holds no settings"


def _are_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _layouts(value: Any) -> Iterator[Leftover]:
    for node in _nodes(value):
        for field, content in node._set.items():
            text, why = _format(content), "layouts follow from the mesh here"
            yield Leftover(node.path, node.target, field, text, why, is_essential=False)


def _nodes(value: Any) -> Iterable[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, list):
        return [node for one in value for node in _nodes(one)]
    if isinstance(value, dict):
        return [node for one in value.values() for node in _nodes(one)]
    return []


def _format(value: Any) -> str:
    if isinstance(value, Node):
        return value.kind
    if isinstance(value, list):
        return f"[{', '.join(_format(one) for one in value)}]"
    if isinstance(value, PaxObject):
        return value.name.rpartition(".")[2]
    return value if isinstance(value, str) and value else repr(value)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a setting is a number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
