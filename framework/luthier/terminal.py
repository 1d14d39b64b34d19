"""Makes text from runs, records, files and models safe to print on a terminal.

A terminal obeys control characters in whatever is printed: they set its title, hide lines, make
links, and some terminals answer them as if the user had typed. Names of folders, messages in
status.json, values in records and names of files come from whoever shared them. So every table and
message passes through `printable`, which makes such characters visible; `protect` is a second
barrier around the streams of the command line, for what does not.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

# Controls of ASCII, DEL and the controls of Latin-1 (an 8-bit CSI is U+009B); marks that reorder
# text (bidirectional overrides, isolates); separators of lines; tags, which are invisible; and
# surrogates, which stand for bytes in names of files that are not UTF-8.
_CONTROLS = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    0xFEFF,
    *range(0xD800, 0xE000),
    *range(0xE0000, 0xE0080),
)


def _escape(code: int) -> str:
    short = {ord("\n"): "\\n", ord("\t"): "\\t"}
    digits = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return short.get(code, digits if code < 0x10000 else f"\\U{code:08x}")


_IN_CELL = {code: _escape(code) for code in _CONTROLS}
_IN_TEXT = {code: text for code, text in _IN_CELL.items() if chr(code) not in "\t\n"}

# Colours, cursor movements within what is being drawn, erasing of lines: what Rich draws with.
_DRAWING = re.compile(r"(\x1b\[[0-9;]{0,24}[mKABCDG]|\x1b\[\?25[hl]|[\r\x08])")


def printable(text: str) -> str:
    """Return a text of others with its control characters escaped, except line ends and tabs.

    Args:
      text: What a record, a file, another process or a model says.
    """
    return text.translate(_IN_TEXT)


def cell(text: str) -> str:
    """Return a text of others for a cell or a line of its own: line ends are escaped, too.

    Args:
      text: What a record, a file, another process or a model says.
    """
    return text.translate(_IN_CELL)


class Printable:
    """A Rich renderable, with the control characters in its texts escaped.

    Args:
      content: What is drawn; its styles stay.
    """

    def __init__(self, content: Any):
        self._content = content

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.segment import Segment

        for segment in console.render(self._content, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class _Protected:
    """A stream to a terminal that passes on what draws, and shows all other controls escaped."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        # `split` with a group: what draws has the odd places.
        parts = _DRAWING.split(text)
        parts[::2] = [printable(part) for part in parts[::2]]
        self._stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect() -> None:
    """Put a barrier around the standard streams of this process that are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, _Protected(stream))
