"""Shows a long text: in colors and through a pager on a terminal, as it is in a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys

from luthier.terminal import has_colors

WIDEST = 100  # columns; longer lines of prose are hard to read
PAGERS = ("LUTHIER_PAGER", "PAGER")
"""Environment variables with the command of the pager, the first that is set; `cat` for none."""


def width() -> int:
    """Return the columns that a text may fill."""
    columns = shutil.get_terminal_size((WIDEST, 24)).columns if sys.stdout.isatty() else WIDEST
    return min(columns, WIDEST)


# A block of code, in which nothing is HTML, or HTML that a page has for other readers: comments,
# with the empty line after them, and targets of links.
_HTML = re.compile(
    r"(?P<code>^(?P<fence>`{3,}).*?^(?P=fence)$"
    r"|(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|^<!--.*?-->\n(?:[ ]*\n)?|<a id=\"[^\"]*\"></a>",
    re.MULTILINE | re.DOTALL,
)


def without_html(markdown: str) -> str:
    """Return a page of Markdown without the HTML that a browser does not show either.

    Args:
      markdown: The text of the page.
    """
    return _HTML.sub(lambda match: match["code"] or "", markdown)


def rendered(markdown: str) -> str:
    """Return a page of Markdown as it is shown on a terminal, with escape sequences of color.

    Args:
      markdown: The text of the page.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=True,
        no_color=not has_colors(),
        width=width(),
        legacy_windows=False,
    )
    # Without links in OSC sequences, which pagers print as they are.
    console.print(Markdown(markdown, code_theme="ansi_dark", hyperlinks=False))
    return stream.getvalue()


def show(text: str) -> None:
    """Print a text; through a pager if it is longer than the terminal.

    Args:
      text: The text, with a line end.
    """
    size = shutil.get_terminal_size()
    fits = len(text.splitlines()) < size.lines
    if fits or not (sys.stdout.isatty() and sys.stdin.isatty()) or not _page(text):
        print(text, end="")


def _page(text: str) -> bool:
    """Show a text in the pager; return whether there is one."""
    command = next((os.environ[name] for name in PAGERS if name in os.environ), "less")
    words = shlex.split(command)
    if not words or words[0] == "cat" or shutil.which(words[0]) is None:
        return False
    # As git has it: less ends at once if the text fits, passes colors on, and leaves the text.
    environment = {"LESS": "FRX", **os.environ}
    sys.stdout.flush()
    try:
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    except OSError:
        return False
    # A reader who has seen enough closes the pipe; Ctrl-C is the pager's own.
    with pager, contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        pager.communicate(text.encode())
    return True
