"""A copy of a study in Optuna's storage, for its dashboard, written by a process of its own.

So Optuna's storage can neither slow the driver down nor stop it, and the driver need not hold ten
thousand trials. What a copy lacks is added whenever the study is driven: it can be thrown away.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from luthier import environment
from luthier.errors import BadInput, Problem, RunError
from luthier.records.redaction import redact
from luthier.storage import Lock, read_json
from luthier.study.driver.journal import read_journal

if TYPE_CHECKING:  # it imports JAX, which views and the mirror do without
    from luthier.study.study import Study

VARIABLE = "LUTHIER_STORAGE"
"""The variable of the environment with the URL of a storage that must not be recorded."""
FACTS = "facts.json"
FACTS_FORMAT = 1
"""The format of facts.json; a file without one is of format 1."""
_STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "infeasible": "PRUNED", "failed": "FAIL"}
_COPY_FORMAT = 2
"""The format of Optuna's copy; in format 1 powers of two and choices were exponents and indices."""
_POLL_SECONDS = 1.0
_HIDDEN = re.compile(r"\*\*\*|\[[A-Z][A-Z_]+\]")  # what `redact` leaves


def study_facts(study: Study) -> dict[str, Any]:
    """Return the facts of a study for those that do not build it, as plain JSON.

    Args:
      study: The study.
    """
    from optuna.distributions import distribution_to_json

    from luthier.study.driver.sampling import distribution

    return {
        "format": FACTS_FORMAT,
        "name": study.name,
        "storage": None if study.storage is None else redact(study.storage),
        "trials": study.budget.num_trials,
        "directions": [objective.direction for objective in study.objectives],
        "metrics": [objective.name for objective in study.objectives],
        "rungs": None if study.scheduler is None else study.scheduler.num_rungs,
        "horizon": None if study.scheduler is None else study.scheduler.horizon,
        "constraints": [constraint.name for constraint in study.space.bounds],
        # In Optuna's own format, so that the mirror and the importance in reports need not build
        # the space.
        "distributions": {
            named.name: distribution_to_json(distribution(named.dimension))
            for named in study.space.every()
        },
        # The same as people read it: numbers and labels in place of exponents and indices.
        "shown": {named.name: shown_dimension(named.dimension) for named in study.space.every()},
    }


