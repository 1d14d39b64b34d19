"""Run a hyperparameter sweep (Optuna), on this machine or on a cluster.

REF is a study (sweeps.lm_learning_rate), or an experiment with a search space
(--space). OVERRIDEs change a study by path (base.training.steps=100
budget.trials=8). They change an experiment as for `luthier train`. They are
applied after --sampler, --pruner, --scheduler and --objective, so they can
change the settings of these (--pruner median pruner.n_startup_trials=1).

actions:
  show    print the status of a study or of a trial, or write its report
  best    print the best trial
  rerun   run a finished trial once more, bit for bit
  repair  rebuild a damaged journal

`luthier sweep ACTION --help` describes an action.

examples:
  luthier sweep sweeps.lm_learning_rate --trials 20 --slices 4
  luthier sweep configs.lm.quickstart --space 'optimizer.b2=uniform(0.9,0.999)'
  luthier sweep --resume studies/lm_learning_rate
  luthier sweep best lm_learning_rate
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier import project
from luthier.cli import arguments as arguments_lib
from luthier.cli import experiments
from luthier.cli.arguments import Action, Problems
from luthier.cli.commands import launch
from luthier.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REQUEUE,
    BadInput,
    Problem,
)

if TYPE_CHECKING:
    from luthier.graph import Graph

FORMS = ("overrides", "python", "json")
# Options that describe a study, so that they would be ignored with a recorded one.
_NEEDING_REFERENCE = (
    *("space", "when", "sweep", "objective", "constraint"),
    *("sampler", "pruner", "scheduler"),
)

_OF_SHOW = ("all", "html", "sync", "csv", "json", "parquet", "sort", "state")

_LANES = ("single", "vmap", "map", "shard", "auto")

USAGE = (
    "luthier sweep REF [OVERRIDE ...] [OPTIONS]\n"
    "luthier sweep --resume STUDY [OVERRIDE ...] [OPTIONS]\n"
    "luthier sweep show|best|repair STUDY [OPTIONS]\n"
    "luthier sweep rerun STUDY/7"
)
ACTIONS = {
    "show": Action(
        "luthier sweep show STUDY [OPTIONS]",
        """\
Print the status of a study: its best trials, and how the others ended.

STUDY is the folder, the name or the URL of a study. STUDY/7 prints trial 7,
with its config and, if it failed, its traceback.

examples:
  luthier sweep show lm_learning_rate
  luthier sweep show lm_learning_rate/7
  luthier sweep show lm_learning_rate --html report.html
  luthier sweep show lm_learning_rate --csv --state complete > trials.csv
""",
    ),
    "best": Action(
        "luthier sweep best STUDY [OPTIONS]",
        """\
Print the best trial of a study, or the Pareto front of several objectives.

STUDY is the folder, the name or the URL of a study.

examples:
  luthier sweep best lm_learning_rate
  luthier sweep best lm_learning_rate --as python
""",
    ),
    "rerun": Action(
        "luthier sweep rerun STUDY/TRIAL [--into DIR]",
        """\
Run a finished trial once more, and compare its evaluations bit by bit.

It runs as it was run: with the same runtime arguments, in the same place of a
pack, on as many devices of the same kind. `luthier train study:STUDY/TRIAL`
runs its config anywhere, and gives the same numbers up to rounding.

examples:
  luthier sweep rerun lm_learning_rate/7
""",
    ),
    "repair": Action(
        "luthier sweep repair STUDY",
        """\
Rebuild the damaged journal of a study from the folders of its trials.

STUDY is the folder, the name or the URL of a study. The damaged journal is kept.

examples:
  luthier sweep repair lm_learning_rate
