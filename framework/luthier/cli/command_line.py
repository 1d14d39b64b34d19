"""`luthier COMMAND ...`: finds and runs the command, and turns errors into lines and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from luthier import errors, faults
from luthier.cli import arguments, flags
from luthier.terminal import printable, protect

COMMANDS = {
    "init": "make a folder for a project of your own",
    "list": "list the experiments below configs/",
    "show": "show an experiment: its values, sharding, parameters",
    "plan": "tell what an experiment would cost on devices that are not here",
    "train": "train an experiment, or continue its run",
    "sweep": "drive trials of a study, over slices of this machine",
    "evaluate": "evaluate a run's checkpoint",
    "generate": "sample text from a run's checkpoint",
    "export": "write a run's weights for others, as safetensors",
    "import": "turn an experiment of another framework into one of ours",
    "diff": "show what differs between experiments, runs, revisions",
    "runs": "list runs, look at one, sync one to W&B",
    "launch": "run on SLURM and other clusters, list their jobs",
    "data": "prepare a corpus, look at data, train a tokenizer",
    "doctor": "measure what hosts can do: devices, network, disk, clocks",
    "completion": "print the completion script of a shell",
    "help": "read a page of the manual, or about one component",
}

# The packages below luthier.cli.commands; every other command is a module of it.
_ROOMS = {
    "project": ("init", "list", "completion", "help"),
    "recorded": ("evaluate", "generate", "export", "runs"),
}

# A command whose name no module can have.
_MODULES = {"import": "importing"}
# Commands that build what somebody may have recorded elsewhere.
_READS_RECORDS = (
    *("diff", "evaluate", "export", "generate", "plan", "runs", "show", "sweep", "train"),
)
# Commands that hold nothing that is to be closed, so that their processes may end at once.
_READERS = ("diff", "plan", "show")

# Failures of the machine, not of the program: one line and no traceback.
_MACHINE_ERRORS = {
    errno.ENOSPC: "make room, or set records.directory to another disk",
    errno.EDQUOT: "make room, or set records.directory to another disk",
    errno.EROFS: "set records.directory to a place that can be written",
    errno.EACCES: "set records.directory to a place that can be written",
    errno.EPERM: "set records.directory to a place that can be written",
}


_EPILOG = """\
OVERRIDEs in a file: --overrides FILE. A function that changes the graph: --fiddler NAME. The
flags of Fiddle and Pax work too: --fdl.PATH=VALUE, --fdl_set, --fdl_tag.NAME=VALUE, --fdl_config,
--fdl_config_file, --fdl_help, --exp, --job_log_dir. Gin: --gin_file, --gin_bindings,
--gin.NAME.ARGUMENT=VALUE, --gin_search_paths, --gin_root, --gin_skip_unknown. ConfigDict:
--config_dict FILE.py[:ARG], --config_dict_rename. `luthier help overrides` has all forms.
"""


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return textwrap.dedent(
        """\
        usage: luthier COMMAND ...

        luthier trains models that are described by one lazy graph.

        commands:
        {commands}

        options:
          --help     show this, or `luthier COMMAND --help` for one command
          --version  show the version
          --debug    show the traceback of an error
        """
    ).format(commands="\n".join(lines))


def parser_of(command: str) -> arguments.Parser:
    """Return the parser of one command.

    Args:
      command: A name in `COMMANDS`.
    """
    module = _module(command)
    parser = arguments.Parser(
        prog=f"luthier {command}",
        description=module.__doc__,
        formatter_class=arguments.HelpFormatter,
    )
    module.add_arguments(parser)
    if parser.takes("reference"):
        parser.epilog = _EPILOG
    if command in _READS_RECORDS:
        trust_help = (
            "records at or below PATH may run code of your packages; PATH is of another project"
        )
        parser.add_argument("--trust", action="append", metavar="PATH", help=trust_help)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _unknown(command: str) -> errors.BadInput:
    nearest = difflib.get_close_matches(command, COMMANDS, n=3, cutoff=0.5)
    kind = "option" if command.startswith("-") else "command"
    remedy = "`luthier --help` lists the commands"
    return errors.BadInput(errors.Problem(f"unknown {kind} {command!r}", "", "", remedy, nearest))


def _run(argv: Sequence[str]) -> int:
    words = [word for word in argv if word != "--debug"]
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        print(_usage(), end="")
        return errors.EXIT_DONE if words else errors.EXIT_BAD_INPUT
    if words[0] in ("-V", "--version", "version"):
        import luthier

        print(f"luthier {luthier.__version__}")
        return errors.EXIT_DONE
    command, *rest = words
    if command not in COMMANDS:
        raise _unknown(command)
    parsed, unknown = _parse(command, rest)
    for path in getattr(parsed, "trust", None) or ():
        from luthier.records import trust

        trust.trust(path)
    if flags.HELP in rest and command in ("show", "train"):
        return _help(command, parsed)
    parsed.argv = rest
    return _module(command).run(parsed, unknown)


def _module(command: str) -> Any:
    """Return the module of a command, imported only now."""
    rooms = [room for room, names in _ROOMS.items() if command in names]
    name = _MODULES.get(command, command)
    return importlib.import_module(".".join(["luthier.cli.commands", *rooms, name]))


def _parse(command: str, words: list[str]) -> tuple[argparse.Namespace, list[errors.Problem]]:
    """Return the arguments of a command, and what is wrong with its options."""
    parser = parser_of(command)
    if not (parser.takes("overrides") or parser.takes("reference")):
        return parser.parse(words)
    names_experiment = parser.takes("reference")
    if names_experiment:
        words = [word for word in words if word != flags.HELP]
    spelled, problems = flags.translate(words, names_experiment)
    parsed, unknown = parser.parse(spelled, flags.flags(names_experiment))
    return parsed, problems + unknown


def _help(command: str, parsed: argparse.Namespace) -> int:
    """Print what Fiddle's `--fdl_help` is for: the settings of the experiment, or the grammar."""
    if not parsed.reference:
        return _run(["help", "overrides"])
    words = parsed.words if command == "show" else parsed.overrides
    code = _run(["show", parsed.reference, *words, "--defaults"])
    print("to change them: PATH=VALUE; `luthier help overrides` has all forms")
    return code


