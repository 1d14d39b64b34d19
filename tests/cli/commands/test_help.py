from __future__ import annotations

from luthier.cli import main
from luthier.cli.commands import help as help_command


def test_every_page_can_be_read(capsys):
    assert help_command.pages()
    for page in help_command.pages():
        assert main.main(["help", page]) == 0
        assert capsys.readouterr().out.startswith("# ")


def test_a_misspelt_page_has_a_hint(capsys):
    page = help_command.pages()[0]
    assert main.main(["help", page[:-1]]) == 2
    assert f"did you mean {page}" in capsys.readouterr().err


def test_help_alone_lists_the_commands(capsys):
    assert main.main(["help"]) == 0
    assert "usage: luthier COMMAND" in capsys.readouterr().out
