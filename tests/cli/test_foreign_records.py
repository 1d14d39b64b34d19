"""Records that somebody else made: what they name beyond the list is never called."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import sys

import pytest

from luthier import graph as graphs
from luthier import study as studies
from luthier.cli import main
from luthier.errors import RecordError
from luthier.records import trust

COMMANDS = {
    "evaluate": ["evaluate", "{run}"],
    "generate": ["generate", "{run}"],
    "export": ["export", "{run}", "--output", "{here}/exported"],
    "show": ["show", "{run}", "--params"],
    "diff": ["diff", "{run}", "{run}", "--effects"],
    "plan": ["plan", "{run}", "--slice", "cpu:1", "--level", "shapes"],
    "check": ["check", "{run}"],
    "train": ["train", "{run}", "--dry-run"],
    "train with an override": ["train", "{run}", "seed=3", "--dry-run"],
}


class _Gadget:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _exploits(folder):
    """Return records of calls, each of which changes something in a folder."""
    gadget = pickle.dumps(_Gadget(folder / "unpickled")).hex()
    serialized = {"serialized": {"bytes": gadget}, "in_tree": None, "out_tree": None}
    victim = {"path": str(folder / "victim"), "kind": "Path"}
    return {
        "jax.experimental.serialize_executable.deserialize_and_load": serialized,
        "luthier.records.redaction.write_json": {"path": str(folder / "written"), "value": "x"},
        "luthier.storage.atomic.write_atomically": {"path": str(folder / "written"), "text": "x"},
        "orbax.checkpoint.test_utils.erase_and_create_empty": {"directory": victim},
        "luthier.checkpoint.policy.discard": {"path": victim},
        "luthier.records.RunDirectory": {"path": str(folder / "made")},
        "subprocess.Popen": {"args": ["touch", str(folder / "touched")]},
    }


@functools.cache
def _quickstart():
    return graphs.to_json(graphs.resolve("configs.lm.quickstart"))


def _run(folder, call):
    """Write a run whose record is the quickstart's with one value replaced."""
    record = json.loads(_quickstart())
    record["graph"]["arguments"]["task"]["arguments"]["z_loss"] = call
    run = folder / "runs" / "quickstart" / "aaaa0001"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(record))
    (run / "status.json").write_text("{}")
    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_record_is_refused_and_runs_nothing(command, tmp_path, capsys):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.txt").write_text("years")
    for name, given in _exploits(tmp_path).items():
        run = _run(tmp_path / name, {"config": name, "arguments": given})
        before = sorted(tmp_path.rglob("*"))
        words = [word.format(run=run, here=tmp_path) for word in COMMANDS[command]]
        assert main(words) == 2, name
        captured = capsys.readouterr()
        printed = captured.out + captured.err  # `check` prints problems as its result
        assert len([line for line in printed.splitlines() if repr(name) in line]) == 1, printed
        assert sorted(tmp_path.rglob("*")) == before, name
    assert (tmp_path / "victim" / "thesis.txt").read_text() == "years"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a package of its own, whose function leaves a mark, as working directory."""
    root = tmp_path / "project"
    (root / "acting").mkdir(parents=True)
    acting = "def act(path):\n    open(path, 'w').close()\n    return 0.0\n"
    (root / "acting" / "__init__.py").write_text(acting)
    (root / "pyproject.toml").write_text('[tool.luthier]\npackages = ["acting"]\n')
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    monkeypatch.delenv("LUTHIER_TRUST", raising=False)
    monkeypatch.delitem(sys.modules, "acting", raising=False)
    yield root
    os.environ.pop("LUTHIER_TRUST", None)


def _naming_the_package(folder):
    mark = folder / "mark"
    return _run(folder, {"config": "acting.act", "arguments": {"path": str(mark)}}), mark


@pytest.mark.full
def test_packages_of_the_user_load_for_other_projects_only_when_trusted(project, tmp_path, capsys):
    run, mark = _naming_the_package(tmp_path / "elsewhere")
    words = ["train", str(run), "--dry-run"]
    assert main(words) == 2
    captured = capsys.readouterr().err
    assert f"names your package acting; if you know who made it, add: --trust {run}" in captured
    assert len(captured.splitlines()) == 1
    assert not mark.exists()
    assert main([*words, "--trust", str(run)]) == 0
    assert mark.exists()


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "is_trusted"), [("y", True), ("YES", True), ("", False)])
def test_on_a_terminal_the_user_is_asked_whether_to_trust(
    project, tmp_path, monkeypatch, answer, is_trusted
):
    run, mark = _naming_the_package(tmp_path / "elsewhere")
    shown = _Terminal()
    monkeypatch.setattr(sys, "stdin", _Terminal(f"{answer}\n"))
    monkeypatch.setattr(sys, "stderr", shown)
    assert main(["show", str(run), "--params"]) == (0 if is_trusted else 2)
    assert mark.exists() == is_trusted
    assert "names your package acting: what it names is called" in shown.getvalue()
    assert shown.getvalue().count("trust it? [y/N] ") == 1
    assert ("add: --trust" in shown.getvalue()) != is_trusted
    assert os.environ.get("LUTHIER_TRUST", "") == (str(run / "config.json") if is_trusted else "")


def test_trust_in_what_does_not_exist_is_refused(project, tmp_path, capsys):
    run, mark = _naming_the_package(tmp_path / "elsewhere")
    assert main(["show", str(run), "--params", "--trust", str(tmp_path / "elsewere")]) == 2
    assert f"--trust {tmp_path}/elsewere: there is no such file or folder" in (
        capsys.readouterr().err
    )
    assert not mark.exists()


@pytest.mark.full
def test_packages_of_the_user_load_within_the_project(project, capsys):
    run, mark = _naming_the_package(project)
    assert main(["train", str(run), "--dry-run"]) == 0, capsys.readouterr().err
    assert mark.exists()


def test_a_run_outside_of_its_project_is_known_by_what_the_project_recorded(
    project, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, mark = _naming_the_package(tmp_path / "scratch")
    # What a record says of itself counts for nothing.
    for folder in (run, run.parents[1]):
        for name in ("source.json", "modules.json"):
            (folder / name).write_text(json.dumps({"project": str(project)}))
    assert main(["show", str(run), "--params"]) == 2
    assert not mark.exists()
    trust.record_place(run)
    assert main(["show", str(run), "--params"]) == 0
    assert mark.exists()


def test_a_study_from_elsewhere_is_resumed_with_trust_alone(tmp_path, monkeypatch, capsys):
    study = tmp_path / "downloads" / "theirs"
    (study / "source").mkdir(parents=True)
    (study / "study.json").write_text(_quickstart())
    (tmp_path / "bare").mkdir()
    monkeypatch.chdir(tmp_path / "bare")  # no project
    monkeypatch.delenv("LUTHIER_TRUST", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["sweep", "--resume", str(study)]) == 2
    assert f"add: --trust {study}" in capsys.readouterr().err
    with pytest.raises(RecordError, match="was not made in this project"):
        studies.resume(str(study))


def test_the_owner_of_another_users_record_is_named(project, monkeypatch, capsys):
    run, _ = _naming_the_package(project)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: 4_000_001)
    assert main(["train", str(run), "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if f"a record of another user (uid {owner})" in line]


def test_a_study_from_elsewhere_does_not_choose_packages(project, tmp_path, capsys):
    trial = tmp_path / "elsewhere" / "studies" / "theirs" / "trials" / "0001"
    call = {"config": "subprocess.Popen", "arguments": {"args": ["touch", str(tmp_path / "x")]}}
    run = _run(tmp_path / "made", call)
    trial.mkdir(parents=True)
    (trial / "config.json").write_text((run / "config.json").read_text())
    (trial / "assignment.json").write_text("{}")
    study = trial.parents[1]
    (study / "study.json").write_text((run / "config.json").read_text())
    (study / "modules.json").write_text(json.dumps({"packages": ["subprocess"]}))
    for words in (
        ["train", f"study:{study}/1", "--dry-run"],
        ["sweep", "--resume", str(study)],
        ["sweep", "--resume", str(study), "--trust", str(tmp_path / "made")],
    ):
        assert main(words) == 2
        assert "--trust" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_study_of_the_project_loads_the_packages_that_it_recorded(project, capsys):
    run, mark = _naming_the_package(project)
    trial = project / "studies" / "ours" / "trials" / "0001"
    trial.mkdir(parents=True)
    (trial / "config.json").write_text((run / "config.json").read_text())
    (trial / "assignment.json").write_text("{}")
    study = trial.parents[1]
    (study / "study.json").write_text((run / "config.json").read_text())
    (study / "modules.json").write_text(json.dumps({"packages": ["acting", "subprocess"]}))
    assert main(["show", f"study:{study}/1", "--params"]) == 0, capsys.readouterr().err
    assert mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[tool.luthier",
        "[tool.luthier]\n",
        "tool = 3\n",
        "[tool.luthier]\npackages = 3\n",
        '[tool.luthier]\npackages = "acting"\n',
        "[tool.luthier]\npackages = [3]\n",
    ],
)
def test_a_project_that_lists_no_packages_lends_studies_none(project, text):
    """Whatever else is wrong in its file; a study in Python does not read it on the way."""
    (project / "pyproject.toml").write_text(text)
    study = project / "studies" / "ours" / "study.json"
    for record, package in (("acting.act", "acting"), ("a.b", "a")):
        with pytest.raises(RecordError, match=f"names {package}, outside the packages of this"):
            trust.packages_of_study(study, f'{{"config": "{record}"}}', [package])


@pytest.mark.parametrize(
    ("suffix", "form"),
    [
        (".json", '{{"config": "\\u0061cting.act", "arguments": {{"path": "{mark}"}}}}'),
        (".yaml", '"\\x61cting.act":\n  path: "{mark}"\n'),
        (".gin", "# luthier: root @act()\nimport acting\nact.path = '{mark}'\n"),
        (".gin", "# luthier: root @act()\nfrom acting import act\nact.path = '{mark}'\n"),
        (".gin", "# luthier: root @act()\ninclude 'inner.gin'\nact.path = '{mark}'\n"),
    ],
)
def test_no_spelling_of_a_package_passes(project, tmp_path, capsys, suffix, form):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    mark = tmp_path / "mark"
    (folder / "inner.gin").write_text("import acting\n")
    text = form.format(mark=mark)
    if suffix == ".json":
        made = _run(tmp_path / "made", json.loads(text)) / "config.json"
        text = made.read_text().replace("acting", "\\u0061cting")
    file = folder / f"theirs{suffix}"
    file.write_text(text)
    assert main(["show", str(file), "--params"]) == 2, capsys.readouterr()
    assert not mark.exists()
    assert "acting" not in sys.modules


@pytest.mark.parametrize("words", [["gin_file:{}/theirs.gin"], ["file:{}/words.txt"]])
def test_files_of_overrides_from_elsewhere_name_no_packages(project, tmp_path, capsys, words):
    folder, mark = tmp_path / "elsewhere", tmp_path / "mark"
    folder.mkdir()
    (folder / "theirs.gin").write_text("include 'inner.gin'\n")
    inner = f"import acting\nact.path = '{mark}'\nTrainingTask.z_loss = @act()\n"
    (folder / "inner.gin").write_text(inner)
    call = f"task.z_loss=acting.act(path='{mark}')"
    (folder / "words.txt").write_text(f"seed=3\n{call}\n")
    given = ["show", "configs.lm.quickstart", *(word.format(folder) for word in words), "--params"]
    assert main(given) == 2
    assert "names your package acting; if you know who made it, add: --trust" in (
        capsys.readouterr().err
    )
    assert "acting" not in sys.modules
    assert not mark.exists()


def test_a_gin_file_from_elsewhere_that_names_no_packages_is_applied(project, tmp_path, capsys):
    (tmp_path / "mine.gin").write_text("Training.steps = 7\n")
    (tmp_path / "words.txt").write_text("seed=3\n")
    words = [f"gin_file:{tmp_path}/mine.gin", f"file:{tmp_path}/words.txt"]
    assert main(["show", "configs.lm.quickstart", *words]) == 0
    shown = capsys.readouterr().out
    assert "steps = 7" in shown
    assert "seed = 3" in shown