""",
    ),
}


def add_arguments(parser: argparse.ArgumentParser, action: str = "") -> None:
    """Add this command's arguments to `parser`.

    Args:
      parser: The parser.
      action: The action whose arguments are added; empty for those of all actions, of which those
        of a sweep alone are in the help.
    """
    if action:
        is_trial = action == "rerun"
        what = "its trial: the study's name or folder, and the number"
        parser.add_argument(
            "study",
            metavar="STUDY/TRIAL" if is_trial else "STUDY",
            help=what if is_trial else "its name, or its folder",
        )
    else:
        _add_sweep(parser)

    def option(owner: str, *names: str, **settings: Any) -> None:
        if not action:
            parser.add_argument(*names, **(settings | {"help": argparse.SUPPRESS}))
        elif action == owner:
            parser.add_argument(*names, **settings)

    option("best", "--as", dest="form", choices=FORMS, help="the format of the trial")
    option("rerun", "--into", metavar="DIR", help="the folder of the new run")
    option("show", "--all", action="store_true", help="list all trials")
    option("show", "--html", metavar="FILE", help="write the report to a file")
    option("show", "--sync", choices=["wandb"], help="write a summary run to W&B")
    option("show", "--csv", action="store_true", help="print the trials as CSV")
    option("show", "--json", action="store_true", help="print the trials as JSON")
    option("show", "--parquet", metavar="FILE", help="write the trials to a Parquet file")
    option("show", "--sort", metavar="COLUMN", help="sort these rows, the best value first")
    option("show", "--state", metavar="STATE", help="only rows of this state, such as complete")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that start or resume a study."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="REF|show|best|rerun|repair",
        help="a study, an experiment, or an action",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OVERRIDE|STUDY",
        help="a change, such as budget.trials=8",
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="PATH=DIM",
        help="search a value: log(1e-4,1e-2), uniform(0,1), normal(0,1), int(2,8), pow2(64,512), "
        "ordinal(1,3) or choice(a,@b); PATH,PATH=rows((1,2),(3,4)) sets several together (may be "
        "repeated)",
    )
    search.add_argument(
        "--when",
        action="append",
        default=[],
        metavar="PATH=OPTION: PATH=DIM",
        help="search a value only if a choice has this option",
    )
    search.add_argument(
        "--sweep", metavar="NAMES", help="use the product of the generators sweep_NAME"
    )
    search.add_argument(
        "--objective",
        action="append",
        metavar="EVALUATION/METRIC",
        help="the metric to optimize: held_out/loss, train/loss:mean100, step_time, "
        "steps_to(held_out/loss<=2), or an expression (may be repeated); the default is the metric "
        "of checkpoints.keep_best, or the first metric of the only evaluation",
    )
    search.add_argument(
        "--constraint",
        action="append",
        metavar="METRIC<=VALUE",
        help="a bound for the best trial: peak_bytes<=8GiB (may be repeated)",
    )
    search.add_argument(
        "--sampler",
        metavar="NAME",
        help="the sampler: tpe, random, quasi-random, grid, ...; tpe(n_startup_trials=5)",
    )
    search.add_argument(
        "--pruner",
        metavar="NAME",
        help="the pruner, which ends trials early: median, hyperband, ...; "
        "median(n_startup_trials=1)",
    )
    search.add_argument(
        "--scheduler",
        metavar="NAME",
        help="the scheduler, which pauses trials at rungs: asha, successive-halving",
    )
    search.add_argument(
        "--trials",
        type=arguments_lib.positive,
        metavar="N",
        help="number of trials, including the baseline",
    )
    search.add_argument(
        "--seeds",
        type=arguments_lib.positive,
        metavar="N",
        help="trials per setting, with different seeds; their mean is the result",
    )
    search.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another limit: wall_seconds, device_hours, no_improvement, target, ... (may be "
        "repeated)",
    )
    study = parser.add_argument_group("study")
    study.add_argument(
        "--name", metavar="NAME", help="name of the study and of its folder in studies/"
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--slices",
        type=arguments_lib.positive,
        metavar="N",
        help="number of device groups, which each run a trial",
    )
    where.add_argument(
        "--devices", metavar="KIND[:N]", help="devices to split into these groups: cpu:8, gpu:4"
    )
    where.add_argument(
        "--packing",
        metavar="single|vmap|map|shard|auto|N",
        help="how trials share a device group; N packs up to N of them",
    )
    launch.add_engine(where)
    study.add_argument("--resume", metavar="STUDY", help="resume a study")
    study.add_argument(
        "--retry",
        metavar="failed[:REGEX]",
        help="with --resume: rerun failed trials, or those whose reason matches REGEX",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier sweep`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if arguments.reference == "repair":
        return _repair(arguments, problems)
    if arguments.reference == "rerun":
        return _rerun(arguments, problems)
    if arguments.into:
        problems.add("--into is an option of `luthier sweep rerun`")
    if arguments.reference in ("show", "best"):
        return _look(arguments, problems)
    if arguments.form:
        problems.add("--as is an option of `luthier sweep best`")
    if of_show := [name for name in _OF_SHOW if getattr(arguments, name)]:
        problems.add(f"--{of_show[0]} is an option of `luthier sweep show`")
    own = project.Project(Path.cwd())
    with problems.collected():
        own = project.find()
    if arguments.retry and not arguments.resume:
        problems.add("--retry needs a study to resume", remedy="add --resume STUDY")
    _take_objective(arguments)
    graph = None
    if arguments.resume and experiments.is_override(arguments.reference or ""):
        arguments.words.insert(0, arguments.reference)  # a change of the recorded study
        arguments.reference = None
    if arguments.resume and not arguments.reference:
        for option in filter(vars(arguments).get, _NEEDING_REFERENCE):
            remedy = "give the study too, as `luthier sweep REF --resume STUDY`, or an override"
            problems.add(f"--{option} has no effect on a recorded study", remedy=remedy)
    with problems.collected():
        arguments.words = _with_full_names(arguments.words)
        _shortcuts(arguments)
    problems.raise_any()
    if arguments.reference or not arguments.resume:
        graph = _study(arguments, problems, own.packages)
    problems.raise_any()
    return _drive(arguments, graph, own)


def _take_objective(arguments: argparse.Namespace) -> None:
    """Make an override such as `objectives=held_out/loss` the option that it spells out."""
    if not any(word.startswith("objectives") for word in arguments.words):
        return
    from luthier.study.objective_grammar import objective_of

    for word in arguments.words:
        if text := objective_of(word):
            arguments.objective = [text]  # the last one counts, as of any override
    arguments.words = [word for word in arguments.words if not objective_of(word)]


def _drive(arguments: argparse.Namespace, graph: Graph | None, own: project.Project) -> int:
    """Start or resume a study, and print its outcome."""
    # Three cases: a new study (`graph` only); a recorded one as it is (--resume only), whose graph
    # is not loaded again by the driver; a recorded one with changes, by overrides or by another
    # study.
    from luthier import graph as graphs
    from luthier.records import trust
    from luthier.study import samplers, start
    from luthier.study import study as studies
    from luthier.study.driver.directory import find_study
    from luthier.study.views.text import LiveView

    directory = find_study(arguments.resume) if arguments.resume else None
    if directory is not None:
        trust.require(directory.path, "resuming it starts its engine and its fiddlers")
    if graph is None and directory is not None:
        changes = _shortcuts(arguments) + arguments.words
        graph = graphs.apply(directory.read_study(), changes) if changes else None
        if arguments.on:
            graph = launch.with_engine(graph or directory.read_study(), arguments.on)
    described = directory.read_study() if graph is None and directory is not None else graph
    # Built for the view, which needs the objectives before the driver starts.
    study = studies.build(described)
    view = LiveView.of(study)
    settings: dict[str, Any] = {"packages": own.packages, "shelves": own.shelves}
    # An experiment, whose study `samplers.study_of` describes.
    is_wrapped = bool(arguments.space or arguments.sweep)
    if is_wrapped and not arguments.objective and (note := samplers.objective_note(graph)):
        print(note)
    root = directory.path if directory else project.records_folder(study.directory) / study.name
    if text := project.described(root):
        print(f"project: {text}")
    with view:
        if directory is not None:
            outcome = start.resume(
                str(directory.path), graph, retry=arguments.retry, view=view, **settings
            )
        else:
            outcome = start.run(graph, view=view, **settings)
    return _end(outcome)


def _end(outcome: Any) -> int:
    """Print the outcome of a study; return the exit code."""
    from luthier.study.views.text import best_lines, headline, read_status

    # Exit codes: 0 for a study that is over with a complete trial, also at its time limit; 75 if it
    # was preempted and should be started again; 130 after Ctrl-C; 2 or 1 if it gave up.
    standing = read_status(outcome.directory)
    print("\n".join([headline(standing), *best_lines(standing), *outcome.notices]))
    show = f"`luthier sweep show {outcome.address}` lists the trials"
    resume = f"luthier sweep --resume {outcome.address}"
    has_complete = bool(standing.ledger.count("complete"))
    if outcome.is_over:
        print(show if has_complete else f"no trial is complete; {show}")
        return EXIT_DONE if has_complete else EXIT_FAILED
    if outcome.stopped_by:
        print(*_stop_lines(outcome, standing.ledger, resume), sep="\n", file=sys.stderr)
        return EXIT_BAD_INPUT if outcome.stopped_by == "place" else EXIT_FAILED
    if outcome.is_late:
        # It counts over resumes: the hint gives as much time again.
        more = f"--budget wall_seconds={max(1, math.ceil(2 * standing.ledger.driven_seconds))}"
        print(f"time limit reached (budget.wall_seconds); resume with `{resume} {more}`")
        return EXIT_DONE if has_complete else EXIT_FAILED
    print(f"stopped; resume with `{resume}`")
    return EXIT_REQUEUE if outcome.is_preempted else EXIT_INTERRUPTED


def _stop_lines(outcome: Any, ledger: Any, resume: str) -> Iterator[str]:
    """Yield the reason why a study gave up, and the remedy."""
    if outcome.stopped_by == "place":
        remedy = f"free space or repair the machine, then `{resume}`: no trial is lost"
        yield f"luthier: {outcome.stopped}; {remedy}"
        return
    remedy = f"`{resume} --retry failed` reruns failed trials with the source as it is then"
    if not ledger.count("complete", "pruned") and not project.bucket_url(outcome.directory):
        remedy += "; the same command as before restarts the study"
    yield f"luthier: {outcome.stopped}; {remedy}"
    failed = [trial.number for trial in ledger.trials if trial.state == "failed"]
    if failed:
        yield f"`luthier sweep show {outcome.address}/{failed[-1]}` prints its traceback"


def _study(arguments: argparse.Namespace, problems: Problems, packages: Sequence[str]) -> Any:
    """Return the graph of the study that the command line describes."""
    # The reference decides: a study is taken as it is; an experiment is wrapped into one, with the
    # search space of the command line. The options of the search come before the overrides, which
    # may change what they set. The others are overrides of the study themselves, applied after the
    # site's engine, whose settings they may change.
    # Objectives are made last: which direction is better depends on the evaluations, which an
    # override may change. So their own overrides have to wait for them.
    late = [word for word in arguments.words if arguments.objective and _is_of_objectives(word)]
    overrides = [word for word in arguments.words if word not in late]
    if arguments.reference and experiments.is_override(arguments.reference):
        problems.add(f"{arguments.reference!r} is an override, and no study or experiment is given")
        return None
    from luthier.study import study as studies

    reference = arguments.reference
    # `pruner=...` of an experiment can only mean the study that it is wrapped into.
    own = [override for override in overrides if studies.sets_study(override)]
    rest = [override for override in overrides if override not in own]
    graph, _ = experiments.load(reference, rest, problems, command="sweep", checked=False)
    from luthier import graph as graphs

    if studies.is_study(graph):
        if own:
            graph, _ = experiments.load(
                reference,
                overrides,
                problems,
                command="sweep",
                checked=False,
                prepare=lambda study: _with_search(arguments, study),
            )
        else:
            with problems.collected():
                graph = _with_search(arguments, graph)
        if arguments.space or arguments.when or arguments.sweep:
            remedy = "change its space.dimensions by overrides"
            what = "--space, --when and --sweep apply to experiments, not to a study"
            problems.add(what, remedy=remedy)
    else:
        with problems.collected():
            graph = graphs.apply(_with_search(arguments, _wrap(arguments, graph, packages)), own)
        problems.raise_any()
    # After `_wrap`, whose failure leaves an experiment without an engine, and so is raised first.
    with problems.collected():
        graph = launch.with_engine(graph, arguments.on)
    changes = _shortcuts(arguments)
    with problems.collected():
        if (arguments.slices or arguments.devices) and graphs.get(graph, "engine") is None:
            # A study may leave its engine to whoever starts it; these two ask for this machine.
            graph = graphs.apply(graph, ["engine:=luthier.study.Local()"], "option")
        graph = graphs.apply(graph, changes, "option") if changes else graph
        graph = graphs.apply(_with_objectives(arguments, graph), late)
    return graph


def _is_of_objectives(override: str) -> bool:
    from luthier.study import objective_grammar

    return objective_grammar.sets_objectives(override)


def _wrap(arguments: argparse.Namespace, base: Graph, packages: Sequence[str]) -> Graph:
    """Return a study of an experiment."""
    # Without --space, --sweep alone describes a table of trials, which are all run: a grid. A mixed
    # space is sampled.
    from luthier import graph as graphs
    from luthier.study import Space, samplers
    from luthier.study.space import generate
    from luthier.study.space_grammar import parse_space

    space = parse_space(arguments.space, arguments.when)
    if arguments.sweep:
        module = arguments.reference.partition(":")[0].partition("(")[0]
        tables = generate(module, [name.strip() for name in arguments.sweep.split(",")])
        space = Space({**tables, **space.dimensions})
    sampler = "grid" if arguments.sweep and not arguments.space else "tpe"
    node = samplers.sampler(sampler)
    return samplers.study_of(graphs.get(base, "name"), base, space, node, packages)


def _with_search(arguments: argparse.Namespace, study: Graph) -> Graph:
    """Return the study with the sampler, the pruner and the scheduler of the options."""
    from luthier import graph as graphs
    from luthier.study import samplers

    changes: list[tuple[str, Any]] = []
    if arguments.sampler:
        changes.append(("sampler", samplers.sampler(arguments.sampler)))
    if arguments.pruner:
        changes.append(("pruner", samplers.pruner(arguments.pruner)))
    if arguments.scheduler:
        changes.append(("scheduler", samplers.scheduler(arguments.scheduler)))
    return graphs.apply(study, changes, "option") if changes else study


def _with_objectives(arguments: argparse.Namespace, study: Graph) -> Graph:
    """Return the study with the objectives and the constraints of the options."""
    from luthier import graph as graphs
    from luthier.study import objective_grammar
    from luthier.study.checks import evaluations_of

    changes: list[tuple[str, Any]] = []
    if arguments.objective or arguments.constraint:
        evaluations = evaluations_of(graphs.get(study, "base"))
        if given := arguments.objective:
            found = [objective_grammar.objective(word, evaluations) for word in given]
            changes.append(("objectives", found))
        if given := arguments.constraint:
            bounds = [objective_grammar.constraint(word, evaluations) for word in given]
            own = graphs.get(study, "space.constraints")
            changes.append(("space.constraints", [*own, *bounds]))
    return graphs.apply(study, changes, "option") if changes else study


def _shortcuts(arguments: argparse.Namespace) -> list[str]:
    """Return the options that abbreviate overrides as these."""
    overrides = []
    if arguments.name:
        overrides.append(f"name={arguments.name}")
    if arguments.trials:
        overrides.append(f"budget.trials={arguments.trials}")
    if arguments.seeds:
        overrides.append(f"seeds={arguments.seeds}")
    names = ["trials"] if arguments.trials else []
    for limit in arguments.budget:
        name, equals, value = limit.partition("=")
        if not (name.strip() and equals and value.strip()):
            remedy = "write --budget wall_seconds=3600"
            raise BadInput(Problem(f"--budget: {limit!r} is not NAME=VALUE", remedy=remedy))
        if name in names:
            raise BadInput(Problem(f"budget.{name} is given twice", origin=f"--budget {limit}"))
        names.append(name)
        overrides.append(f"budget.{limit}")
    if arguments.packing:
        overrides.append(f"packing:={_packing(arguments.packing)}")
    if arguments.slices:
        overrides.append(f"engine.slices={arguments.slices}")
    if arguments.devices:
        overrides.append(f"engine.devices={arguments.devices}")
    return overrides


def _packing(text: str) -> str:
    """Return the node of --packing in the override grammar."""
    lanes, count = text, ""
    if text.isdecimal() and int(text) > 0:
        # N trials in one program: that of one is the plain one.
        lanes, count = ("vmap", f", num_lanes={int(text)}") if int(text) > 1 else ("single", "")
    if lanes not in _LANES:
        remedy = f"write {', '.join(_LANES)}, or a number of trials"
        near = difflib.get_close_matches(text, _LANES)
        raise BadInput(Problem(f"--packing: {text!r} is not a packing", "", "", remedy, near))
    return f"luthier.study.SharedPrograms(lanes={lanes!r}{count})"


def _with_full_names(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the full names of samplers, pruners and schedulers."""
    if not any(override.startswith(("sampler", "pruner", "scheduler")) for override in overrides):
        return list(overrides)
    from luthier.study import samplers  # imports Optuna, which other command lines do without

    return [samplers.with_full_names(override) for override in overrides]


