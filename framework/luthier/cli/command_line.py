"""Runs a command line: finds the command, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from luthier import errors, faults, project
from luthier.cli import arguments, flags
from luthier.terminal import clear_stage, has_colors, printable, protect, styled

# Titles of the groups in `luthier --help`, with their commands.
GROUPS = {
    "start": {
        "init": "create your own project",
        "list": "list experiments or components",
        "show": "show an experiment's config, parameters or shardings",
        "check": "check experiments and studies without training, for example in CI",
    },
    "run": {
        "train": "train an experiment, or resume its run",
        "evaluate": "evaluate a run's checkpoint",
        "generate": "sample text from a run's checkpoint",
        "sweep": "run a hyperparameter sweep (Optuna)",
        "launch": "run on SLURM, Kubernetes, Ray or Cloud TPU, and list jobs",
    },
    "understand": {
        "plan": "estimate memory, FLOPs and step time on hardware you do not have",
        "diff": "compare experiments, runs and git revisions",
        "runs": "list, show and compare runs, or sync one to W&B",
        "doctor": "measure the hosts of a run: devices, network, disk, clocks",
    },
    "data and interoperability": {
        "data": "prepare a corpus, inspect data, or train a tokenizer",
        "import": "convert an experiment of another framework",
        "export": "export a run's weights as safetensors",
    },
    "help": {
        "help": "read about a topic, a component, a function or a fiddler",
        "completion": "print the completion script of a shell",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

# The packages below luthier.cli.commands; every other command is a module of it.
_PACKAGES = {
    "project": ("init", "list", "completion", "help"),
    "recorded": ("evaluate", "generate", "export", "runs"),
}

# `import` is a keyword, which no module can be named after.
_MODULES = {"import": "importing"}
# Commands that build graphs which somebody else may have recorded; these take --trust.
_READS_RECORDS = (
    *("check", "diff", "evaluate", "export", "generate", "plan", "runs", "show", "sweep", "train"),
)
# Commands that write nothing and hold no file or connection open, so that their processes may end
# without the interpreter's cleanup (see `console`).
_READERS = ("check", "diff", "plan", "show")

# Failures of the machine, not of the program: one line and no traceback.
_MACHINE_ERRORS = {
    errno.ENOSPC: "make room, or set records.directory to another disk",
    errno.EDQUOT: "make room, or set records.directory to another disk",
    errno.EROFS: "set records.directory to a place that can be written",
    errno.EACCES: "set records.directory to a place that can be written",
    errno.EPERM: "set records.directory to a place that can be written",
}


_OVERRIDES = """\
overrides:
  PATH=VALUE changes one value, for example optimizer.learning_rate.peak=3e-4. fiddler:NAME
  calls a function that edits the config. `luthier help overrides` describes all forms, and
  the flags of Fiddle, Pax, Gin and ConfigDict (--fiddler NAME, --gin_file FILE, ...).