def shown_dimension(dimension: Any) -> dict[str, Any]:
    """Return a distribution of values as they stand in the config, with the stored choice of each.

    Args:
      dimension: The dimension.

    Returns:
      The `distribution` as JSON, and as `values` pairs of a stored choice and its value; None where
      a choice is stored as its value.
    """
    from optuna.distributions import (
        CategoricalDistribution,
        IntDistribution,
        distribution_to_json,
    )

    from luthier.study.driver.sampling import distribution
    from luthier.study.space import Choice, Option, Ordinal, Pow2, Zipped

    def label(value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        return (value if isinstance(value, Option) else Option(value)).label

    if isinstance(dimension, Pow2):
        pairs = [(exponent, dimension.value(exponent)) for exponent in dimension.exponents]
        natural: Any = IntDistribution(dimension.low, dimension.high, log=True)
    elif isinstance(dimension, Choice | Ordinal | Zipped):
        if isinstance(dimension, Choice):
            options = dimension.all_options
            labels = [label(o if o.name or o.overrides else o.value) for o in options]
        elif isinstance(dimension, Ordinal):
            labels = [label(value) for value in dimension.values]
        else:
            rows = dimension.rows
            labels = [", ".join(f"{k}={label(v)}" for k, v in row.items()) for row in rows]
        if len(set(labels)) < len(labels):  # to Optuna 1, 1.0 and True are one option
            labels = [f"{index}: {one}" for index, one in enumerate(labels)]
        pairs, natural = list(enumerate(labels)), CategoricalDistribution(labels)
    else:
        json = distribution_to_json(distribution(dimension))
        return {"distribution": json, "values": None}
    return {"distribution": distribution_to_json(natural), "values": pairs}


def shown_value(shown: Mapping[str, Any], stored: Any) -> Any:
    """Return a choice as the config has it: a number or a label.

    Args:
      shown: The dimension's entry in `shown` of the facts; empty for those of an older luthier.
      stored: The stored choice.
    """
    values = shown.get("values")
    return stored if values is None else next(value for at, value in values if at == stored)


def read_facts(directory: pathlib.Path) -> dict[str, Any]:
    """Read the facts of a study that `study_facts` returned; empty where they are missing.

    Args:
      directory: The study's folder.

    Raises:
      RunError: It is damaged, or cannot be read.
      VersionError: It was written by a later luthier.
    """
    found: dict[str, Any] = read_json(directory / FACTS, {}, newest=FACTS_FORMAT)
    return found


def storage_of(study: Study) -> str | None:
    """Return where Optuna's copy is kept; a password that was not recorded is asked for.

    Args:
      study: The study.

    Raises:
      BadInput: The password is nowhere.
    """
    if study.storage is None or not _HIDDEN.search(study.storage):
        return study.storage
    if found := os.environ.get(VARIABLE):
        return found
    what = f"was recorded without its password ({study.storage})"
    remedy = f"give it again, as storage=URL or by the environment ({VARIABLE}=URL)"
    raise BadInput(Problem(what, "storage", remedy=f"{remedy}, or no copy: storage=None"))


def begin(directory: pathlib.Path, storage: str) -> subprocess.Popen[bytes]:
    """Start the process that mirrors a study while it is driven.

    Args:
      directory: The study's folder.
      storage: Where the copy is kept; passed in the environment, because it may hold a password.
    """
    command = [sys.executable, "-m", "luthier.study.driver.mirror", str(directory)]
    with open(directory / "optuna.log", "ab") as log:
        variables = {**os.environ, VARIABLE: storage}
        # The pipe is never written to: its end, also by the driver's death, is the signal to
        # finish.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=variables
        )