def _look(arguments: argparse.Namespace, problems: Problems) -> int:
    """Run `luthier sweep show` and `luthier sweep best`."""
    # `show STUDY/7` is a trial, unless there is a study whose folder is called so. A damaged
    # journal is read as far as possible: status and best trial are worth showing, and repair is
    # suggested. Options of the other action (--as for `show`, --all for `best`) have no effect.
    if len(arguments.words) != 1:
        remedy = f"write luthier sweep {arguments.reference} STUDY"
        problems.add(f"{arguments.reference} needs one study", remedy=remedy)
    problems.raise_any()
    from luthier.study.driver.directory import StudyDirectory, find_study
    from luthier.study.views.text import lines_of, read_status, trial_lines

    name, _, number = arguments.words[0].rpartition("/")
    is_trial = arguments.reference == "show" and bool(name) and number.isdecimal()
    is_trial = is_trial and not StudyDirectory(Path(arguments.words[0])).exists
    directory = find_study(name if is_trial else arguments.words[0])
    standing = read_status(directory.path)
    for problem in standing.problems:
        print(f"{problem}; `luthier sweep repair {directory.address}` repairs it", file=sys.stderr)
    if is_trial:
        trials = standing.ledger.trials
        if int(number) >= len(trials):
            remedy = f"it has the trials 0 to {len(trials) - 1}" if trials else "it has none"
            raise BadInput(Problem(f"{name} has no trial {number}", remedy=remedy))
        print("\n".join(trial_lines(standing, trials[int(number)], directory.path)))
        return EXIT_DONE
    if arguments.reference == "show":
        if arguments.csv or arguments.json or arguments.parquet:
            return _export(directory.path, arguments)
        if arguments.sort or arguments.state:
            what = "--sort and --state are for rows"
            raise BadInput(Problem(what, remedy="add --csv, --json or --parquet FILE"))
        if arguments.html or arguments.sync:
            return _publish(directory, standing, arguments)
        # The 20 newest trials; the best are listed in any case.
        print("\n".join(lines_of(standing, None if arguments.all else 20)))
        return EXIT_DONE
    best = standing.best()
    if not best:
        if not standing.ledger.count("complete"):
            raise BadInput(Problem(f"no trial of {directory.address} is complete yet"))
        remedy = f"`luthier sweep show {arguments.words[0]}` lists its trials"
        raise BadInput(Problem(f"{directory.address}: {standing.why_no_best()}", remedy=remedy))
    # With --as the output goes into other commands and files, and needs no explanation. That of a
    # baseline without overrides is below.
    if arguments.form is None and any(standing.ledger.settings[t.setting].words for t in best):
        print(_note_on_best(arguments.words[0], standing, best), file=sys.stderr)
    for trial in best:
        if len(best) > 1:
            print(f"# trial {trial.number}")
        text = _in_form(directory, standing, trial, arguments.form or "overrides")
        if not text:
            what = f"trial {trial.number}, the experiment without overrides, is the best"
            print(f"{what}: `luthier sweep show {arguments.words[0]}`", file=sys.stderr)
        print(text)
    return EXIT_DONE


