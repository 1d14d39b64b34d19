from __future__ import annotations

import pytest

from luthier import cli
from luthier.cli import main


def test_every_page_can_be_read(capsys):
    assert cli.manual_pages()
    for page in cli.manual_pages():
        assert main(["help", page]) == 0
        assert capsys.readouterr().out.startswith("# ")


def test_a_misspelt_page_has_a_hint(capsys):
    page = cli.manual_pages()[0]
    assert main(["help", page[:-1]]) == 2
    assert f"did you mean {page}" in capsys.readouterr().err


def test_help_alone_lists_the_commands(capsys):
    assert main(["help"]) == 0
    assert "usage: luthier COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["adamw", "AdamW", "luthier.optim.AdamW", "luthier.optim.adamw"])
def test_a_component_lists_its_settings(capsys, name):
    assert main(["help", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith("luthier.optim.adamw\n  Adam with decoupled weight decay.\n")
    assert "  b1: float = 0.9  (0 <= b1 < 1)\n      Decay of the first moment.\n" in out


def test_all_components_of_a_name_are_listed(capsys):
    assert main(["help", "Classification"]) == 0
    out = capsys.readouterr().out
    assert "luthier.tasks.Classification\n" in out
    assert "\n\nluthier.data.Classification\n" in out


def test_components_of_other_packages(project, capsys):
    (project / "own").mkdir()
    (project / "own" / "__init__.py").write_text(
        "WIDTH = 3\ndef part(size: int = 3):\n    '''A part.'''\n"
    )
    (project / "pyproject.toml").write_text('[tool.luthier]\npackages = ["own"]\n')
    assert main(["help", "own.part"]) == 0
    assert capsys.readouterr().out == "own.part\n  A part.\n\n  size: int = 3\n"
    assert main(["help", "optax.sgd"]) == 0
    assert main(["help", "os.system"]) == 2
    assert "may not be imported" in capsys.readouterr().err
    assert main(["help", "own.WIDTH"]) == 2
    assert capsys.readouterr().err == "luthier: own.WIDTH is not a class or function\n"


def test_an_unknown_component_has_a_hint(capsys):
    assert main(["help", "adamv"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("luthier: there is no page or component 'adamv'; did you mean adamw")
    assert main(["help", "luthier.optim.adamv"]) == 2
    assert "did you mean luthier.optim.adamw" in capsys.readouterr().err
