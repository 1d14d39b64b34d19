"""The goldens: what each experiment is, and what settings there are, defaults included."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool():
    source = ROOT / "tools" / "goldens" / "update.py"
    spec = importlib.util.spec_from_file_location("update_goldens", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


goldens = _tool()


def _hint(difference):
    return f"{difference}\nif that is meant: {goldens.COMMAND}"


def test_every_listed_experiment_has_its_golden(experiment):
    difference = goldens.difference(experiment.reference)
    assert not difference, _hint(difference)


def test_the_settings_of_the_components():
    difference = goldens.difference(goldens.SETTINGS)
    assert not difference, _hint(difference)


def test_the_list_and_the_folder_agree():
    """`luthier list` reads files; the tests import them."""
    from tests.configs.conftest import EXPERIMENTS

    assert sorted(goldens.references()) == sorted(listed.reference for listed in EXPERIMENTS)
    assert goldens.left_over() == []


def test_nothing_in_a_golden_is_cut_or_of_one_machine():
    texts = {path.name: path.read_text() for path in goldens.GOLDENS.glob("*.txt")}
    assert len(texts) == len(goldens.references()) + 1
    for name, text in texts.items():
        assert "…" not in text, name
        assert " at 0x" not in text, name
        assert str(ROOT) not in text, name


def test_a_change_is_shown_with_the_command(monkeypatch):
    def changed(name):
        return "luthier.program.Experiment\n  name = 'other'\n"

    monkeypatch.setattr(goldens, "rendered", changed)
    difference = goldens.difference("configs.lm.quickstart")
    assert "-  name = 'quickstart'" in difference
    assert "+  name = 'other'" in difference
    assert _hint(difference).endswith("if that is meant: python tools/goldens/update.py")


@pytest.mark.parametrize("reference", ["configs.lm.families:gemma"])
def test_names_of_goldens_can_be_files(reference):
    assert goldens.golden_name(reference) == "lm.families.gemma"
