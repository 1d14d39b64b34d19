"""Studies whose home is an object store, which a server on this machine stands in for."""

import json
import re

import fiddle as fdl
import pytest
from simulated_engine import PACKAGES, FailingEngine, InstantEngine, make_study

import luthier
from luthier import study as studies
from luthier.cli import main
from luthier.errors import LockLost, RunError
from luthier.records.object_storage import HomeLock
from luthier.study import start
from luthier.study.driver.directory import find_study
from luthier.study.driver.journal import load_journal
from tests import object_stores

URL = "gs://lab/studies/toy"


@pytest.fixture
def lab(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.luthier]\npackages = ["simulated_engine"]\n')
    with object_stores.Lab(monkeypatch, tmp_path).serving() as lab:
        yield lab


class Killed(BaseException):
    """The process of a driver ends here."""


@pytest.fixture
def kill(monkeypatch):
    """Return a function that drives a study until its process is killed."""

    def drive(call, looks):
        def die(lock, waits=True):
            lock._released.set()
            lock._mirror._closing.set()
            lock._lock.release()

        with monkeypatch.context() as patch:
            # What is written after the exception, which a killed process does not write, stays on
            # a disk that nobody sees again.
            patch.setattr(HomeLock, "release", die)
            with pytest.raises(Killed):
                call(engine=FailingEngine(looks, Killed()), packages=PACKAGES)

    return drive


@pytest.fixture
def dead(monkeypatch):
    """Let all processes of this machine seem dead to those that look for them."""

    def die(waits=True):
        monkeypatch.setattr("luthier.storage.ProcessIdentity.alive", property(lambda self: False))

    return die


def lines(folder, kind):
    contents = load_journal(folder / "journal.jsonl")
    assert contents.problems == []
    return [line for line in contents.lines if line["kind"] == kind]


def uploaded(lab, name="journal.jsonl", study="studies/toy"):
    """Return the bytes of a growing file, as they are in the bucket."""
    segments = {}
    for key in sorted(lab.objects):
        if match := re.match(rf"{study}/{name}\.segments/(\d+)-(\d+)-", key):
            start = int(match[1])
            segments[start] = max(lab.objects[key], segments.get(start, b""), key=len)
    data = b""
    while len(data) in segments:
        data += segments[len(data)]
    return data


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_driver_on_an_empty_disk_continues_where_one_was_killed(lab, kill, dead, scheme):
    url = f"{scheme}://lab/studies/toy"
    graph = make_study(directory=f"{scheme}://lab/studies/", storage="optuna.journal")

    def begin(**given):
        return start.run(graph, **given)

    kill(begin, 6)
    # As the bucket is: trials that ended may have no line in it, but they have a result.
    results = {key for key in lab.objects if key.endswith("/result.json")}
    known = {int(key.split("/")[3]) for key in results}
    assert 0 < len(known) < 12
    lab.move("second")
    dead()
    engine = InstantEngine()
    outcome = start.resume(url, engine=engine, packages=PACKAGES)
    assert outcome.is_over
    assert outcome.address == url
    folder = outcome.directory
    assert folder.is_relative_to(lab.folder / "second")
    for kind in ("asked", "admitted", "ended", "told"):
        assert len(lines(folder, kind)) == 12, kind
    fences = [line["fence"] for line in lines(folder, "leased")]
    assert fences == sorted(set(fences))
    run = {trial.trial for _, work in engine.started for trial in work.trials}
    assert run == set(range(12)) - known, "no trial is run twice"
    (notice,) = (line["notice"] for line in lines(folder, "noted"))
    assert notice.startswith(f"took over {url}/ from a process on ")
    assert uploaded(lab) == (folder / "journal.jsonl").read_bytes()
    names = {key.removeprefix("studies/toy/").partition(".pieces/")[0] for key in lab.objects}
    assert {"study.json", "source.tar.gz", "optuna.journal", "report.html"} <= names
    assert not any(re.match("source/|lock|optuna.lock", name) for name in names)
    # A study with the same history on one disk suggests the same.
    local = start.run(make_study(), engine=InstantEngine(), packages=PACKAGES)
    words = [setting.words for setting in local.ledger.settings]
    assert [setting.words for setting in outcome.ledger.settings] == words


def make_study_in_store(**settings):
    return make_study(directory="gs://lab/studies", engine=fdl.Config(InstantEngine), **settings)


def test_paused_trials_are_promoted_on_another_machine(lab, kill, dead):
    rungs = {"scheduler": fdl.Config(studies.Asha, num_rungs=3, reduction=2)}
    graph = make_study_in_store(**rungs)
    kill(lambda **given: start.run(graph, **given), 12)
    before = json.loads("[" + ",".join(uploaded(lab).decode().splitlines()) + "]")
    reached = {line["trial"] for line in before if line["kind"] == "reached"}
    assert reached
    lab.move("second")
    dead()
    outcome = start.resume(URL, engine=InstantEngine(), packages=PACKAGES)
    assert outcome.is_over
    assert len(lines(outcome.directory, "ended")) == 12
    promoted = {line["trial"] for line in lines(outcome.directory, "promoted")}
    reports = [(line["trial"], line["rung"]) for line in lines(outcome.directory, "reached")]
    assert len(reports) == len(set(reports)), "each rung is reached once"
    assert promoted & reached
    states = {trial.state for trial in outcome.ledger.trials}
    assert states == {"complete", "pruned"}


