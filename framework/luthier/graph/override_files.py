"""Files of overrides: one override per line, comments, and the line of each override.

At the beginning of a line, `#` starts a comment unless a letter or `_` follows it (`# later`);
after an override, it starts one if it is between spaces (`steps=5 # few`). `#Rate=1e-3` is the tag
Rate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from luthier.errors import BadInput, OverrideError, Problem

FILE = "file:"

_COMMENT = re.compile(r"#(?![A-Za-z_])")


def read_overrides(path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield every override of a file, with its file and line (`sizes.txt:3`).

    Args:
      path: The file; `file:OTHER` in it is included, relative to the file's folder.
      above: The files that are being read.

    Yields:
      (override, `FILE:LINE`). Empty lines and comments are left out.

    Raises:
      OverrideError: It cannot be read, or it contains itself.

    Example:
      >>> import pathlib, tempfile
      >>> from luthier import graph
      >>> path = pathlib.Path(tempfile.mkdtemp(), "sizes.txt")
      >>> _ = path.write_text("model.dim=256  # wider")
      >>> [override for override, _ in graph.read_overrides(str(path))]
      ['model.dim=256']
    """
    try:
        # By real path: an inclusion through a symbolic link or `a/../b` is a cycle, too.
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
            yield from read_overrides(inside, (*above, identity))
        except BadInput as error:
            problem = error.problems[0]  # the only one: this function raises no others
            # Only the innermost inclusion is named: that is the line to correct.
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
    # `#` inside quotes is text. A quote opens only where a value or an element can begin, since an
    # apostrophe inside of unquoted text (`name=it's # mine`) opens nothing.
    quote = ""
    for position, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and line[position - 1] in "=[(,{: ":
            quote = letter
        elif letter == "#" and f" {line} "[position : position + 3].split() == ["#"]:
            return line[:position].rstrip()
    return line
