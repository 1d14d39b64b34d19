from __future__ import annotations

from luthier.cli import references
from luthier.cli.commands.project import help as manual
from luthier.cli.completion import listing


def test_experiments(project):
    assert list(listing.experiments()) == [("configs.toy", "Train a toy.")]


def test_there_is_nothing_where_there_is_no_project(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(listing.experiments()) == []
    assert list(listing.runs()) == []


def test_runs(project):
    (project / "runs" / "toy" / "unfinished").mkdir()
    assert list(listing.runs()) == [("0a1b2c3d", "toy")]
    assert (listing.RUN, listing.RUNS) == (references.RUN, references.RUNS)


def test_pages():
    assert [page.word for page in listing.pages()] == manual.pages()
