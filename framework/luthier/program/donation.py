"""Whether a compiled step reuses the memory of the state that it is given.

The state that goes into a step is donated: the next state should take its place. Where the
compiler does not reuse a buffer, both exist at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

_ALIASES = re.compile(r"input_output_alias=\{(.*?)\}, entry_computation_layout", re.DOTALL)
_REUSED = re.compile(r"\((\d+), \{[\d, ]*\}")
_PARAMETER = re.compile(
    r"parameter\((\d+)\)[^\n]*metadata=\{[^}\n]*op_name=\"(?P<argument>\w+)\[(?P<index>\d+)\]\""
)


def not_reused(
    compiled: Any, leaves: Mapping[str, jax.ShapeDtypeStruct], argument: str = "leaves"
) -> dict[str, int]:
    """Return the donated buffers whose memory a compiled program does not reuse.

    Args:
      compiled: A compiled function.
      leaves: The donated arrays by name, in the order in which the function takes them.
      argument: The name of the function's argument, a tuple.

    Returns:
      Bytes on one device by name of the array.
    """
    sizes = {name: _bytes_on_device(leaf) for name, leaf in leaves.items()}
    analysis = compiled.memory_analysis()
    if analysis is not None:
        reused = analysis.alias_size_in_bytes + analysis.host_alias_size_in_bytes
        if reused >= sum(sizes.values()):
            return {}  # the text of a large program is large too
    text = compiled.as_text()
    found = _ALIASES.search(text)
    aliased = {int(number) for number in _REUSED.findall(found.group(1) if found else "")}
    names: Sequence[str] = tuple(leaves)
    reused_names = {
        names[int(match["index"])]
        for match in _PARAMETER.finditer(text)
        if match["argument"] == argument and int(match[1]) in aliased
    }
    return {name: size for name, size in sizes.items() if name not in reused_names}


def _bytes_on_device(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.sharding.shard_shape(leaf.shape)
    size = leaf.dtype.itemsize
    for dimension in shape:
        size *= dimension
    return size
