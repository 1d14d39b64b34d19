"""The command `luthier`, which `python -m luthier` is too; a Tab is answered without the rest."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def console() -> NoReturn:
    """Run the command line of this process and exit."""
    if sys.argv[1:] == ["completion", "words"] and "LUTHIER_WORDS" in os.environ:
        from luthier.cli.completion import candidates

        sys.exit(candidates.main())
    from luthier.cli import command_line, start

    start.prepare(sys.argv[1:])
    command_line.console()


if __name__ == "__main__":
    console()