def test_two_drivers_of_one_study_are_refused_but_one(lab, capfd, monkeypatch):
    start.run(make_study_in_store(), packages=PACKAGES)
    monkeypatch.setattr("luthier.records.object_storage.lease._LOOK_SECONDS", 0.1)
    with find_study(URL).lock() as lock:
        lab.move("second")
        capfd.readouterr()
        assert main(["sweep", "--resume", URL, "budget.trials=14"]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert re.search(
            rf"{URL}/ is written by process \d+ of this machine; end it, or give", line
        )
        # On another machine the lease alone shows that somebody drives it.
        with monkeypatch.context() as patch:
            patch.setattr("luthier.storage.ProcessIdentity.here", property(lambda self: False))
            lock._lease.renew()
            patch.setattr("time.sleep", lambda seconds: lock._lease.renew())
            with pytest.raises(RunError, match=r"is written by another process, on .*; end it, or"):
                find_study(URL).lock()
            assert main(["sweep", "show", URL]) == 0
            assert "driven by process " in capfd.readouterr().out


def test_a_driver_that_was_taken_over_writes_nothing_more(lab, monkeypatch):
    graph = make_study(directory="gs://lab/studies")

    class Taken(InstantEngine):
        def events(self, timeout):
            writer = json.loads(lab.objects["studies/toy/writer.json"])
            another = json.dumps(writer | {"token": "another", "host": "other"}).encode()
            lab.objects["studies/toy/writer.json"] = another
            monkeypatch.setattr("luthier.records.object_storage.lease.LEASE_SECONDS", 0.0)
            return super().events(timeout)

    with pytest.raises(LockLost, match=f"{URL}/ was taken over by another process on other"):
        start.run(graph, engine=Taken(), packages=PACKAGES)
    assert b'"closed"' not in uploaded(lab)
    assert json.loads(lab.objects["studies/toy/writer.json"])["host"] == "other"


def test_reading_commands_take_the_url_of_a_study(lab, capsys, tmp_path):
    outcome = luthier.sweep(make_study_in_store())
    best = outcome.best
    assert outcome.notices == [f"report: {URL}/report.html"]
    lab.move("second")
    table = studies.load(URL)
    assert len(table) == len(studies.load("toy", "gs://lab/studies")) == 12
    assert table[3]["directory"] == f"{URL}/trials/0003"
    assert main(["sweep", "show", URL]) == 0
    assert "toy: 12 of 12 trials ended" in capsys.readouterr().out
    assert main(["sweep", "show", f"{URL}/3"]) == 0
    assert f"folder: {URL}/trials/0003" in capsys.readouterr().out
    assert main(["sweep", "show", URL, "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    assert main(["sweep", "show", URL, "--html", "report.html"]) == 0
    assert f"study:{URL}" in (tmp_path / "report.html").read_text()
    assert main(["sweep", "best", URL]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == best
    assert main(["diff", f"study:{URL}/1", f"study:{URL}/2"]) == 0
    assert main(["sweep", "repair", URL]) == 0
    assert "is not damaged" in capsys.readouterr().out
    assert main(["sweep", "show", "gs://lab/studies/tory"]) == 2
    assert "there is no study 'gs://lab/studies/tory'; did you mean toy?" in (
        capsys.readouterr().err
    )
    # The driver on the second machine goes on with a larger budget, and the first one sees it.
    longer = luthier.sweep(URL, overrides=["budget.trials=14"], resume=True)
    assert len(longer.ledger.trials) == 14
    lab.move("first")
    assert len(studies.load(URL)) == 14


def test_a_study_of_another_project_needs_consent(lab, capsys, tmp_path, monkeypatch):
    start.run(make_study_in_store(), packages=PACKAGES)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("LUTHIER_TRUST")  # of the folder of all tests
    (tmp_path / "elsewhere" / "pyproject.toml").write_text("[tool.luthier]\n")
    lab.move("second")
    assert main(["sweep", "--resume", URL]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{URL} was not made in this project" in line
    assert line.endswith(f"add: --trust {URL}")
    again = ["sweep", "--resume", URL, "budget.trials=13"]
    assert main([*again, "--trust", "gs://lab/studies"]) == 0
    lab.move("third")
    monkeypatch.setenv("LUTHIER_TRUST", f"/elsewhere:{URL}")
    assert main([*again[:3], "budget.trials=14"]) == 0


def test_a_start_that_the_store_refuses_leaves_no_study(lab, dead):
    lab.refusals["studies/toy/study.json"] = 403
    with pytest.raises(RunError, match="refused by the test"):
        start.run(make_study_in_store(), packages=PACKAGES)
    lab.refusals.clear()
    lab.move("second")
    dead()
    assert start.run(make_study_in_store(), packages=PACKAGES).is_over
