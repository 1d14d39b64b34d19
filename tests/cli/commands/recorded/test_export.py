from __future__ import annotations

import json

import pytest

from luthier.cli import main


@pytest.fixture(autouse=True)
def _there(trained, monkeypatch):
    monkeypatch.chdir(trained)


def test_a_model_of_no_family_is_an_error_and_writes_nothing(tmp_path, capsys):
    assert main(["export", "last", "--to", "safetensors", "--output", f"{tmp_path}/x"]) == 2
    err = capsys.readouterr().err
    assert "of no family" in err
    assert "--family luthier" in err
    assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_names_of_our_own_and_back_again(tmp_path, capsys, trained):
    folder = tmp_path / "weights"
    words = ["export", "last", "--family", "luthier", "--output", str(folder)]
    assert main(words) == 0
    assert "step 4" in capsys.readouterr().out
    assert main(words) == 2
    assert "not empty" in capsys.readouterr().err
    assert main([*words[:-1], str(tmp_path / "again"), "--step", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 2
    assert found["files"] == ["model.safetensors"]
    directory = f"records.directory={tmp_path / 'runs'}"
    train = ["train", "trials.tiny", "--wandb", "off", directory]
    assert main([*train, f"restore=safetensors:{folder}"]) == 0
    (restored,) = tmp_path.glob("runs/tiny/*/restored.txt")
    assert f"parameters from {folder} (luthier's names)" in restored.read_text()


def test_a_misspelt_folder_is_one_line_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "weights").mkdir()
    words = ["train", "trials.tiny", "--wandb", "off", f"records.directory={tmp_path / 'runs'}"]
    assert main([*words, f"restore=safetensors:{tmp_path / 'wights'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    place = f"{tmp_path / 'wights'}"
    origin = f"[set by argument 2: restore=safetensors:{place}]"
    assert f"restore: {place} does not exist {origin}; did you mean" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "ema"], "average"),
        (["--family", "lama"], "llama"),
        (["--ema", "--weights", "parameters"], "cannot be combined"),
        (["--to", "pickle"], "safetensors"),
    ],
)
def test_what_is_wrong_with_the_words(words, message, capsys):
    assert main(["export", "last", *words]) == 2
    assert message in capsys.readouterr().err
