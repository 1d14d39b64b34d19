from __future__ import annotations

from luthier.cli import experiments
from luthier.cli.commands.project import help as manual
from luthier.cli.completion import candidates


def test_experiments(project):
    assert list(candidates.experiments()) == [("configs.toy", "Train a toy.")]


def test_there_is_nothing_where_there_is_no_project(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(candidates.experiments()) == []
    assert list(candidates.runs()) == []


def test_runs(project):
    (project / "runs" / "toy" / "unfinished").mkdir()
    assert list(candidates.runs()) == [("0a1b2c3d", "toy")]
    assert (candidates.RUN, candidates.RUNS) == (experiments.RUN, experiments.RUNS)


def test_pages():
    assert [page.word for page in candidates.pages()] == manual.pages()
