"""Whatever line of a journal is lost is reported, refused and repaired; the study is the same."""

import json
import re
import shutil

import fiddle as fdl
import optuna
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.cli import main
from luthier.errors import RunError, VersionError
from luthier.storage import list_trash, seal
from luthier.study.driver import load_journal, read_journal, repair_journal
from luthier.study.views import read_status


def _study(directory, **settings):
    settings = {"budget": fdl.Config(studies.Budget, trials=8), **settings}
    return toys.make_study("tpe", directory=str(directory), **settings)


def _engine():
    return toys.InstantEngine(ends={3: ["infeasible"], 5: ["lost", "complete"]})


def _run(directory, **settings):
    study = _study(directory, **settings)
    return studies.run(study, packages=toys.PACKAGES, engine=_engine()).directory


def _outcome(path):
    ledger = read_status(path).ledger
    return [
        (t.number, t.setting, t.state, t.values, t.copy_of, ledger.settings[t.setting].words)
        for t in ledger.trials
    ]


def _facts(path):
    """What a sampler and a pruner go by: without times, and in the order of its kind."""
    found = {}
    for line in read_journal(path / "journal.jsonl"):
        line = {k: v for k, v in line.items() if k not in ("at", "repaired")}
        if line["kind"] in ("asked", "ended", "told", "reported"):
            found.setdefault(line["kind"], []).append(line)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    pruner = fdl.Config(optuna.pruners.MedianPruner, n_startup_trials=1)
    return _run(tmp_path_factory.mktemp("studies"), pruner=pruner)


DAMAGES = {
    "nuls": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "garbage": lambda line: b"\x93\xff}{]\n",
    "missing": lambda line: b"",
    "changed": lambda line: line.replace(b"1", b"2", 1),
}


KINDS = ("asked", "admitted", "leased", "reported", "ended", "told")


@pytest.mark.parametrize(
    ("kind", "damage"),
    [*((kind, "missing") for kind in KINDS), *(("ended", d) for d in DAMAGES if d != "missing")],
)
def test_a_lost_line_is_reported_refused_and_made_again(undisturbed, tmp_path, kind, damage):
    path = tmp_path / "toy"
    shutil.copytree(undisturbed, path)
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line][4]
    lines[at] = DAMAGES[damage](lines[at])
    journal.write_bytes(b"".join(lines))
    damaged = journal.read_bytes()

    assert read_status(path).problems
    with pytest.raises(RunError, match=r"`luthier sweep repair .*toy` makes it again"):
        studies.resume(str(path), engine=_engine())
    assert journal.read_bytes() == damaged

    repaired = repair_journal(str(path))
    assert repaired.problems
    (kept,) = list_trash(path)
    assert kept.path.read_bytes() == damaged
    assert load_journal(journal).problems == []
    assert _facts(path) == _facts(undisturbed)
    assert studies.resume(str(path), engine=_engine()).is_over
    assert _outcome(path) == _outcome(undisturbed)
    assert repair_journal(str(path)).problems == []


RUNG_KINDS = ("reached", "paused", "promoted", "leased", "reported", "ended", "told")


@pytest.fixture(scope="module")
def with_rungs(tmp_path_factory):
    scheduler = fdl.Config(studies.Asha, num_rungs=3)
    study = _study(tmp_path_factory.mktemp("rungs"), scheduler=scheduler)
    study.base.steps = 9
    engine = toys.InstantEngine()
    return studies.run(study, packages=toys.PACKAGES, engine=engine).directory


@pytest.fixture(scope="module")
def with_larger_budget(tmp_path_factory):
    """A study that was over after nine trials, and was resumed with a budget of 24."""
    study = toys.make_study("random", directory=str(tmp_path_factory.mktemp("larger")))
    study.scheduler, study.base.steps = fdl.Config(studies.Asha, num_rungs=3), 9
    study.budget, engine = fdl.Config(studies.Budget, trials=9), toys.InstantEngine()
    directory = studies.run(study, packages=toys.PACKAGES, engine=engine).directory
    study.budget = fdl.Config(studies.Budget, trials=24)
    studies.resume(str(directory), study, packages=toys.PACKAGES, engine=engine)
    lines = list(read_journal(directory / "journal.jsonl"))
    again = [line["kind"] for line in lines].index("reopened")
    reopened = {line["trial"] for line in lines if line["kind"] == "reopened"}
    assert reopened & {line["trial"] for line in lines[again:] if line["kind"] == "leased"}
    return directory


