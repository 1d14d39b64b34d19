"""What a study must not write down: passwords of its storage, and secrets of its environment."""

import dataclasses

import optuna
import pytest
import simulated_engine as toys

from luthier import graph as graphs
from luthier import study as studies
from luthier.errors import BadInput
from luthier.study.driver import StudyDirectory

SECRET = "hunter2-and-more"
VARIABLE = "LUTHIER_STORAGE"


class Failing(toys.InstantEngine):
    """Says a secret where a trial ends."""

    def events(self, timeout):
        return [
            dataclasses.replace(event, reason=f"could not log in with {SECRET}")
            if getattr(event, "outcome", "") == "failed"
            else event
            for event in super().events(timeout)
        ]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///file:{tmp_path}/all.db?token={SECRET}&uri=true"


def _study(tmp_path, **settings):
    return toys.make_study(directory=str(tmp_path / "studies"), **settings)


def _holding(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def _count(url):
    return len(optuna.load_study(study_name="toy", storage=url).trials)


@pytest.mark.full
def test_a_password_in_the_storage_is_used_and_not_recorded(tmp_path, url):
    graph = graphs.apply(_study(tmp_path), [f"storage={url!r}"])
    outcome = studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert _count(url) == 12
    assert _holding(tmp_path / "studies") == []
    recorded = StudyDirectory(outcome.directory).read_study()
    assert recorded.storage == f"sqlite:///file:{tmp_path}/all.db?token=***&uri=true"


@pytest.mark.full
@pytest.mark.parametrize("given", ["by the environment", "by an override"])
def test_a_study_goes_on_when_the_password_is_given_again(tmp_path, url, given, monkeypatch):
    halting = toys.FailingEngine(4, RuntimeError(SECRET))
    with pytest.raises(RuntimeError):
        studies.run(_study(tmp_path, storage=url), packages=toys.PACKAGES, engine=halting)
    place = tmp_path / "studies" / "toy"
    with pytest.raises(BadInput) as caught:
        studies.resume(str(place), packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert str(caught.value) == (
        f"storage: was recorded without its password (sqlite:///file:{tmp_path}/all.db?token=***"
        "&uri=true); give it again, as storage=URL or by the environment (LUTHIER_STORAGE=URL), or"
        " no copy: storage=None"
    )
    graph = None
    if given == "by an override":
        graph = graphs.apply(StudyDirectory(place).read_study(), [f"storage={url!r}"])
    else:
        monkeypatch.setenv(VARIABLE, url)
    outcome = studies.resume(str(place), graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert outcome.is_over
    assert _count(url) == 12
    assert _holding(tmp_path / "studies") == []


def test_any_other_secret_in_a_study_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", SECRET)
    graph = _study(tmp_path)
    graph.space.dimensions["note"] = studies.Choice([SECRET, "other"])
    with pytest.raises(BadInput, match="holds the value of DATABASE_PASSWORD, which the record of"):
        studies.run(graph, packages=toys.PACKAGES, engine=toys.InstantEngine())
    assert not (tmp_path / "studies").exists()


def test_what_trials_say_is_written_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    engine = Failing(1, {3: ["failed"]})
    outcome = studies.run(_study(tmp_path), packages=toys.PACKAGES, engine=engine)
    assert _holding(tmp_path / "studies") == []
    assert "could not log in with [HF_TOKEN]" in (outcome.directory / "journal.jsonl").read_text()
