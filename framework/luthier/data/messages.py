"""Classes of protocol buffers, made from a table of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Field = tuple[int, str, str]
"""Number, name, and type: `bytes`, `float`, `int64`, `bool`, `bool=true` for a default, or the name
of a message; `[...]` around it for a repeated field, `{...}` for a map from strings to it, and
`KIND?...` for one alternative of the oneof KIND."""


def message_class(syntax: str, messages: Mapping[str, Sequence[Field]], name: str) -> Any:
    """Return the class of a message, in a pool of its own.

    Fields that are not declared are kept as they are: a message that is parsed and serialized loses
    nothing.

    Args:
      syntax: `proto2` or `proto3`.
      messages: The fields of each message that is needed.
      name: The message whose class is returned.
    """
    # Not the classes that libraries generate (`sentencepiece_model_pb2`, TensorFlow's): each of
    # them refuses every protobuf that is older than the one it was generated with. And not in the
    # default pool, where those would find a rival.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "luthier"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}/{name}.proto", package=package, syntax=syntax
    )
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for field in fields:
            _declare(made, field, package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def _declare(message: Any, field: Field, package: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    number, name, kind = field
    made = message.field.add(name=name, number=number, label=Proto.LABEL_OPTIONAL)
    if "?" in kind:
        oneof, _, kind = kind.partition("?")
        if not message.oneof_decl:
            message.oneof_decl.add(name=oneof)
        made.oneof_index = 0
    if kind.startswith("["):
        made.label, kind = Proto.LABEL_REPEATED, kind[1:-1]
    elif kind.startswith("{"):
        # A map is a repeated message of keys and values, and marked as such.
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _declare(entry, (1, "key", "string"), package)
        _declare(entry, (2, "value", kind[1:-1]), package)
        made.label, kind = Proto.LABEL_REPEATED, f"{message.name}.{entry.name}"
    kind, _, default = kind.partition("=")
    if default:
        made.default_value = default
    scalars = {
        "bytes": Proto.TYPE_BYTES,
        "string": Proto.TYPE_STRING,
        "float": Proto.TYPE_FLOAT,
        "int64": Proto.TYPE_INT64,
        "bool": Proto.TYPE_BOOL,
    }
    made.type = scalars.get(kind, Proto.TYPE_MESSAGE)
    if kind not in scalars:
        made.type_name = f".{package}.{kind}"
