"""Print the script that lets Tab complete luthier's commands in a shell.

bash: put `eval "$(luthier completion bash)"` into ~/.bashrc
zsh:  put `eval "$(luthier completion zsh)"` into ~/.zshrc, after compinit
fish: luthier completion fish > ~/.config/fish/completions/luthier.fish

Experiments, the paths of the one that is typed, values, tags and runs are completed from an index
in the cache folder ($XDG_CACHE_HOME or ~/.cache). It is made in the background at the first Tab,
and again when a file has changed.
"""

from __future__ import annotations

import argparse
import os

from luthier.cli.arguments import Problems
from luthier.cli.completion import candidates, scripts
from luthier.errors import EXIT_DONE, Problem

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SHELLS))
    parser.add_argument("experiment", nargs="?", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Print the script; return the exit code.

    The scripts come back with `words`, and completion itself with `index` and an experiment.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if arguments.shell == "words" and candidates.VARIABLE in os.environ:
        return candidates.main()
    if arguments.shell == "index" and arguments.experiment:
        from luthier.cli.completion import building

        building.build(arguments.experiment)
        return EXIT_DONE
    if arguments.shell not in SHELLS:
        what = f"{arguments.shell!r} is not a shell" if arguments.shell else "no shell is named"
        problems.add(what, remedy=f"write `luthier completion {' or '.join(SHELLS)}`")
    problems.raise_any()
    print(scripts.SCRIPTS[arguments.shell], end="")
    return EXIT_DONE
