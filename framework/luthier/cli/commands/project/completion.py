"""Print the script that completes luthier's commands in a shell.

bash: add `eval "$(luthier completion bash)"` to ~/.bashrc
zsh:  add `eval "$(luthier completion zsh)"` to ~/.zshrc, after compinit
fish: luthier completion fish > ~/.config/fish/completions/luthier.fish

The script completes experiments, their paths and values, tags and runs from an
index in the cache folder ($XDG_CACHE_HOME or ~/.cache). The index is built in
the background at the first Tab, and again after a file has changed.
"""

from __future__ import annotations

import argparse
import os

from luthier.cli.arguments import Problems
from luthier.cli.completion import candidates, scripts
from luthier.errors import EXIT_DONE, Problem

SHELLS = ("bash", "zsh", "fish")


USAGE = "luthier completion bash|zsh|fish"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SHELLS))
    parser.add_argument("experiment", nargs="?", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier completion`; return the exit code.

    The scripts call it with `words`, and completion itself with `index` and an experiment.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    # `__main__` answers `words` before it comes to this, unless options precede the command.
    if arguments.shell == "words" and candidates.VARIABLE in os.environ:
        return candidates.main()
    if arguments.shell == "index" and arguments.experiment:
        from luthier.cli.completion import building

        building.build(arguments.experiment)
        return EXIT_DONE
    if arguments.shell not in SHELLS:
        what = f"{arguments.shell!r} is not a shell" if arguments.shell else "no shell is given"
        problems.add(what, remedy=f"write `luthier completion {' or '.join(SHELLS)}`")
    problems.raise_any()
    print(scripts.SCRIPTS[arguments.shell], end="")
    return EXIT_DONE
