"""Makes text from runs, records, files and models safe to print on a terminal.

A terminal obeys control characters in whatever is printed: they set its title, hide lines, make
links, and some terminals answer them as if the user had typed. Names of folders, messages in
status.json, values in records and names of files come from whoever shared them. So every table and
message passes through `printable`, which makes such characters visible; `protect` is a second
barrier around the streams of the command line, for text that does not.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

# Controls of ASCII, DEL and the controls of Latin-1 (an 8-bit CSI is U+009B); marks that reorder
# text (bidirectional overrides, isolates), with which a file name can read backwards; separators of
# lines; tags, which are invisible; and
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

# The escape sequences that Rich draws with: colours, cursor movements, erasing of lines, hiding the
# cursor. Titles (OSC) and queries, which a terminal answers as if the user had typed, are not among
# them.
_DRAWING = re.compile(r"(\x1b\[[0-9;]{0,24}[mKABCDG]|\x1b\[\?25[hl]|[\r\x08])")


def printable(text: str) -> str:
    """Return an untrusted text with its control characters escaped, except line ends and tabs.

    Args:
      text: Text of a record, a file, another process or a model.
    """
    return text.translate(_IN_TEXT)


def cell(text: str) -> str:
    """Return an untrusted text for a table cell or a single line: line ends are escaped, too.

    Args:
      text: Text of a record, a file, another process or a model.
    """
    return text.translate(_IN_CELL)


class Printable:
    """A Rich renderable, with the control characters in its texts escaped.

    Args:
      content: The renderable to draw; its styles stay.
    """

    def __init__(self, content: Any):
        self._content = content

    # The protocol by which Rich renders foreign objects. The texts are escaped after rendering,
    # when they are segments, because the styles are no longer part of the text then.
    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.segment import Segment

        for segment in console.render(self._content, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class _Protected:
    """A terminal stream that passes on drawing sequences and escapes other control characters."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        # `split` with a group: the drawing sequences are at the odd places.
        parts = _DRAWING.split(text)
        parts[::2] = [printable(part) for part in parts[::2]]
        self._stream.write("".join(parts))
        # The length of what was asked for, as the protocol of streams has it, not of what was
        # written.
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
            # Only at a terminal: a pipe or a file gets the bytes as they are.
            setattr(sys, name, _Protected(stream))


def format_bytes(count: float) -> str:
    """Format bytes in the largest binary unit of which there is one: `1.2 GiB`, `512 B`.

    Args:
      count: The bytes.

    Returns:
      The text, with one decimal from KiB on.

    Example:
      >>> from luthier.terminal import format_bytes
      >>> format_bytes(512), format_bytes(3 * 2**30)
      ('512 B', '3.0 GiB')
    """
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        # 1023.95 would be rounded to 1024.0.
        if abs(count) < 1023.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} PiB"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return numbers as a line of small bars; those that are not finite are left out.

    Args:
      values: The numbers.
      width: Most bars; of more numbers, the newest count.
    """
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)


def can_print(text: str, stream: TextIO | None = None) -> bool:
    """Return whether a stream can take a text, in its encoding.

    Args:
      text: Characters beyond ASCII that are about to be printed.
      stream: Where to; None is the standard output.
    """
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def has_colors(stream: TextIO | None = None) -> bool:
    """Return whether a stream is a terminal that shows colors.

    Args:
      stream: None is the standard output.
    """
    # https://no-color.org and https://force-color.org: any value but an empty one counts.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and (stream or sys.stdout).isatty()


_STYLES = {"bold": 1, "red": 31, "green": 32, "cyan": 36}


def styled(text: str, style: str) -> str:
    """Return a text in a style of the terminal.

    Args:
      text: The text, already `printable`.
      style: `bold`, `red`, `green` or `cyan`; an empty one changes nothing.
    """
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text


_stage = {"is_shown": False}


def show_stage(text: str) -> None:
    """Show what a command is at, in a line of the terminal that the next one replaces.

    Nothing is shown where the standard error is a pipe, a file or a notebook.

    Args:
      text: A phrase such as `planning`.
    """
    stream = sys.stderr
    if stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb":
        # Cut, since `\r` goes back to the beginning of one row only.
        columns = shutil.get_terminal_size().columns
        stream.write(f"\r\x1b[K{cell(text)[: columns - 5]} ...")
        stream.flush()
        _stage["is_shown"] = True


def clear_stage() -> None:
    """Take away the line of `show_stage`, if there is one: something else is printed next."""
    if _stage["is_shown"]:
        _stage["is_shown"] = False
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
