"""What watches the parsers sees what it is there for."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

import pytest

from luthier.errors import BadInput
from tests.fuzz import watching


def _violation(parse, tmp_path, data=b"", packages=()):
    with pytest.raises(watching.Violation) as caught:
        watching.attempt(parse, data, tmp_path, packages)
    return str(caught.value)


def test_outcomes(tmp_path):
    assert watching.attempt(lambda data, folder: data, b"", tmp_path) == "accepted"

    def refuse(data, folder):
        raise BadInput("it is broken")

    assert watching.attempt(refuse, b"", tmp_path) == "refused"


def test_a_crash(tmp_path):
    assert _violation(lambda data, folder: {}["a"], tmp_path) == "KeyError: 'a'"

    def refuse(data, folder):
        raise BadInput("")

    assert _violation(refuse, tmp_path) == "refused without a word"


def test_a_hang_that_catches_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "SECONDS", 0.2)

    def hang(data, folder):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    assert _violation(hang, tmp_path) == "took more than 0.2 CPU seconds"


def test_an_import_of_what_the_input_names(tmp_path, monkeypatch):
    (tmp_path / "named_in_input.py").write_text("")
    (tmp_path / "not_named.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(data, folder):
        importlib.import_module("named_in_input")
        importlib.import_module("not_named")

    try:
        assert _violation(load, tmp_path, b"x = named_in_input.y") == "imported named_in_input"
        del sys.modules["named_in_input"]
        packages = ["named_in_input"]
        assert watching.attempt(load, b"named_in_input", tmp_path, packages) == "accepted"
    finally:
        for name in ("named_in_input", "not_named"):
            sys.modules.pop(name, None)


def test_a_program_that_is_started(tmp_path):
    assert "os.system" in _violation(lambda data, folder: os.system("true"), tmp_path)
