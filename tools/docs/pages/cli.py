"""The page of the command line: the help of every command."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from unittest import mock

START = """\
# Command line

Use this page to look up a command or an option. It shows the help of every command, as
`luthier COMMAND --help` prints it. To read another page of this manual or the settings of a
component in a terminal, use `luthier help NAME`.

Related pages describe the syntax of `PATH=VALUE` ([Overrides](overrides.md)), the
[exit codes](exit_codes.md) of the commands, and the
[environment variables](environment_variables.md) that they read.

```text
{usage}
```
"""


def render() -> str:
    """Return the page."""
    from luthier.cli.command_line import GROUPS, main, parser_of

    # The width of help follows the terminal, and the page is the same everywhere.
    with mock.patch.dict(os.environ, {"COLUMNS": "88"}):
        with contextlib.redirect_stdout(io.StringIO()) as usage:
            main(["--help"])
        parts = [START.format(usage=usage.getvalue().rstrip())]
        for title, commands in GROUPS.items():
            parts.append(f"\n## {title.capitalize()}\n")
            for command in commands:
                parts += [f"\n### {command}\n", _block(parser_of(command))]
    return "".join(parts)


def _block(parser: argparse.ArgumentParser) -> str:
    """Return the help of a command, and of the commands below it, as blocks of Markdown."""
    blocks = [f"\n```text\n{parser.format_help().rstrip()}\n```\n"]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            blocks += [_block(below) for below in dict.fromkeys(action.choices.values())]
    return "".join(blocks)
