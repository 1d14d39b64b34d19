"""JSON text for people: what fits stands on one line, all else is spread out below."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 96


def lay_out(data: Any) -> str:
    """Return `data` as JSON text without a line break at its end.

    Args:
      data: A JSON value; floats must be finite.
    """
    return _write(data, 0, WIDTH)


def _write(data: Any, indent: int, room: int) -> str:
    if not isinstance(data, dict | list) or not data:
        return _scalar(data)
    line = _one_line(data, room)
    if line is not None:
        return line
    pad, room = " " * (indent + 1), WIDTH - indent - 2  # a comma may follow
    if isinstance(data, dict):
        heads = [f"{_scalar(str(key))}: " for key in data]
        values = zip(heads, data.values(), strict=True)
        items = [h + _write(value, indent + 1, room - len(h)) for h, value in values]
    else:
        items = [_write(value, indent + 1, room) for value in data]
    inside = ",\n".join(pad + item for item in items)
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    return f"{opening}\n{inside}\n{' ' * indent}{closing}"


def _one_line(data: Any, room: int) -> str | None:
    """Return `data` on one line, or None as soon as it is clear that it takes more than `room`."""
    if not isinstance(data, dict | list):
        text = _scalar(data)
        return text if len(text) <= room else None
    pieces = []
    is_dict = isinstance(data, dict)
    room -= 2
    for entry in data:
        head = f"{_scalar(str(entry))}: " if is_dict else ""
        piece = _one_line(data[entry] if is_dict else entry, room - len(head))
        if piece is None:
            return None
        room -= len(head) + len(piece) + 2
        pieces.append(head + piece)
    return ("{%s}" if is_dict else "[%s]") % ", ".join(pieces)


def _scalar(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: no file could hold it
        text = json.dumps(data)
    return text