@pytest.mark.parametrize(
    ("study", "kind"),
    [
        *(("with_rungs", kind) for kind in RUNG_KINDS),
        *(("with_larger_budget", kind) for kind in (*RUNG_KINDS, "reopened")),
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_a_lost_line_of_a_study_with_rungs_is_made_again(request, tmp_path, study, kind, place):
    with_rungs = request.getfixturevalue(study)
    path = tmp_path / "toy"
    shutil.copytree(with_rungs, path)
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    del lines[[i for i, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line][place]]
    journal.write_bytes(b"".join(lines))

    assert repair_journal(str(path)).problems
    kinds = ("reached", "paused", "promoted")

    def decisions(path):
        lines = read_journal(path / "journal.jsonl")
        times = ("at", "repaired", "device_seconds", "spent", "fraction")
        return [
            {name: value for name, value in line.items() if name not in times}
            for line in lines
            if line["kind"] in kinds
        ]

    assert load_journal(journal).problems == []
    assert studies.resume(str(path), engine=toys.InstantEngine()).is_over
    assert _outcome(path) == _outcome(with_rungs)
    # A lost line `paused` follows from the lines around it, which imply the same.
    kept = [one for one in decisions(with_rungs) if kind != "paused" or one["kind"] != "paused"]
    assert [one for one in decisions(path) if kind != "paused" or one["kind"] != "paused"] == kept


def _without_checks(path):
    """Make a journal one of an earlier version, without numbers and checksums."""
    lines = []
    for raw in (path / "journal.jsonl").read_bytes().splitlines():
        line = json.loads(raw)
        for name in ("n", "crc", "format"):
            line.pop(name, None)
        lines.append(json.dumps(line))
    for trial in (path / "trials").iterdir():
        found = json.loads((trial / "assignment.json").read_text())
        (trial / "assignment.json").write_text(
            json.dumps({"trial": found["trial"], "words": found["words"]})
        )
    return lines


@pytest.mark.parametrize("kind", ["asked", "ended"])
def test_a_lost_line_of_a_journal_without_checksums_is_made_again(undisturbed, tmp_path, kind):
    path = tmp_path / "toy"
    shutil.copytree(undisturbed, path)
    lines = _without_checks(path)
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    assert read_status(path).problems == []
    assert _outcome(path) == _outcome(undisturbed)
    at = [i for i, line in enumerate(lines) if f'"kind": "{kind}"' in line][4]
    del lines[at]
    (path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match="luthier sweep repair"):
        studies.resume(str(path), engine=_engine())
    assert repair_journal(str(path)).problems
    assert studies.resume(str(path), engine=_engine()).is_over
    assert _outcome(path) == _outcome(undisturbed)


def test_a_lost_journal_is_made_again_from_the_trials(undisturbed, tmp_path):
    path = tmp_path / "toy"
    shutil.copytree(undisturbed, path)
    (path / "journal.jsonl").unlink()
    with pytest.raises(RunError, match=r"is empty or missing, but trials have ended; .*repair"):
        studies.resume(str(path), engine=_engine())
    assert repair_journal(str(path)).old is None
    assert studies.resume(str(path), engine=_engine()).is_over
    expected = {row[0]: row for row in _outcome(undisturbed)}
    assert {row[0]: row for row in _outcome(path)} == expected


def test_a_torn_result_of_one_trial_does_not_block_the_study(tmp_path):
    """Its driver was killed while a trial ran, and the disk lost half of the trial's result."""
    engine = toys.FailingEngine(3, RuntimeError("killed"))
    with pytest.raises(RuntimeError, match="killed"):
        studies.run(_study(tmp_path), packages=toys.PACKAGES, engine=engine)
    path = tmp_path / "toy"
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_bytes().splitlines()]
    ended = next(i for i, line in enumerate(lines) if line["kind"] == "ended")
    kept = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)[:ended]
    (path / "journal.jsonl").write_bytes(b"".join(kept))  # as of a driver killed by SIGKILL
    result = path / "trials" / "0000" / "result.json"
    result.write_bytes(result.read_bytes()[:40])
    assert studies.resume(str(path), engine=_engine()).is_over
    ledger = read_status(path).ledger
    assert ledger.count("complete", "infeasible") == 8
    assert any("trial 0 runs again" in notice for notice in ledger.notices)


@pytest.fixture(scope="module")
def retried(tmp_path_factory):
    """A study that stopped because trials failed, and went on with them after a retry."""
    broken = {number: ["broken"] for number in (3, 5, 6, 7)}
    engine = toys.InstantEngine(ends={2: ["lost"], **broken})
    study = _study(
        tmp_path_factory.mktemp("retried"),
        budget=fdl.Config(studies.Budget, trials=9, failures=3),
    )
    stopped = studies.run(study, packages=toys.PACKAGES, engine=engine)
    assert stopped.stopped_by == "failures"
    studies.resume(str(stopped.directory), engine=toys.InstantEngine(), retry="failed:boom")
    return stopped.directory


def _of_trial(kind, trial, which=0):
    def find(lines):
        found = [line["kind"] == kind and line["trial"] == trial for line in lines]
        return [index for index, is_it in enumerate(found) if is_it][which]

    return find


