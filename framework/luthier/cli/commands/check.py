"""Check experiments and studies without training them, in CI or before a long run.

Each REF must exist and be valid. The command plans the model from shapes, on as
many virtual CPU devices as the mesh needs. It also reads the first batch of the
training data and of each evaluation. For a study, it checks the search space and
the experiment (base).

The command prints one line for each valid REF, and one line for each problem. If
there are problems, the exit code is 2. The command does not train or write
anything, and does not use an accelerator.

examples:
  luthier check configs.lm.quickstart
  luthier check --all
  luthier check --all --json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier import folders, project, user_code
from luthier.cli import experiments, listing, printing
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput, Problem, UserCodeError
from luthier.terminal import cell

if TYPE_CHECKING:
    from luthier.graph import Graph


USAGE = "luthier check REF ... [OPTIONS]\nluthier check --all [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "references",
        nargs="*",
        metavar="REF",
        help="an experiment or a study: configs.lm.quickstart, or run:ID",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="check all experiments and studies of the project, below configs/ and sweeps/",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


@dataclasses.dataclass
class _Check:
    """An experiment or a study that is checked.

    Args:
      reference: Its name.
      skipped: Why it is not checked; empty if it is.
      experiment: The experiment, which may be the base of a study; None if it cannot be made.
      num_devices: Devices that the experiment's mesh needs.
      problems: All that is wrong with it.
      facts: Facts about what was checked, for JSON.
    """

    reference: str
    skipped: str = ""
    experiment: Graph | None = None
    num_devices: int = 1
    problems: list[Problem] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> str:
        return "skipped" if self.skipped else "problem" if self.problems else "ok"


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier check`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    checks = list(_chosen(arguments, problems))
    problems.raise_any()
    own = project.find()
    # All configs are made before the first is planned: JAX must know the number of its virtual
    # devices when it starts, and every mesh takes as many of them as it needs.
    for check in checks:
        _attempt(check, lambda check=check: _load(check, own))
    from luthier.parallel import hosts

    with contextlib.suppress(BadInput):  # JAX runs already, and may have enough devices
        hosts.configure(f"cpu:{max(check.num_devices for check in checks)}")
    devices = hosts.devices()
    width = max(len(check.reference) for check in checks)
    for check in checks:
        if check.experiment is not None and not check.problems:
            _attempt(check, lambda check=check: _plan(check, devices))
        if not arguments.json:
            for line in _lines(check):
                print(f"{cell(check.reference):<{width}}  {check.status:<7}  {line}", flush=True)
    failed = sum(check.status == "problem" for check in checks)
    if arguments.json:
        printing.print_json([_to_dict(check) for check in checks])
    else:
        ok = sum(check.status == "ok" for check in checks)
        print(f"{len(checks)} checked: {ok} ok, {failed} with problems")
    return EXIT_BAD_INPUT if failed else EXIT_DONE


def _chosen(arguments: argparse.Namespace, problems: Problems) -> Iterator[_Check]:
    """Yield what is to be checked, each once: what is named, then all of the project."""
    seen = set()
    for reference in arguments.references:
        if experiments.is_override(reference):
            remedy = "check takes experiments and studies; `luthier train REF OVERRIDE --dry-run`"
            problems.add(f"{reference!r} is an override", remedy=f"{remedy} checks overrides")
        elif reference not in seen:
            seen.add(reference)
            yield _Check(reference)
    found: list[listing.Listed] = []
    if arguments.all:
        for name in folders.EXPERIMENT_FOLDERS:
            found += listing.find(Path.cwd() / name)
        if not found:
            remedy = "run it in the folder of a project, or name experiments"
            problems.add("there is nothing below configs/ and sweeps/ here", remedy=remedy)
    elif not arguments.references:
        remedy = "write `luthier check configs.lm.quickstart`, or --all for all of the project"
        problems.add("no experiment is given", remedy=remedy)
    for listed in found:
        if listed.reference not in seen:
            needs = ", ".join(listed.arguments)
            yield _Check(listed.reference, f"needs arguments ({needs})" if needs else "")


def _attempt(check: _Check, function: Any) -> None:
    """Run a part of a check, and keep its problems."""
    if check.skipped:
        return
    try:
        function()
    except UserCodeError as error:  # one line for each problem: the innermost frame, not all
        cause = error.__cause__
        place = user_code.place(cause) if cause is not None else ""
        for problem in error.problems:
            what = f"{problem.what}{f' ({place})' if place else ''}"
            check.problems.append(dataclasses.replace(problem, what=what))
    except BadInput as error:
        check.problems += error.problems
    except Exception as error:  # of the user's code, or a bug: the other configs are still checked
        place = user_code.place(error)
        what = f"{user_code.summary(error)}{f' ({place})' if place else ''}"
        remedy = f"to see the traceback: luthier train {check.reference} --dry-run --debug"
        check.problems.append(Problem(what, remedy=remedy))


def _load(check: _Check, own: project.Project) -> None:
    """Make the config of a check, and validate it."""
    graph, packages = experiments.load(
        check.reference, [], Problems(), command="check", checked=False
    )
    from luthier import graph as graphs
    from luthier.study import study as studies

    check.experiment = graph
    check.facts["kind"] = "study" if studies.is_study(graph) else "experiment"
    if studies.is_study(graph):
        from luthier.study.checks import check_study
        from luthier.study.space_checks import Editing

        check_study(graph, Editing(own.shelves, packages))
        check.experiment = graphs.get(graph, "base")
    else:
        graphs.validate(graph, packages)
    parallelism = graphs.build(graphs.get(check.experiment, "parallelism"))
    check.num_devices = parallelism.mesh.min_devices


def _plan(check: _Check, devices: Sequence[Any]) -> None:
    """Plan the experiment of a check by shapes, and read its first batches."""
    from luthier import planner, trainer
    from luthier.layers.declared import abstract_forms

    if len(devices) < check.num_devices:
        what = f"its mesh needs {check.num_devices} devices, and JAX runs with {len(devices)}"
        raise BadInput(Problem(what, "parallelism.mesh", remedy="check it in another process"))
    with abstract_forms():  # kernels of accelerators cannot be traced on a CPU
        plan = planner.make(check.experiment, devices[: check.num_devices])
        trainer.trace_evaluations(plan.program)
    check.facts["parameters"] = plan.parameters
    sets = trainer.check_data(plan)
    check.facts["rows"] = {path: rows for path, (rows, _) in sets.items()}


def _lines(check: _Check) -> list[str]:
    if check.skipped or check.problems:
        return [check.skipped] if check.skipped else [str(problem) for problem in check.problems]
    kind = "a study of " if check.facts["kind"] == "study" else ""
    on = f" on {check.num_devices} devices" if check.num_devices > 1 else ""
    return [f"{kind}{check.facts['parameters']:,} parameters{on}"]


def _to_dict(check: _Check) -> dict[str, Any]:
    return {
        "reference": check.reference,
        "status": check.status,
        **({"reason": check.skipped} if check.skipped else {}),
        "problems": [str(problem) for problem in check.problems],
        **check.facts,
    }
