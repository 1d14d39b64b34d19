"""The page of exit codes, and of the exceptions behind them."""

from __future__ import annotations

import inspect

from luthier import errors

START = """\
# Exit codes

Read this page to write a script that starts luthier, or a program that catches its exceptions.
Every command ends with one of these codes:

| code | meaning | what to do |
|---|---|---|
"""

CODES = {
    errors.EXIT_DONE: ("Done.", ""),
    errors.EXIT_FAILED: (
        "Failed: training diverged, a study has no complete trial, a lock was lost, your code "
        "raised an exception, or luthier has a bug.",
        "Read the message and the traceback, whose place is printed.",
    ),
    errors.EXIT_BAD_INPUT: (
        "Bad input: a config, override, file or option is wrong, or a disk is full or read-only. "
        "Nothing was started, or what was saved is kept.",
        "Correct what the message names; all problems are printed at once, a line each.",
    ),
    errors.EXIT_REQUEUE: (
        "Requeue: the run was preempted (SIGTERM), and has saved a checkpoint.",
        "Run the same command again. Launchers of luthier do it.",
    ),
    errors.EXIT_INTERRUPTED: (
        "Interrupted (Ctrl-C). A run has saved a checkpoint, unless Ctrl-C was pressed twice.",
        "Run the same command again to resume.",
    ),
}

COMMANDS = """
These commands use a code in a way of their own:

| command | code | meaning |
|---|---|---|
| `luthier check` | 2 | an experiment or a study is wrong |
| `luthier diff --exit-code` | 1 | there are differences |
| `luthier plan` | 2 | the experiment cannot run on the target, or does not fit its memory |
| `luthier sweep` | 1 | no trial is complete, or failures stopped the study |
| `luthier sweep` | 2 | bad input, or faults of the machine stopped it: `--resume` continues |

With `--debug`, an error is printed with its traceback.

## Exceptions

In Python, functions of luthier raise these exceptions of `luthier.errors`. `BadInput` has all
problems in `problems`, each with the path in the config, the place that set the value, a remedy and
the nearest valid names.

| exception | base | code | raised when |
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
