"""Entry point of the command `luthier` and of `python -m luthier`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def console() -> NoReturn:
    """Run the command line of this process and exit."""
    # A Tab has to be answered in a fraction of a second, so completion comes before the imports of
    # the command line (argparse alone takes longer than an answer) and before `start.prepare`,
    # which may replace the process.
    if sys.argv[1:] == ["completion", "words"] and "LUTHIER_WORDS" in os.environ:
        from luthier.cli.completion import candidates

        sys.exit(candidates.main())
    # Ctrl-C during the imports, before anything of ours could handle it: one line, no traceback.
    try:
        from luthier.cli import command_line, start

        start.prepare(sys.argv[1:])
    except KeyboardInterrupt:
        os.write(2, b"luthier: interrupted\n")
        os._exit(130)  # `errors.EXIT_INTERRUPTED`, which may not be imported yet
    command_line.console()


if __name__ == "__main__":
    console()