def update_mirror(directory: pathlib.Path) -> int:
    """Bring Optuna's copy up to date; return how many settings ended since it was last.

    Args:
      directory: The study's folder.

    Raises:
      RunError: The storage has a study of the same name that luthier did not write.
    """
    import optuna

    facts = read_facts(directory)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # The environment comes first (`begin`): the facts have a URL without its password.
    storage = _open_storage(directory, os.environ.get(VARIABLE) or facts["storage"])
    study, known = _open_study(storage, facts)
    # Once, in a new copy, and only where names are unique: Optuna does not check that, and columns
    # of `Study.trials_dataframe` with the same name would be one.
    if not known and len(facts["metrics"]) == len(set(facts["metrics"])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(facts["metrics"])
    ended = 0
    # A trial that restarts for each rung reports the same steps again, which Optuna refuses: its
    # values at the rungs are the comparable ones.
    kind = "reached" if facts.get("horizon") == "rung" else "reported"
    for setting in _started_settings(directory, kind):
        trial = known.get((setting["setting"], setting["retries"]))
        if trial is None:
            study.add_trial(_as_trial(setting, facts))
        elif not trial.state.is_finished():
            _follow(storage, study, trial, setting, facts)
        else:
            continue
        ended += setting["came"] is not None
    return ended


def _open_study(storage: Any, facts: Mapping[str, Any]) -> tuple[Any, dict[tuple[int, int], Any]]:
    """Return Optuna's study, and its trials by our setting and the number of its retry."""
    import optuna

    def opened() -> Any:
        # Loaded if it exists: each call starts from what the copy holds, whoever wrote it.
        return optuna.create_study(
            study_name=facts["name"],
            storage=storage,
            # Nothing is suggested here, but Optuna asks the sampler when a trial ends.
            sampler=optuna.samplers.RandomSampler(),
            directions=["minimize" if d == "lower" else "maximize" for d in facts["directions"]],
            load_if_exists=True,
        )

    study = opened()
    trials = study.get_trials(deepcopy=False)
    if any("setting" not in trial.user_attrs for trial in trials):
        what = f"{facts['storage']} has a study {facts['name']!r} that luthier did not write"
        remedy = "give storage= another place, or name= another name"
        raise RunError(Problem(what, "storage", remedy=remedy))
    if study.user_attrs.get("luthier_format") != _COPY_FORMAT:
        if trials:  # of an older luthier, with indices in place of values
            optuna.delete_study(study_name=facts["name"], storage=storage)
            study, trials = opened(), []
        study.set_user_attr("luthier_format", _COPY_FORMAT)
    # Existing trials are found by our own number, and not by Optuna's, which counts what was added
    # in whatever order, perhaps by several mirrors one after another.
    return study, {(t.user_attrs["setting"], t.user_attrs.get("retries", 0)): t for t in trials}


def _open_storage(directory: pathlib.Path, place: str) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    if "://" in place:
        return optuna.storages.get_storage(place)
    path = directory / place
    _mend(path)
    # A lock by O_EXCL instead of the default by symbolic links, which some file systems do not
    # have.
    backend = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
    return optuna.storages.JournalStorage(backend)


def _mend(path: pathlib.Path) -> None:
    """Cut off a torn last line, to which Optuna would glue its next one."""
    if path.is_file() and not (data := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
    with contextlib.suppress(FileNotFoundError):
        path.with_name(f"{path.name}.lock").unlink()  # of a mirror that was killed: ours counts


def _started_settings(directory: pathlib.Path, report: str) -> list[dict[str, Any]]:
    """Return the settings that run or were reported to the sampler, with reports and outcomes.

    Args:
      directory: The study's folder.
      report: The kind of the lines of the journal that are reports.
    """
    from luthier.study.driver.trial_table import Ledger

    ledger = Ledger()
    asked: dict[int, dict[str, Any]] = {}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    retries: collections.Counter[int] = collections.Counter()

    def entry(number: int, at: float) -> dict[str, Any]:
        # A retried setting is reported once more, and a trial of Optuna that ended cannot be
        # changed: it is added again, under the number of its retry.
        again = retries[number]
        new: dict[str, Any] = {"came": None, "reasons": [], "reports": {}, "started": at}
        return found.setdefault((number, again), {**asked[number], **new, "retries": again})

    for line in read_journal(directory / "journal.jsonl"):
        ledger.follow(line)
        kind = line["kind"]
        if kind == "asked":
            asked[line["setting"]] = line
        elif kind == "leased":
            entry(ledger.trials[line["trial"]].setting, line["at"])
        elif kind == report:
            setting = entry(ledger.trials[line["trial"]].setting, line["at"])
            setting["reports"].setdefault(line["trial"], {})[line["step"]] = line["value"]
        elif kind == "told":
            setting = ledger.settings[line["setting"]]
            came = ledger.outcome_of(setting)
            assert came is not None
            trials = [ledger.trials[number] for number in setting.trials]
            reasons = [trial.reason for trial in trials if trial.reason]
            # A setting that never ran (infeasible, or a copy) starts when it was suggested.
            outcome = {"came": came, "reasons": reasons, "reported": line["at"]}
            outcome["violations"] = ledger.violations_of(setting)
            entry(setting.number, asked[setting.number]["at"]).update(outcome)
            retries[setting.number] += 1
    return list(found.values())


def _reports(setting: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[int, float]:
    """Return value by step: of several seeds the mean, where all of them have reported."""
    if len(facts["directions"]) > 1:
        return {}  # Optuna has none for several objectives
    series = list(setting["reports"].values())
    if not series or (len(series) < len(setting["trials"]) and setting["came"] is None):
        return {}
    steps = sorted(set.intersection(*map(set, series)))
    return {step: sum(values[step] for values in series) / len(series) for step in steps}


def _outcome(setting: Mapping[str, Any]) -> tuple[str, list[float] | None]:
    """Return the name of Optuna's state, and the values."""
    if setting["came"] is None:
        return "RUNNING", None
    state, values = setting["came"]
    # Not NaN, which Optuna takes in no complete trial.
    is_complete = state == "complete" and all(value == value for value in values)
    # Such a trial has FAIL in Optuna; the attribute `outcome` keeps its state here.
    kind = _STATES[state] if is_complete or state != "complete" else "FAIL"
    return kind, list(values) if is_complete else None


def _attributes(setting: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: setting[name] for name in ("setting", "trials", "words")}
    if setting["retries"]:
        found["retries"] = setting["retries"]
    if setting["came"] is not None:
        found |= {"outcome": setting["came"][0], "reasons": setting["reasons"]}
    return found


# Optuna has no state for infeasible trials; a violated constraint is how it marks them.
_CONSTRAINT = "cannot run"


def _constraints(setting: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the violation of each constraint by name; above zero is infeasible."""
    if setting["came"] is None:
        return {}
    # None of a setting that is not complete; an older study has no constraints in its facts.
    found = dict(zip(facts.get("constraints", ()), setting["violations"], strict=False))
    return {_CONSTRAINT: float(setting["came"][0] == "infeasible"), **found}


def _as_trial(setting: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    import datetime

    import optuna
    from optuna.distributions import json_to_distribution

    kind, values = _outcome(setting)
    reports = _reports(setting, facts)
    if kind == "PRUNED" and reports:  # as Optuna does it for trials of its own
        values = [reports[max(reports)]]
        values = None if math.isnan(values[0]) else values
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[kind],
        params={
            name: shown_value(facts["shown"][name], at)
            for name, at in setting["assignment"].items()
        },
        distributions={
            name: json_to_distribution(facts["shown"][name]["distribution"])
            for name in setting["assignment"]
        },
        values=values,
        intermediate_values=reports,
        user_attrs=_attributes(setting),
        constraints=_constraints(setting, facts),
    )
    # Set afterwards, because `create_trial` takes the time of the call. Local time without a zone,
    # as Optuna's own `datetime.now()`.
    made.datetime_start = datetime.datetime.fromtimestamp(setting["started"])
    if setting["came"] is not None:
        made.datetime_complete = datetime.datetime.fromtimestamp(setting["reported"])
    return made


def _follow(
    storage: Any,
    study: Any,
    trial: Any,
    setting: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    """Add what came since to a trial that ran at the last look."""
    import optuna

    # `Study.tell` alone adds neither reports nor attributes; `Trial` wants the storage's identity.
    number = storage.get_study_id_from_name(study.study_name)
    running = optuna.trial.Trial(
        study, storage.get_trial_id_from_study_id_trial_number(number, trial.number)
    )
    for step, value in _reports(setting, facts).items():
        if step not in trial.intermediate_values:
            running.report(value, step)
    if setting["came"] is None:
        return
    for name, value in _attributes(setting).items():
        running.set_user_attr(name, value)
    for name, amount in _constraints(setting, facts).items():
        running.set_constraint(name, amount)
    kind, values = _outcome(setting)
    study.tell(trial.number, values, state=optuna.trial.TrialState[kind])


def main(arguments: Sequence[str]) -> None:
    """Mirror a study until standard input ends, and once more after that."""
    import threading

    environment.collect_rarely()
    os.nice(10)  # the copy may come later than what trains on the same cores
    directory = pathlib.Path(arguments[0])
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        lock = Lock(directory / "optuna.lock", patience_seconds=30.0)
    # Another mirror is still at its last look: it adds what there is, and the next driver what is
    # left.
    except RunError:
        return
    with lock:
        # The size stands for the contents: the journal is only appended to, and `repair` needs the
        # study's lock.
        size, pause = -1, _POLL_SECONDS
        while True:
            # The end is noticed before the last look, so that what the driver wrote last is in the
            # copy.
            was_over = is_over.wait(pause)
            now = os.stat(directory / "journal.jsonl").st_size
            if now != size:
                start = time.monotonic()
                try:
                    update_mirror(directory)
                except Exception:
                    print(redact(traceback.format_exc()), file=sys.stderr)
                    # Without a further attempt: the driver notes the failure, and the study goes on
                    # without its copy.
                    raise SystemExit(1) from None
                size = now
                # Each look reads everything anew, so that it is worth less and less often: at most
                # about a twentieth of the time goes into looks. The end of the driver cuts a pause
                # short.
                pause = max(_POLL_SECONDS, 20 * (time.monotonic() - start))
            if was_over:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