LATER = {
    "how a trial failed": [_of_trial("ended", 5)],
    "that it was retried": [_of_trial("retried", 5)],
    "its second lease": [_of_trial("leased", 5, 1)],
    "its second end": [_of_trial("ended", 5, 1)],
    "all of its second life": [
        _of_trial("retried", 5),
        _of_trial("leased", 5, 1),
        _of_trial("ended", 5, 1),
    ],
    "a death of its worker": [_of_trial("lost", 2)],
    "why the study stopped": [lambda lines: next(i for i, x in enumerate(lines) if "stopped" in x)],
}


@pytest.mark.parametrize("what", LATER)
def test_commands_report_a_damaged_journal_and_repair_it(
    retried, tmp_path, monkeypatch, capsys, what
):
    path = tmp_path / "toy"
    shutil.copytree(retried, path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    monkeypatch.chdir(tmp_path)
    journal = path / "journal.jsonl"
    raw = journal.read_bytes().splitlines(keepends=True)
    lines = [json.loads(line) for line in raw]
    places = [find(lines) for find in LATER[what]]
    for place in places:
        middle = len(raw[place]) // 2
        raw[place] = raw[place][:middle] + b"\0\0\0" + raw[place][middle + 3 :]
    journal.write_bytes(b"".join(raw))
    for words in (["show", "toy"], ["best", "toy"], ["show", "toy", "--html", "report.html"]):
        assert main(["sweep", *words]) == 0
        first = capsys.readouterr().err.splitlines()[0]
        assert f"line {places[0] + 1} is damaged" in first
        assert first.endswith("`luthier sweep repair toy` repairs it")
    assert (tmp_path / "report.html").stat().st_size > 1000

    assert main(["sweep", "repair", "toy"]) == 0
    summary = capsys.readouterr().out.splitlines()[-2]
    assert re.match(r"repaired: \d+ lines kept, [0-4] rebuilt from .*, [01] dropped; the", summary)
    assert load_journal(journal).problems == []
    assert _outcome(path) == _outcome(retried)

    def ends(directory):
        found = read_journal(directory / "journal.jsonl")
        return [(x["trial"], x["outcome"]) for x in found if x["kind"] == "ended"]

    assert sorted(ends(path)) == sorted(ends(retried))
    again = studies.resume(str(path), engine=toys.InstantEngine())
    assert again.is_over
    assert _outcome(path) == _outcome(retried)
    assert main(["sweep", "repair", "toy"]) == 0
    assert capsys.readouterr().out.endswith("journal.jsonl is not damaged; nothing to repair\n")


def _is_refused(words, capsys):
    assert main(words) == 2
    lines = set(capsys.readouterr().err.splitlines())
    assert 1 <= len(lines) <= 2, "of both operands"
    for line in lines:
        assert "was written by a later luthier (format 99, known: " in line
        assert line.endswith("; update luthier; nothing was changed")


@pytest.mark.parametrize("name", ["facts", "assignment", "result", "journal"])
def test_files_of_a_later_version_are_refused_and_what_it_adds_is_ignored(
    undisturbed, tmp_path, monkeypatch, capsys, name
):
    path = tmp_path / "studies" / "toy"
    shutil.copytree(undisturbed, path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if b'"kind":"ended"' in line)
    show, best = ["sweep", "show", "toy"], ["sweep", "best", "toy"]
    report = [*show, "--html", "report.html"]
    repairing, diff = ["sweep", "repair", "toy"], ["diff", "study:toy/0", "study:toy/1"]
    if name == "journal":
        extra = json.dumps({"kind": "invented", "at": 1.0, "future": 1}).encode()
        plain = journal.read_bytes()
        journal.write_bytes(plain + seal(extra, len(lines)))
        files, refused = [], [show, best, report, repairing, diff]
    else:
        place = {"facts": path, "assignment": path / "trials/0000", "result": path / "trials/0000"}
        files = [place[name] / f"{name}.json"]
        refused = {"facts": [show, best, report, diff], "assignment": [diff]}.get(name, [])
        _add(files[0], future=[1])
    assert load_journal(journal).problems == []
    assert main(show) == main(best) == main(report) == main(diff) == 0
    assert _outcome(path) == _outcome(undisturbed)
    if name == "result":  # as of a driver that was killed by SIGKILL
        journal.write_bytes(b"".join(lines[:end]))
    elif name == "assignment":
        journal.write_bytes(b"".join(line for line in lines if b'"kind":"asked"' not in line))
        refused += [repairing]
    capsys.readouterr()

    for file in files:
        _add(file, format=99)
    if name == "journal":
        journal.write_bytes(plain + seal(extra, len(lines), 99))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for words in refused:
        _is_refused(words, capsys)
    if name in ("result", "journal"):
        with pytest.raises(VersionError, match="format 99"):
            studies.resume(str(path), engine=_engine())
    if name == "result":
        (path / "journal.jsonl").write_bytes(b"".join(lines[:end] + lines[end + 1 :]))
        before[journal] = journal.read_bytes()
        _is_refused(repairing, capsys)
    now = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert {k: v for k, v in now.items() if k.name != "lock"} == {
        k: v for k, v in before.items() if k.name != "lock"
    }


def _add(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