"""

# Pages that most users need, for `luthier --help`; `luthier help` lists all.
TOPICS = ("overrides", "errors", "sweeps", "parallelism", "precision", "plan", "reliability")


def _usage() -> str:
    import luthier

    groups = [
        "\n".join([f"{title}:", *(f"  {name:<11} {text}" for name, text in commands.items())])
        for title, commands in GROUPS.items()
    ]
    return textwrap.dedent(
        """\
        luthier {version}: train JAX models, each described by one config (a Fiddle graph)

        usage: luthier COMMAND [ARGUMENTS]

        {commands}

        topics:
          {topics}, ...
          `luthier help` lists all topics; `luthier help TOPIC` shows one.

        options:
          --help     show this help, or that of one command: luthier COMMAND --help
          --version  show the version
          --debug    show the traceback of an error

        examples:
          luthier train configs.lm.quickstart
          luthier train configs.lm.quickstart optimizer.learning_rate.peak=1e-2 fiddler:bf16
          luthier plan configs.lm.quickstart --slice v5e-8
          luthier init my_models --from quickstart
        """
    ).format(version=luthier.__version__, commands="\n\n".join(groups), topics=", ".join(TOPICS))


def parser_of(command: str) -> arguments.Parser:
    """Return the parser of one command.

    Args:
      command: A name in `COMMANDS`.
    """
    # A command with actions has one parser for all of their options, and parsers of which only the
    # help is used: argparse's own subparsers cannot take options before the action, or report all
    # problems at once.
    module = _module(command)
    actions: dict[str, arguments.Action] = getattr(module, "ACTIONS", {})
    parser = _parser(
        command,
        module.USAGE,
        module.__doc__,
        {
            name: _parser(command, action.usage, action.about, action=name)
            for name, action in actions.items()
        },
    )
    return parser


def _parser(
    command: str,
    usage: str,
    about: str,
    actions: Mapping[str, arguments.Parser] | None = None,
    **settings: str,
) -> arguments.Parser:
    """Return a parser of a command, or of one of its actions.

    Args:
      command: The command.
      usage: The line below `usage:`; further lines for further forms.
      about: The description, and examples after the line `examples:`.
      actions: The parsers of its actions.
      **settings: Given to `add_arguments` of its module.
    """
    description, colon, examples = about.partition("\nexamples:\n")
    parser = arguments.Parser(
        actions=actions,
        prog=f"luthier {command}",
        usage=usage.replace("\n", f"\n{' ' * len('usage: ')}"),
        description=description.rstrip(),
        formatter_class=arguments.HelpFormatter,
        add_help=False,
    )
    _module(command).add_arguments(parser, **settings)
    # The options that all commands have come last, and the same way everywhere.
    common = parser.add_argument_group("general options")
    common.add_argument("-h", "--help", action="help", help="show this help")
    if command in _READS_RECORDS:
        trust_help = (
            "allow records of another project, at or below PATH, to run your packages' code"
        )
        common.add_argument("--trust", action="append", metavar="PATH", help=trust_help)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    notes = [_OVERRIDES] if parser.takes("reference") else []
    notes += [f"examples:\n{examples}"] if colon else []
    parser.epilog = "\n".join(notes)
    return parser


def _unknown(command: str) -> errors.BadInput:
    nearest = difflib.get_close_matches(command, COMMANDS, n=3, cutoff=0.5)
    kind = "option" if command.startswith("-") else "command"
    remedy = "see `luthier --help`"
    return errors.BadInput(errors.Problem(f"unknown {kind} {command!r}", "", "", remedy, nearest))


def _run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors are raised."""
    # --debug may stand anywhere, also before the command; `main` has looked for it already.
    words = [word for word in argv if word != "--debug"]
    # Without any word nothing was asked for: the help is shown, and the exit code is that of an
    # error.
    if not words or words[0] in ("-h", "--help"):
        usage = _usage()
        print(arguments.colored(usage) if has_colors() else usage, end="")
        return errors.EXIT_DONE if words else errors.EXIT_BAD_INPUT
    if words[0] in ("-V", "--version", "version"):
        import luthier

        print(f"luthier {luthier.__version__}")
        return errors.EXIT_DONE
    command, *rest = words
    if command not in COMMANDS:
        raise _unknown(command)
    # Problems of the command line are passed to the command and not raised here: it adds those of
    # the experiment and of its own options, so that a user sees all of them after one start.
    parsed, unknown = _parse(command, rest)
    # Before the command reads anything: records of other projects are checked where they are read.
    for path in getattr(parsed, "trust", None) or ():
        from luthier.records import trust

        trust.trust(path)
    # Other commands that take an experiment accept --fdl_help and ignore it (`_parse`).
    if flags.HELP in rest and command in ("show", "train"):
        return _help(command, parsed)
    # Launchers and restarted processes need the command line as it was typed; only --debug is left
    # out, so processes that they start print no tracebacks of errors that luthier expects.
    parsed.argv = rest
    return _module(command).run(parsed, unknown)


def _module(command: str) -> Any:
    """Import and return the module of a command."""
    # By name and on demand: `luthier --help` and every short command would otherwise wait for the
    # imports of all the others.
    packages = [package for package, names in _PACKAGES.items() if command in names]
    name = _MODULES.get(command, command)
    return importlib.import_module(".".join(["luthier.cli.commands", *packages, name]))


def _parse(command: str, words: list[str]) -> tuple[argparse.Namespace, list[errors.Problem]]:
    """Return the arguments of a command, and the problems of its options."""
    # argparse cannot know options whose names contain a path (--fdl.optimizer.b2=0.9), so the flags
    # of other frameworks are turned into overrides before it sees the command line. --fdl_help is
    # taken out first: it takes no value, and would otherwise swallow the next word.
    parser = parser_of(command)
    if not (parser.takes("overrides") or parser.takes("reference")):
        return parser.parse(words)
    names_experiment = parser.takes("reference")
    if names_experiment:
        words = [word for word in words if word != flags.HELP]
    spelled, problems = flags.translate(words, names_experiment)
    parsed, unknown = parser.parse(spelled, flags.flags(names_experiment))
    if names_experiment:
        _experiment_first(parsed)
    return parsed, problems + unknown


def _experiment_first(parsed: argparse.Namespace) -> None:
    """Take the first argument that is not an override as the experiment.

    `luthier show --gin_file a.gin EXPERIMENT`: programs that use absl have their flags first, and
    argparse takes the override that a flag became for the experiment.
    """
    from luthier.cli.experiments import is_override

    others = parsed.words if hasattr(parsed, "words") else parsed.overrides
    if not parsed.reference or not is_override(parsed.reference):
        return
    index = next((i for i, word in enumerate(others) if not is_override(word)), None)
    if index is not None:
        others.insert(0, parsed.reference)
        parsed.reference = others.pop(index + 1)


def _help(command: str, parsed: argparse.Namespace) -> int:
    """Answer Fiddle's `--fdl_help`: print the settings of the experiment, or the grammar."""
    if not parsed.reference:
        return _run(["help", "overrides"])
    words = parsed.words if command == "show" else parsed.overrides
    code = _run(["show", parsed.reference, *words, "--defaults"])
    print("change them with PATH=VALUE; `luthier help overrides` describes all forms")
    return code