@contextlib.contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Put the working directory on `sys.path`: a console script does not have it."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        problem = errors.Problem(
            "the working directory does not exist any more", remedy="change to one that does"
        )
        raise errors.BadInput(problem) from None
    present = directory in sys.path or "" in sys.path
    if not present:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        if not present and directory in sys.path:
            sys.path.remove(directory)


def _tell(message: str) -> None:
    from luthier.records.redaction import redact

    for line in redact(message).split("\n"):
        print(f"luthier: {printable(line)}", file=sys.stderr)


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; no exception leaves it but `SystemExit`.

    Args:
      argv: The words after `luthier`.

    Returns:
      0 done, 1 a bug of ours, 2 bad input, 75 requeue (preempted, saved), 130 interrupted.
    """
    debug = "--debug" in argv
    try:
        with _working_directory_importable():
            return _run(argv)
    except KeyboardInterrupt:
        _tell("interrupted")
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from flushing into it again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.EXIT_DONE
    except SystemExit as end:
        if end.code != errors.EXIT_REQUEUE:  # preempted before the first step
            raise
        return errors.EXIT_REQUEUE
    except errors.LuthierError as error:
        if debug:
            traceback.print_exc()
        _tell(str(error))
        if error.exit_code == errors.EXIT_BUG:
            _tell_file(error)
        return error.exit_code
    except OSError as error:
        if error.errno not in _MACHINE_ERRORS:
            return _tell_error(error, debug)
        if debug:
            traceback.print_exc()
        remedy = _MACHINE_ERRORS[error.errno]
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        _tell(str(errors.Problem(what, remedy=remedy)))
        return errors.EXIT_BAD_INPUT
    except Exception as error:
        return _tell_error(error, debug)


def _tell_error(error: Exception, debug: bool) -> int:
    """Print an error of the user's code in one line, and one of our own with its traceback."""
    from luthier.records import crash

    place, path = crash.place(error), crash.path_of(error)
    is_ours = not place and faults.classify(error) is faults.Fault.CODE
    if debug or (is_ours and path is None):
        traceback.print_exception(error)
    line = crash.summary(error)
    if where := crash.graph_path_of(error):
        line = f"{where}: {line}"
    if place:
        line += f" ({place})"
    elif is_ours:
        line = f"this is a bug in luthier: {line}"
    if path is not None:
        line += f"; traceback: {path}"
    elif place and not debug:
        line += "; to see the traceback, add --debug"
    _tell(line)
    return errors.EXIT_BUG


def _tell_file(error: Exception) -> None:
    """Print where the traceback is, which a run has kept."""
    from luthier.records import crash

    if (path := crash.path_of(error)) is not None:
        _tell(f"traceback: {path}")


def console() -> NoReturn:
    """Run the command line of this process and exit; the entry point of the command `luthier`."""
    protect()
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if sys.argv[1:2] and sys.argv[1] in _READERS:
        sys.stderr.flush()
        os._exit(code)  # nothing is left to do, and taking down thousands of devices takes seconds
    sys.exit(code)
