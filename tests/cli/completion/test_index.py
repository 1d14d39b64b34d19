from __future__ import annotations

import pytest

from luthier.cli.completion import index
from luthier.cli.completion.index import NODE, Entry

ENTRIES = [
    Entry("path", "model", NODE),
    Entry("path", "model.dim", "128"),
    Entry("path", "modes", "a\ttab\nand a break"),
    Entry("path", "precision", "DEFAULT", ("DEFAULT", "HIGH")),
    Entry("tag", "model"),
]


@pytest.fixture
def saved(project):
    index.save("configs.toy", ["configs/toy.py"], ENTRIES)
    return index.load("configs.toy")


def test_entries_are_found_by_kind_and_beginning(saved):
    assert [entry.word for entry in saved.starting("path", "mode")] == [
        "model",
        "model.dim",
        "modes",
    ]
    assert [entry.word for entry in saved.starting("tag", "mode")] == ["model"]
    assert list(saved.starting("path", "precision")) == [ENTRIES[3]]
    assert list(saved.starting("path", "nothing")) == []
    assert list(saved.starting("class")) == []


def test_an_entry_is_one_line(saved):
    (found,) = saved.starting("path", "modes")
    assert found.text == "a tab and a break"


def test_an_index_is_fresh_until_a_file_changes(saved, project):
    assert saved.is_fresh()
    (project / "configs" / "toy.py").write_text("other = 1\n")
    assert not saved.is_fresh()
    (project / "configs" / "toy.py").unlink()
    assert not saved.is_fresh()


def test_an_index_of_another_version_is_not_fresh(saved, monkeypatch):
    monkeypatch.setattr("luthier.__version__", "0.0.0")
    assert not saved.is_fresh()


def test_indexes_are_apart_by_experiment_and_project(saved, project, monkeypatch):
    assert index.load("configs.other") is None
    monkeypatch.chdir(project / "configs")
    assert index.load("configs.toy") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 0}',
        '{"format": 1}',
        '{"format": 1, "files": {}}\npath\tm',
        "\0",
    ],
)
def test_a_damaged_index_is_none(saved, text):
    index.write(index.name_of("configs.toy"), text)
    assert index.load("configs.toy") is None


def test_a_cut_index_is_none(saved):
    text = index.read(index.name_of("configs.toy"))
    for end in range(0, len(text) - 1, 7):
        index.write(index.name_of("configs.toy"), text[:end])
        assert index.load("configs.toy") is None
