"""The page about Pax: its commands, run as they stand there on files that Pax wrote."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from luthier.cli import main
from luthier.folders import manual_pages

GOLDENS = Path(__file__).parents[2] / "recipes" / "foreign" / "pax" / "goldens"
PAGE = Path(manual_pages()["pax"]).read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}luthier (.+)$", PAGE, re.MULTILINE)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for suffix in (".json", ".safetensors"):
        shutil.copy(GOLDENS / f"gpt{suffix}", tmp_path / f"my_lm{suffix}")


def test_every_command_works(here, capsys):
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        words, _, file = command.partition(" > ")
        assert main(shlex.split(words)) == 0, command
        if file:
            Path(file).write_text(capsys.readouterr().out)
    assert Path("dump_pax.py").read_text().endswith("main(sys.argv[1:])\n")
    assert Path("my_lm.yaml").exists()
    assert "luthier.checkpoint.Pax" in capsys.readouterr().out


def test_classes_of_the_table_exist():
    from luthier import layers, optim, tasks

    rooms = (layers, optim, tasks)
    right = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| `")]
    names = {name for cell in right for name in re.findall(r"`([A-Za-z_]+)`", cell)}
    missing = {name for name in names if not any(hasattr(room, name) for room in rooms)}
    assert missing <= {"data", "fsdp", "tensor"}
