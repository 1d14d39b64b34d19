"""Every command that README, the help pages and `--help` print is accepted as it is printed.

They run one after another in a folder of a user's own, outside of the clone's, as
`printed_commands.toml` lets them: trainings only check and plan, studies take two short trials.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import string
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest

from luthier.cli import COMMANDS, parser_of
from luthier.folders import manual_pages
from tests.fault_injection.machine import Machine
from tests.hub_folders import read_golden, write_folder
from tools.docs import run_page

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads(Path(__file__).with_name("printed_commands.toml").read_text())
# These pages are generated from what their commands print, refusals too, and checked by tests/repo.
GENERATED = {f"{path.stem}.md" for path in (ROOT / "tools" / "docs" / "pages").glob("*.py")}
SHORT = ["training.steps=2", "evaluations.held_out.num_batches=1"]


def commands(text: str) -> list[str]:
    """Return the command lines of luthier that a text shows in code blocks or as examples.

    An explanation after them is set off by two spaces or `#`; optional arguments are in brackets.
    """
    found = []
    for line in re.sub(r"\\\n *", "", text).splitlines():
        line = re.sub(r"^ *\$ ", "    ", line)
        match = re.match(r"^(?: {2,})?luthier ([a-z].*)", line)
        if match is None or match[1].split()[0] not in COMMANDS:
            continue
        found.append(re.split(r" {2,}(?![-'\"\w]+[:=.'])|\s+#|\s[>|] ?", match[1])[0])
    return list(dict.fromkeys(found))


def blocks(text: str) -> str:
    """Return what stands in the code blocks of a page, by fences or by four spaces."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(fenced) + "\n" + "\n".join(re.findall(r"^ {4}.*", rest, flags=re.MULTILINE))


def documents() -> dict[str, str]:
    """Return what shows commands, by name."""
    found = {}
    for path in (ROOT / "README.md", *map(Path, manual_pages().values())):
        text = path.read_text()
        if run_page.read(path).settings is not None:
            # test_executed_pages runs these.
            text = re.sub(r"^ *```(?:console|python)\n.*?^ *```", "", text, flags=re.M | re.S)
        if path.name not in GENERATED:
            found[path.name] = blocks(text)
    for command in sorted(COMMANDS):
        parser = parser_of(command)
        parsers = {command: parser}
        parsers |= {f"{command} {action}": each for action, each in parser.actions.items()}
        for name, each in parsers.items():
            # The lines of the usage, before the first blank one, are no commands.
            found[f"{name} --help"] = each.format_help().partition("\n\n")[2]
    return {name: text for name, text in found.items() if commands(text)}


def prepared(command: str, **fields: str) -> list[str] | None:
    """Return the arguments with which a command is run, or None for one that is not."""
    for written, own in TABLE["placeholders"].items():
        command = re.sub(rf"(?<![\w.]){re.escape(written)}(?!\w)", own, command)
    rule = next((r for r in TABLE["rule"] if re.search(r["match"], command)), {})
    if "skip" in rule:
        return None
    first, _, rest = command.partition(" ")
    command = f"{rule.get('as', first)} {rest} {rule.get('add', '')}"
    for field, own in fields.items():
        command = command.replace(f"{{{field}}}", own)
    return shlex.split(re.sub(r"[\[\]](?=--|\s|$)", "", command))


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return what starts commands at once."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="module")
def folder(machine, tmp_path_factory):
    """Return a user's folder, with the files, the run and the study that the commands name."""
    folder = tmp_path_factory.mktemp("printed")
    for name in ("books", "text", "mine"):
        (folder / name).mkdir()
    # Enough different words for a tokenizer of 8,192 tokens.
    letters, chance = string.ascii_lowercase, random.Random(0)
    words = ["".join(chance.choices(letters, k=chance.randint(2, 8))) for _ in range(20_000)]
    (folder / "books" / "words.txt").write_text("\n".join(textwrap.wrap(" ".join(words))))
    (folder / "text" / "a.jsonl").write_text(json.dumps({"text": " ".join(words[:500])}) + "\n")
    shards = [sys.executable, "-m", "luthier.shipped.c4_shards", "c4"]
    subprocess.run(shards, cwd=folder, check=True, capture_output=True)
    shutil.copy(ROOT / "README.md", folder)
    shutil.copy(folder / "books" / "words.txt", folder / "mine")
    models = (("models/qwen", "qwen3"), ("tuned", "qwen3"), ("models/llama", "llama"))
    for place, golden in (*models, ("models/bert", "bert")):
        config, tensors, _ = read_golden(golden)
        write_folder(folder / place, config, tensors)
    # A model of bytes, which has no tokenizer of its own.
    config, tensors, _ = read_golden("llama")
    more = ((0, 258 - config["vocab_size"]), (0, 0))
    wide = {k: np.pad(x, more) for k, x in tensors.items() if len(x) == config["vocab_size"]}
    config["vocab_size"] = 258
    write_folder(folder / "models/tiny", config, tensors | wide, tokenizer=False)
    (folder / "overrides.txt").write_text("training.steps=200\n")
    (folder / "small.gin").write_text("LEARNING_RATE = 0.01\nWarmupCosine.peak = %LEARNING_RATE\n")
    for words in (
        ["train", "quickstart", *SHORT, "--wandb", "off", "seed=1"],
        ["train", "quickstart", *SHORT, "--wandb", "off"],
        [
            "sweep",
            "lm_learning_rate",
            "--trials",
            "8",
            "base.training.steps=2",
            "base.model.num_layers=1",
        ],
    ):
        started = machine.start(folder, words)
        assert started.wait() == 0, started.stderr
    return folder


@pytest.fixture(scope="module")
def identities(folder):
    """Return the identities of the two runs, by the names of `printed_commands.toml`."""
    found = sorted(
        (folder / "runs" / "quickstart").iterdir(), key=lambda path: path.stat().st_mtime
    )
    return {"other": found[0].name, "run": found[1].name}


@pytest.fixture(scope="module")
def accepted():
    """Return the commands that ran already: some are printed on several pages."""
    return set()


@pytest.mark.full
@pytest.mark.parametrize("name", documents())
def test_every_printed_command_is_accepted(name, machine, folder, identities, accepted):
    refused = []
    for number, command in enumerate(commands(documents()[name])):
        own = f"{re.sub(r'[^a-z]', '', name)}{number}"
        words = prepared(command, number=own, **identities)
        same = prepared(command, number="", **identities)
        if words is None or tuple(same) in accepted:
            continue
        accepted.add(tuple(same))
        started = machine.start(folder, words)
        if started.wait() != 0:
            refused.append(
                f"luthier {command}\n  ran as {words}\n  {started.stderr.strip()[-600:]}"
            )
    assert not refused, "\n".join(refused)