def _print_error(message: str, problems: Sequence[errors.Problem] = ()) -> None:
    """Print a message on the standard error, without secrets and control characters.

    Args:
      message: The message.
      problems: Those that its lines are of, to color their parts on a terminal.
    """
    # Messages can hold values of a graph, such as the key of a W&B node.
    from luthier.records.redaction import redact

    clear_stage()
    # A line from which a secret was taken is not found here, and stays plain.
    colored = {str(p): _colored(p) for p in problems} if has_colors(sys.stderr) else {}
    for line in redact(message).split("\n"):
        line = printable(line)
        print(f"luthier: {colored.get(line, line)}", file=sys.stderr)


_COLORS = {"path": "bold", "what": "red", "nearest": "green", "remedy": "green"}


def _colored(problem: errors.Problem) -> str:
    """Return the line of a problem: its path bold, the problem red, the remedy green."""
    parts = []
    for field, text in problem.parts():
        # As `str` has it: blanks are one space each.
        text = printable(re.sub(r"\s+", " ", text))
        parts.append(styled(text, _COLORS.get(field, "")))
    return "".join(parts)


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; it raises nothing but `SystemExit`.

    Args:
      argv: The arguments after `luthier`.

    Returns:
      The exit code: 0 done, 1 failed, 2 bad input, 75 requeue (preempted, saved), 130 interrupted.
    """
    debug = "--debug" in argv
    try:
        with project.importable():
            return _run(argv)
    except KeyboardInterrupt as interrupt:
        _print_error(str(interrupt) or "interrupted")
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough (`luthier list | head`). The interpreter flushes
        # standard output once more when it ends, and would complain about the same pipe again.
        # A stream that a caller put in its place may have no descriptor, or be closed.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.EXIT_DONE
    except SystemExit as end:
        # `train` raises 75 from its signal handler when it is preempted before the first step; any
        # other `SystemExit` is argparse's after --help. 75 is returned, since callers may end with
        # `os._exit` (`hosts.main`), past exit handlers that would wait for other processes.
        if end.code != errors.EXIT_REQUEUE:
            raise
        return errors.EXIT_REQUEUE
    except errors.UserCodeError as error:
        return _print_exception(error, debug)
    except errors.LuthierError as error:
        if debug:
            traceback.print_exc()
        _print_error(str(error), getattr(error, "problems", ()))
        if error.exit_code == errors.EXIT_BUG:
            _print_traceback_file(error)
        return error.exit_code
    except OSError as error:
        if error.errno not in _MACHINE_ERRORS:
            return _print_exception(error, debug)
        if debug:
            traceback.print_exc()
        # Bad input to the outside, as for a full disk in a run: somebody must act before a new
        # start can succeed.
        remedy = _MACHINE_ERRORS[error.errno]
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        _print_error(str(errors.Problem(what, remedy=remedy)))
        return errors.EXIT_BAD_INPUT
    except Exception as error:
        return _print_exception(error, debug)


def _print_exception(error: Exception, debug: bool) -> int:
    """Print an error of the user's code in a few lines, and one of our own with its traceback."""
    # Three cases. An exception with a frame in the user's code, or from a call that does not fit
    # it, is theirs: its place and what was called, and the traceback on request. A failure of the
    # machine or of data (`faults`) has no traceback that would help. Everything else is a bug of
    # ours, and its traceback is shown at once, unless a run has written it into a file already.
    from luthier import user_code
    from luthier.records import crash

    path, where = crash.path_of(error), crash.graph_path_of(error)
    if isinstance(error, errors.UserCodeError):
        is_users, line, details = True, str(error), error.details
    else:
        details = tuple(user_code.details(error))
        is_users = bool(details or where)
        line = user_code.summary(error) if is_users else crash.summary(error)
        line = f"{where}: {line}" if where else line
    is_ours = not is_users and faults.classify(error) is faults.Fault.CODE
    if debug or (is_ours and path is None):
        traceback.print_exception(error)
    if is_ours:
        line = f"this is a bug in luthier: {line}"
    if path is not None and not details:
        line += f"; traceback: {path}"
    for text in (line, *details):
        _print_error(text)
    if details and not debug:
        _print_error(f"traceback: {path}" if path else "to see the traceback, add --debug")
    return errors.EXIT_BUG


def _print_traceback_file(error: Exception) -> None:
    """Print the path of the traceback that a run has saved; nothing if there is none."""
    from luthier.records import crash

    if (path := crash.path_of(error)) is not None:
        _print_error(f"traceback: {path}")


def console() -> NoReturn:
    """Run the command line of this process and exit; the entry point of the command `luthier`."""
    protect()
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Nothing is left to do for readers, and JAX takes seconds to take down the thousands of virtual
    # devices that a plan may have made. After Ctrl-C everything was closed on the way here, and the
    # interpreter would wait for the thread that compiles.
    is_reader = sys.argv[1:2] and sys.argv[1] in _READERS
    if is_reader or code == errors.EXIT_INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
