"""The page of exit codes, and of the exceptions behind them."""

from __future__ import annotations

import inspect

from luthier import errors

START = """\
# Exit codes

Use this page if you write a script that starts luthier, or a program that catches its exceptions.
Every command exits with one of these codes:

| code | meaning | what to do |
|---|---|---|
"""

CODES = {
    errors.EXIT_DONE: ("Done.", ""),
    errors.EXIT_FAILED: (
        "Failed. Training diverged, a study has no complete trial, a lock was lost, your code "
        "raised an exception, or luthier has a bug.",
        "Read the message, which also gives the location of the traceback.",
    ),
    errors.EXIT_BAD_INPUT: (
        "Bad input. A config, override, file or option is wrong, a disk is full or read-only, or "
        "an object store refuses the credentials. "
        "Either nothing was started, or everything that had been saved before is intact.",
        "Correct the problems in the message, which lists one per line.",
    ),
    errors.EXIT_REQUEUE: (
        "Requeue. The run was preempted (SIGTERM) and has saved a checkpoint, or its object store "
        "does not respond.",
        "Run the same command again. The launchers of luthier do this for you.",
    ),
    errors.EXIT_INTERRUPTED: (
        "Interrupted (Ctrl-C). A run has saved a checkpoint, unless you pressed Ctrl-C twice.",
        "Run the same command again to resume.",
    ),
}

COMMANDS = """
For the following commands, some codes have a more specific meaning:

| command | code | meaning |
|---|---|---|
| `luthier check` | 2 | an experiment or a study is invalid |
| `luthier diff --exit-code` | 1 | there are differences |
| `luthier plan` | 2 | the experiment cannot run on the target, or does not fit in its memory |
| `luthier sweep` | 1 | no trial is complete, or failures stopped the study |
| `luthier sweep` | 2 | bad input, or machine failures stopped the study; `--resume` continues it |

Add `--debug` to a command to print an error with its traceback.

## Exceptions

In Python, the functions of luthier raise these exceptions from `luthier.errors`. A `BadInput` lists
all problems in its attribute `problems`. Each problem has the path in the config, the place that
set the value, a remedy, and the nearest valid names.

| exception | base | code | meaning |
|---|---|---|---|
"""


def render() -> str:
    """Return the page."""
    rows = [f"| {code} | {meaning} | {remedy} |" for code, (meaning, remedy) in CODES.items()]
    table = []
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            meaning = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
            base = value.__base__.__name__
            table.append(f"| `{name}` | `{base}` | {value.exit_code} | {meaning} |")
    return START + "\n".join(rows) + "\n" + COMMANDS + "\n".join(table) + "\n"