def _note_on_best(name: str, standing: Any, best: Sequence[Any]) -> str:
    """Return how to train the best trials, whose overrides alone do not describe them."""
    from luthier.study.views.text import values_text
    from luthier.terminal import printable

    number, values = best[0].number, values_text(standing, best[0])
    which = f"trial {number} ({values})" if len(best) == 1 else f"{len(best)} trials"
    trains = "trains it" if len(best) == 1 else f"trains trial {number}"
    return printable(
        f"note: {which}: the overrides are relative to the study's base; "
        f"`luthier train study:{name}/{number}` {trains}"
    )


def _export(path: Path, arguments: argparse.Namespace) -> int:
    """Print or write the trials of a study as a table."""
    from luthier.study import load

    if arguments.csv and arguments.json:
        raise BadInput(Problem("--csv and --json both print the trials", remedy="leave one out"))
    table = load(str(path))
    if arguments.state:
        table = table.where(state=arguments.state)
    if arguments.sort:
        table = table.sorted(arguments.sort)
    if arguments.parquet:
        table.write_parquet(arguments.parquet)
    if arguments.csv:
        print(table.csv(), end="")
    if arguments.json:
        print(table.json(), end="")
    return EXIT_DONE


def _repair(arguments: argparse.Namespace, problems: Problems) -> int:
    """Run `luthier sweep repair`: rebuild the journal of a study."""
    if len(arguments.words) != 1:
        problems.add("repair needs one study", remedy="write luthier sweep repair STUDY")
    problems.raise_any()
    # Only on request, and never by `show`: the driver of the study may be alive and writing.
    from luthier.study.driver.repair import repair_journal

    repaired = repair_journal(arguments.words[0])
    if not repaired.problems:
        journal = project.address(repaired.directory / "journal.jsonl")
        print(f"{journal} is not damaged; nothing to repair")
        return EXIT_DONE
    print("\n".join(repaired.problems))
    print(
        f"repaired: {repaired.num_kept} lines kept, {repaired.num_made} rebuilt from the folders "
        f"of the trials, {repaired.num_left_out} dropped"
        + (f"; the damaged journal is {repaired.old}" if repaired.old is not None else "")
    )
    print(f"resume with `luthier sweep --resume {project.address(repaired.directory)}`")
    return EXIT_DONE


