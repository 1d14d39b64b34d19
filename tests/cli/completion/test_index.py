from __future__ import annotations

import os
from pathlib import Path

import pytest

from luthier.cli import completion
from luthier.cli.completion import NODE, Entry

ENTRIES = [
    Entry("path", "model", NODE),
    Entry("path", "model.dim", "128"),
    Entry("path", "modes", "a\ttab\nand a break"),
    Entry("path", "precision", "DEFAULT", ("DEFAULT", "HIGH")),
    Entry("tag", "model"),
]


@pytest.fixture
def saved(project):
    completion.save("configs.toy", ["configs/toy.py"], ENTRIES)
    return completion.load("configs.toy")


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
    assert completion.load("configs.other") is None
    monkeypatch.chdir(project / "configs")
    assert completion.load("configs.toy") is None


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
    completion.write(completion.name_of("configs.toy"), text)
    assert completion.load("configs.toy") is None


def test_a_cut_index_is_none(saved):
    text = completion.read(completion.name_of("configs.toy"))
    for end in range(0, len(text) - 1, 7):
        completion.write(completion.name_of("configs.toy"), text[:end])
        assert completion.load("configs.toy") is None


def test_the_folder_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert Path(completion.folder()) == tmp_path / ".cache" / "luthier" / "completion"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert Path(completion.folder()) == tmp_path / ".cache" / "luthier" / "completion"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert Path(completion.folder()) == tmp_path / "elsewhere" / "luthier" / "completion"


def test_what_is_written_is_read(cache):
    assert completion.read("a") == ""
    completion.write("a", "text\r\n")
    assert completion.read("a") == "text\r\n"
    assert [path.name for path in cache.iterdir()] == ["a"]


def test_a_write_is_whole_or_nothing(cache, monkeypatch):
    completion.write("a", "before")
    monkeypatch.setattr(os, "replace", _fails)
    completion.write("a", "after")
    assert completion.read("a") == "before"


def _fails(*_):
    raise OSError("no space left")


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder would be")
    completion.write("a", "text")
    assert completion.read("a") == ""
    assert not completion.claim("a")


def test_one_process_makes_a_file(cache):
    assert completion.claim("a")
    assert not completion.claim("a")
    assert completion.claim("b")
    completion.release("a")
    assert completion.claim("a")


def test_the_claim_of_a_process_that_was_killed_runs_out(cache):
    assert completion.claim("a")
    os.utime(cache / "a.claim", (0, 0))
    assert completion.claim("a")
    assert not completion.claim("a")


def test_fingerprints_follow_the_content(tmp_path):
    file = tmp_path / "a"
    file.write_text("one")
    first = completion.fingerprints([str(file), "not there"])
    assert first["not there"] == ""
    file.write_text("two")
    assert completion.fingerprints([str(file)]) != {str(file): first[str(file)]}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x80"])
def test_what_is_no_text_is_as_if_not_there(cache, content):
    completion.write("a", "")
    (cache / "a").write_bytes(content)
    assert completion.read("a") == ""


def entries(kind: str, beginning: str = "") -> dict[str, tuple[str, tuple[str, ...]]]:
    found = completion.load("configs.toy").starting(kind, beginning)
    return {entry.word: (entry.text, entry.values) for entry in found}


def test_paths_with_their_values(indexed):
    found = entries("path")
    assert found["optimizer"] == (".", ())
    assert found["optimizer.learning_rate.value"] == ("0.001", ())
    assert found["precision.matmul"][1] == ("DEFAULT", "HIGH", "HIGHEST")
    assert found["model"] == ("not set", ())
    assert found["training.stop"] == ("None", ("None",))


def test_constants_by_name(project):
    file = project / "configs" / "toy.py"
    text = file.read_text().replace(
        "import fiddle as fdl\n", "import fiddle as fdl\nfrom luthier.graph import value\n"
    )
    file.write_text(text.replace("steps=3", 'steps=value(3, name="steps")'))
    completion.build("configs.toy")
    assert entries("constant") == {"steps": ("3", ())}


def test_classes_and_fiddlers(indexed):
    assert entries("class", "Constant") == {"Constant": (".", ()), "Constant.value": ("", ())}
    assert entries("class", "adamw.learning_rate") == {"adamw.learning_rate": (".", ())}
    assert "train_only" in entries("fiddler")


def test_the_files_of_the_project_make_it_stale(indexed):
    files = completion.load("configs.toy").header["files"]
    assert str(indexed / "configs" / "toy.py") in files
    assert all(file.startswith(str(indexed)) for file in files)


def test_a_broken_experiment_is_tried_again_when_it_has_changed(project):
    (project / "configs" / "toy.py").write_text("def experiment(:\n")
    assert completion.claim(completion.name_of("configs.toy"))
    completion.build("configs.toy")
    found = completion.load("configs.toy")
    assert found.is_fresh()
    assert list(found.starting("path")) == []
    assert completion.claim(completion.name_of("configs.toy"))  # the claim was given up
    (project / "configs" / "toy.py").write_text("def experiment():\n    pass\n")
    assert not found.is_fresh()
