"""Files of overrides: one word a line, comments, and where each word stands.

`#` begins a comment where nothing, or anything but a letter or `_`, follows it at the beginning of
a line (`# later`), and where it stands between spaces behind a word (`steps=5 # few`). `#Rate=1e-3`
is the tag Rate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from luthier.errors import BadInput, OverrideError, Problem

FILE = "file:"

_COMMENT = re.compile(r"#(?![A-Za-z_])")


def read_words(path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield every word of a file, and where it stands (`sizes.txt:3`).

    Args:
      path: The file; `file:OTHER` in it is read in its place, relative to the file's folder.
      above: The files that are being read.

    Raises:
      OverrideError: It cannot be read, or it contains itself.
    """
    try:
        identity = os.path.realpath(path)
        if identity in above:
            raise OverrideError(Problem(f"the file {path} contains itself"))
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not text in UTF-8"
        raise OverrideError(Problem(f"cannot read the file {path!r}: {reason}")) from error
    for number, line in enumerate(lines, 1):
        word, where = without_comment(line), f"{path}:{number}"
        if not word.startswith(FILE):
            if word:
                yield word, where
            continue
        inside = os.path.join(os.path.dirname(path), word.removeprefix(FILE).strip())
        try:
            yield from read_words(inside, (*above, identity))
        except BadInput as error:
            problem = error.problems[0]
            origin = problem.origin or f"{where}: {word}"
            raise OverrideError(Problem(problem.what, origin=origin)) from error


def without_comment(line: str) -> str:
    """Return a line of a file without its comment, and without spaces around it.

    Args:
      line: `steps=5  # few`, say.
    """
    line = line.strip()
    if _COMMENT.match(line):
        return ""
    quote = ""
    for position, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and line[position - 1] in "=[(,{: ":
            quote = letter
        elif letter == "#" and f" {line} "[position : position + 3].split() == ["#"]:
            return line[:position].rstrip()
    return line