def _rerun(arguments: argparse.Namespace, problems: Problems) -> int:
    """Run `luthier sweep rerun`: a finished trial in its recorded mode."""
    name, _, number = arguments.words[0].rpartition("/") if len(arguments.words) == 1 else ("",) * 3
    if not name or not number.isdecimal():
        problems.add("rerun needs one trial", remedy="write luthier sweep rerun STUDY/TRIAL")
    problems.raise_any()
    from luthier.records import trust
    from luthier.study import read_result
    from luthier.study.driver.directory import edited_packages, find_study
    from luthier.study.views.text import read_status

    directory = find_study(name)
    trust.require(directory.path, "a trial runs code that its config names")
    trials = read_status(directory.path).ledger.trials
    if int(number) >= len(trials):
        remedy = f"it has the trials 0 to {len(trials) - 1}" if trials else "it has none"
        raise BadInput(Problem(f"{name} has no trial {number}", remedy=remedy))
    trial = trials[int(number)]
    if trial.copy_of is not None:
        remedy = f"luthier sweep rerun {name}/{trial.copy_of}"
        raise BadInput(Problem(f"trial {number} has the result of another", remedy=remedy))
    folder = own_folder = directory.trial_path(trial.number)
    if trial.state == "pruned":  # with `horizon="rung"`, its last run is that to its rung
        folder = directory.work_path(trial.number, trial.rung)
    before = read_result(folder)
    if before is None or trial.state not in ("complete", "pruned"):
        what = f"trial {number} of {name} is {trial.state}, and has no result to repeat"
        remedy = f"luthier train study:{name}/{number} runs its config"
        raise BadInput(Problem(what, remedy=remedy))
    # Before JAX is imported, which reads them once.
    shape = before.result["mode"]["slice"]
    if shape["kind"] == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.pop("JAX_NUM_CPU_DEVICES", None)
        count = f"--xla_force_host_platform_device_count={shape['devices']}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}".strip()
    own = project.find().packages
    _, packages = directory.read_modules()
    if edited := edited_packages(directory.path):
        print(f"notice: the source of {', '.join(edited)} was edited since the study began")
    into = (
        Path(arguments.into)
        if arguments.into
        else _free_folder(_folder_of_reruns(directory), own_folder)
    )
    from luthier.study import rerun

    again = rerun(folder, into, devices=_devices(shape), packages=(*packages, *own))
    return _compare_runs(trial.number, before.result, again, into)


