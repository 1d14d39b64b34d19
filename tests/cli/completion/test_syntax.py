from __future__ import annotations

import os

from luthier.cli import COMMANDS
from luthier.cli.completion import candidates


def test_what_is_cached_is_what_the_parsers_say(cache):
    first = candidates.commands()
    assert first == candidates.commands()
    assert first["commands"] == COMMANDS
    assert first["options"]["train"]["--wandb"][:2] == [True, ["off", "offline", "online"]]
    assert first["options"]["train"]["--new"][0] is False
    assert first["places"]["train"][0] == ["REF", []]
    assert first["places"]["data"][0][1] == ["inspect", "prepare", "train-tokenizer"]
    assert len(list(cache.iterdir())) == 1


def test_it_is_made_anew_when_the_command_line_changes(cache, monkeypatch):
    candidates.commands()
    monkeypatch.setattr("luthier.__version__", "0.0.0")
    candidates.commands()
    assert len(os.listdir(cache)) == 2
