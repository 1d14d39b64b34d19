from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from luthier import graph as graphs
from luthier.cli import main
from luthier.cli.operands import revisions
from luthier.errors import BadInput

FILE = """import fiddle as fdl

from mine import parts


def experiment(rate=0.5):
    return fdl.Config(parts.Rate, rate=rate, decay={decay})
"""
PARTS = """import dataclasses


@dataclasses.dataclass
class Rate:
    rate: float
    decay: float = 0.0
"""


def _git(*words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout


def _write(decay):
    Path("mine/rates.py").write_text(FILE.format(decay=decay))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two commits of an experiment, whose working tree is dirty."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    Path("mine").mkdir()
    Path("mine/__init__.py").write_text("")
    Path("mine/parts.py").write_text(PARTS)
    Path("pyproject.toml").write_text('[tool.luthier]\npackages = ["mine"]\n')
    _write(0.1)
    _git("init", "--quiet", "--initial-branch", "main")
    _git("add", ".")
    _git("commit", "--quiet", "--message", "First")
    _write(0.2)
    Path("untracked.txt").write_text("mine")
    _git("commit", "--quiet", "--all", "--message", "Second")
    _write(0.3)
    Path("mine/parts.py").write_text("raise RuntimeError('the working tree was imported')\n")
    return folder


def _read(word, *overrides):
    return revisions.read(revisions.find(word), overrides, word)


def _state(folder):
    files = {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return files, _git("--no-optional-locks", "status", "--porcelain"), _git("stash", "list")


@pytest.mark.full
def test_a_revision_is_evaluated_in_a_copy_and_the_tree_is_untouched(repository):
    before = _state(repository)
    operand = _read("HEAD~1:mine.rates", "rate=0.75")
    assert _state(repository) == before
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    document = operand.document
    values = {part: node.data for part, node in document.root.parts}
    assert values == {"rate": 0.75, "decay": 0.1}
    assert document.origin("decay") == "mine/rates.py:7"
    assert document.origin("rate") == "argument 1: rate=0.75"
    assert document.side.detail.startswith("revision ")
    assert document.side.detail.endswith(": First")
    assert operand.is_recorded


def test_the_command_compares_revisions(repository, capsys):
    Path("mine/parts.py").write_text(PARTS)
    assert main(["diff", "HEAD~1:mine.rates", "mine.rates", "--why", "--exit-code"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "1 change: 1 changed",
        "└── ~ decay: 0.1 -> 0.3 (x3)",
        "    ├── - set by mine/rates.py:7",
        "    └── + set by mine/rates.py:7",
    ]


@pytest.mark.full
def test_pythons_whose_archives_know_no_filter_do_without(repository, monkeypatch):
    """Python 3.11.4 brought them."""

    def extract_all(self, path, members=None, *, numeric_owner=False):
        for member in filter(tarfile.TarInfo.isfile, self.getmembers()):
            file = Path(path, member.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.extractfile(member).read())

    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", extract_all)
    assert _read("HEAD~1:mine.rates").document.root.by_part["decay"].data == 0.1


@pytest.mark.full
def test_from_a_folder_below_too(repository, monkeypatch):
    Path("below").mkdir()
    Path("below/experiments.py").write_text("from mine.rates import experiment\n")
    Path("mine/parts.py").write_text(PARTS)
    _git("add", ".")
    _git("commit", "--quiet", "--message", "Third")
    monkeypatch.chdir("below")
    operand = _read("main:experiments")
    assert operand.document.root.by_part["decay"].data == 0.3


def test_a_record_of_a_revision_is_read_without_a_process(repository, monkeypatch):
    import fiddle as fdl

    from luthier import optim

    text = graphs.to_json(fdl.Config(optim.Constant, 0.5))
    Path("kept.json").write_text(text)
    _git("add", "kept.json")
    _git("commit", "--quiet", "--message", "Keep")
    Path("kept.json").unlink()
    monkeypatch.setattr(revisions, "_evaluate", None)
    assert _read("HEAD:kept.json").document.root.by_part["value"].data == 0.5
    with pytest.raises(BadInput, match=r"^HEAD~1 has no file kept.json$"):
        _read("HEAD~1:kept.json")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("HEAD~1:mine.rate", "HEAD~1: there is no module 'mine.rate'; did you mean mine.rates?"),
        ("HEAD:mine.rates:other", "HEAD: there is no function 'other' in mine.rates; it has "
         "mine.rates:experiment"),
    ],
)  # fmt: skip
def test_missing_parts_of_a_revision_are_errors(repository, word, text):
    with pytest.raises(BadInput) as caught:
        _read(word)
    assert str(caught.value) == text


def test_what_breaks_at_a_revision_is_one_line(repository):
    _git("commit", "--quiet", "--all", "--message", "Broken")
    with pytest.raises(BadInput) as caught:
        _read("HEAD:mine.rates")
    (problem,) = caught.value.problems
    assert "the working tree was imported" in str(problem)
    assert "\n" not in str(caught.value)
    assert tempfile.gettempdir() not in str(caught.value)


def test_no_revision_of_that_name(repository):
    with pytest.raises(BadInput) as caught:
        revisions.find("HEAD~7:mine.rates")
    assert str(caught.value) == (
        f"there is no revision 'HEAD~7' in {repository}; `git log --oneline` lists them"
    )


def test_a_module_and_its_function_are_no_revision(repository):
    _git("branch", "mine")
    for word in ("mine.rates:experiment", "mine:experiment(rate=2)", "nothing:here", "mine", "a:"):
        assert revisions.find(word) is None
    assert revisions.find("mine:mine.rates").name == "mine"


def test_no_repository_and_no_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(BadInput) as caught:
        revisions.find("HEAD~1:a.b")
    assert str(caught.value).startswith(
        "cannot read HEAD~1:a.b as a revision: not a git repository"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput) as caught:
        revisions.find("HEAD~1:a.b")
    assert str(caught.value) == (
        "HEAD~1:a.b is a git revision, but git is not installed; install git, or give a run or a "
        "record"
    )
    assert revisions.find("nothing:here") is None


def test_a_file_of_a_revision_is_its_module(repository):
    found = revisions.find("HEAD~1:mine/rates.py")
    assert (found.reference, found.commit) == ("mine.rates", _git("rev-parse", "HEAD~1").strip())


@pytest.mark.parametrize("name", ["mine.rates", "rates", "mine.rates:experiment(rate=2)"])
def test_a_revision_behind_the_experiment_is_refused_with_the_right_form(repository, name):
    with pytest.raises(BadInput) as caught:
        revisions.find(f"{name}@HEAD~1")
    assert str(caught.value) == (
        f"'{name}@HEAD~1' has its git revision behind the experiment; write HEAD~1:{name}"
    )
