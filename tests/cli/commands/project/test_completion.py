from __future__ import annotations

import pytest

from luthier.cli import main
from luthier.cli.completion import SCRIPTS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(capsys, shell):
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SCRIPTS[shell]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no shell is given"),
        (["tcsh"], "'tcsh' is not a shell"),
        (["words"], "'words' is not a shell"),
        (["index"], "'index' is not a shell"),
    ],
)
def test_what_is_no_shell(capsys, words, message):
    assert main(["completion", *words]) == 2
    assert capsys.readouterr().err == (
        f"luthier: {message}; write `luthier completion bash or zsh or fish`\n"
    )


def test_words_are_answered(capsys, monkeypatch):
    monkeypatch.setenv("LUTHIER_WORDS", "tra\n")
    assert main(["completion", "words"]) == 0
    assert capsys.readouterr().out == "train\ttrain an experiment, or resume its run\n"


def test_the_help_explains_how_to_install_it(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    output = capsys.readouterr().out
    for line in (
        'eval "$(luthier completion bash)"',
        'eval "$(luthier completion zsh)"',
        "luthier completion fish > ~/.config/fish/completions/luthier.fish",
    ):
        assert line in output
    assert "words" not in output.partition("options:")[0].partition("usage:")[2].partition("\n")[0]