def _devices(shape: Any) -> Any:
    """Return as many devices as the trial had; all where there are fewer, which is refused."""
    import jax

    return jax.devices()[: shape["devices"]]


def _folder_of_reruns(directory: Any) -> Path:
    from luthier.study.driver.directory import STUDIES

    # That of a study in an object store is not part of it: the driver alone writes there.
    if project.bucket_url(directory.path):
        return project.records_folder(STUDIES) / directory.path.name / "reruns"
    return directory.path / "reruns"


def _free_folder(root: Path, trial: Path) -> Path:
    names = (f"{trial.name}.{k}" if k else trial.name for k in itertools.count())
    return next(root / name for name in names if not (root / name).exists())


def _compare_runs(number: int, before: Any, again: Any, into: Path) -> int:
    """Print whether a trial's evaluations are the same as before; return the exit code."""
    print(f"trial {number}: {again.outcome}; its run is {into / 'run'}")
    if again.outcome != "complete":
        print(f"luthier: {again.reason}", file=sys.stderr)
        return EXIT_FAILED
    # No pruner is asked this time: a trial that was pruned has further evaluations now.
    known = dict(again.result["series"])
    different = 0
    for step, metrics in before["series"]:
        for metric, value in metrics.items():
            found = known.get(step, {}).get(metric)
            if repr(found) != repr(value):  # equal also for NaN
                different += 1
                print(f"step {step}: {metric} is {found!r}, and was {value!r}")
    count = sum(len(metrics) for _, metrics in before["series"])
    if different:
        print(f"{different} of {count} recorded numbers differ")
        return EXIT_FAILED
    print(f"{count} recorded numbers are equal, bit for bit")
    return EXIT_DONE


def _publish(directory: Any, standing: Any, arguments: argparse.Namespace) -> int:
    """Write the report of a study, and with --sync a summary run in W&B."""
    from luthier.study.views import report
    from luthier.study.views.wandb_summary import mirror_study

    path = report.write(directory.path, Path(arguments.html) if arguments.html else None)
    print(f"wrote the report {path}")
    if arguments.sync:
        mirrored = mirror_study(
            directory.path, directory.read_study(), standing, {"report": str(path)}
        )
        if mirrored is None:
            remedy = "set base.records.wandb=luthier.records.Wandb() in the study"
            raise BadInput(Problem("the experiment of the study does not use W&B", remedy=remedy))
        print(mirrored.url or f"wrote offline files; upload with: wandb sync {mirrored.path}")
    return EXIT_DONE


def _in_form(directory: Any, standing: Any, trial: Any, form: str) -> str:
    if form == "overrides":
        setting = standing.ledger.settings[trial.setting]
        return shlex.join(setting.words)
    from luthier import graph as graphs

    graph = directory.read_trial(trial.number)
    if form == "json":
        return graphs.to_json(graph)
    from luthier.graph.export import to_python

    return to_python(graph)
