"""A copy of a study in Optuna's storage, for its dashboard, written by a process of its own.

So Optuna's storage can neither slow the driver down nor stop it, and the driver need not hold ten
thousand trials. What a copy lacks is added whenever the study is driven: it can be thrown away.
"""

from __future__ import annotations

import collections
import contextlib
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
        # In Optuna's own format, so that the mirror and the importance in reports need not build
        # the space.
        "distributions": {
            named.name: distribution_to_json(distribution(named.dimension))
            for named in study.space.every()
        },
    }


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
    """Add the settings that ended to Optuna's copy; return how many were added.

    Args:
      directory: The study's folder.
    """
    import optuna

    facts = read_facts(directory)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Loaded if it exists: each call starts from what the copy holds, whoever wrote it.
    study = optuna.create_study(
        study_name=facts["name"],
        # The environment comes first (`begin`): the facts have a URL without its password.
        storage=_open_storage(directory, os.environ.get(VARIABLE) or facts["storage"]),
        directions=["minimize" if d == "lower" else "maximize" for d in facts["directions"]],
        load_if_exists=True,
    )
    # Existing trials are found by our own number, and not by Optuna's, which counts what was added
    # in whatever order, perhaps by several mirrors one after another.
    known = {
        (trial.user_attrs.get("setting"), trial.user_attrs.get("retries", 0))
        for trial in study.get_trials(deepcopy=False)
    }
    # Once, in a new copy, and only where names are unique: Optuna does not check that, and columns
    # of `Study.trials_dataframe` with the same name would be one.
    if not known and len(facts["metrics"]) == len(set(facts["metrics"])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(facts["metrics"])
    added = 0
    for setting in _ended_settings(directory):
        if (setting["setting"], setting["retries"]) not in known:
            study.add_trial(_as_trial(setting, facts))
            added += 1
    return added


def _open_storage(directory: pathlib.Path, place: str) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    if "://" in place:
        return place
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


def _ended_settings(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Return the settings that were reported to the sampler, with their outcomes."""
    from luthier.study.driver.trial_table import Ledger

    ledger, asked, found = Ledger(), {}, []
    retries: collections.Counter[int] = collections.Counter()
    for line in read_journal(directory / "journal.jsonl"):
        ledger.follow(line)
        if line["kind"] == "asked":
            asked[line["setting"]] = line
        elif line["kind"] == "told":
            setting = ledger.settings[line["setting"]]
            came = ledger.outcome_of(setting)
            assert came is not None
            trials = [ledger.trials[number] for number in setting.trials]
            reasons = [trial.reason for trial in trials if trial.reason]
            outcome = {"came": came, "reasons": reasons, "told": line["at"]}
            # A retried setting is reported once more, and a trial of Optuna cannot be changed: it
            # is added again, under the number of its retry.
            again = retries[setting.number]
            retries[setting.number] += 1
            found.append({**asked[setting.number], **outcome, "retries": again})
    return found


def _as_trial(setting: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    import datetime

    import optuna
    from optuna.distributions import json_to_distribution

    state, values = setting["came"]
    # Not NaN, which Optuna takes in no complete trial.
    is_complete = state == "complete" and all(value == value for value in values)
    # Such a trial has FAIL in Optuna; `outcome` below keeps its state here.
    kind = _STATES[state] if is_complete or state != "complete" else "FAIL"
    assignment = setting["assignment"]
    made = optuna.trial.create_trial(
        state=optuna.trial.TrialState[kind],
        params=assignment,
        distributions={
            name: json_to_distribution(facts["distributions"][name]) for name in assignment
        },
        # A pruned setting has neither values nor reports here. Optuna ranks and plots the values of
        # complete trials only, and reports are those of one trial, of which a setting may have
        # several; both stay in the journal.
        values=list(values) if is_complete else None,
        user_attrs={
            "setting": setting["setting"],
            "trials": setting["trials"],
            "words": setting["words"],
            "outcome": state,
            "reasons": setting["reasons"],
            **({"retries": setting["retries"]} if setting["retries"] else {}),
        },
        # Optuna has no state for infeasible trials; a violated constraint is how it marks them.
        constraints={"cannot run": float(state == "infeasible")},
    )
    # Set afterwards, because `create_trial` takes the time of the call. Local time without a zone,
    # as Optuna's own `datetime.now()`.
    made.datetime_start = datetime.datetime.fromtimestamp(setting["at"])
    made.datetime_complete = datetime.datetime.fromtimestamp(setting["told"])
    return made


def main(arguments: Sequence[str]) -> None:
    """Mirror a study until standard input ends, and once more after that."""
    import threading

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
