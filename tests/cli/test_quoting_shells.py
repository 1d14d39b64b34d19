"""What is documented, typed into bash, zsh and fish: it arrives as it is, or somebody complains.

Every word of the documented commands is typed as the grammar has it, without quotes; and every
documented command as it stands. A shell may refuse. What arrives changed must be refused by
luthier, with a hint about quotes, or mean the same.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from graph_toys import grammar_cases

from luthier.cli import COMMANDS, HINT, parser_of, with_hints
from luthier.errors import BadInput, Problem
from luthier.folders import manual_pages

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    ROOT / "README.md",
    ROOT / "configs" / "README.md",
    ROOT / "framework" / "luthier" / "cli" / "template" / "README.md",
    *map(Path, manual_pages().values()),
]
LOOPS = {
    "bash": 'while IFS= read -r line; do ( eval "$line" ) </dev/null; done < lines',
    "zsh": 'while IFS= read -r line; do ( eval "$line" ) </dev/null; done < lines',
    "fish": "while read -l line; eval $line </dev/null; end < lines",
}
STARTS = {
    "bash": ["bash", "--norc", "-c"],
    "zsh": ["zsh", "-f", "-c"],
    "fish": ["fish", "--no-config", "-c"],
}
# What a shell takes whole, so that nobody can complain; the page says so. Fish runs what stands in
# brackets as a command, and drops the word where that prints nothing.
VANISHES = {"fish": re.compile(r"[($]")}
# Stands for luthier: writes down the words that it got.
PROGRAM = r"""#!/bin/sh
{ for word in "$@"; do printf '%s\037' "$word"; done; printf '\036'; } >> got
"""


def documented_commands() -> list[str]:
    """Return the commands in the blocks of shell of README.md and of the pages."""
    found = []
    for file in FILES:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for block in re.findall(r"```(?:bash|sh|shell)\n(.*?)```", text, re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [part.strip() for line in lines for part in re.split(r"&&|  #| \| ", line)]
    return sorted({command for command in found if command.startswith("luthier ")})


def helped_words() -> list[str]:
    """Return the words of the grammar in what `--help` prints."""
    parsers = [parser_of(command) for command in COMMANDS]
    texts = [p.format_help() for parser in parsers for p in (parser, *parser.actions.values())]
    found = re.findall(r"(?:reset:|fiddler:|[\w.:\[\]*]+[:+*-]?=)[^\s`|,;]+", " ".join(texts))
    return sorted({word.rstrip(".") for word in found if not word.startswith("-")})


def words_of_the_grammar() -> dict[str, str]:
    """Return the words of the table that are not symbols, with the graph of their case."""
    cases = [case for case in grammar_cases.cases() if not case.get("symbol")]
    found = {
        word: case.get("graph", "experiment")
        for case in cases
        if "flags" not in case
        for word in grammar_cases.words_of(case)
    }
    return {word: graph for word, graph in found.items() if word != "--fdl.optimizer.b2=0.95"}


def type_lines(shell: str, folder: Path, lines: list[str]) -> dict[int, list[str]]:
    """Type commands into a shell; return the words that arrived, by the number of the line."""
    program = folder / "bin" / "luthier"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    marked = [re.sub(r"^luthier ", f"luthier {n} ", line) for n, line in enumerate(lines)]
    (folder / "lines").write_text("".join(f"{line}\n" for line in marked))
    (folder / "got").write_text("")
    environment = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }
    subprocess.run(
        [*STARTS[shell], LOOPS[shell]],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    got = (folder / "got").read_text().split("\036")[:-1]
    return {int(number): words for number, *words in (text.split("\037")[:-1] for text in got)}


@pytest.fixture(params=sorted(STARTS))
def shell(request):
    """The name of a shell that is installed."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def type_into(shell, tmp_path):
    """Return a function that types lines into a shell, and returns what arrived of each."""
    return lambda lines: type_lines(shell, tmp_path, lines)


def test_what_is_documented_was_found():
    commands = documented_commands()
    assert "luthier train configs.lm.quickstart" in commands
    assert len(commands) > 15
    assert "optimizer.b2=0.95" in helped_words()
    assert len(words_of_the_grammar()) > 150


def test_commands_as_they_are_documented(type_into):
    commands = documented_commands()
    arrived = type_into(commands)
    # Without what the shell redirects.
    typed = [command.partition(" > ")[0] for command in commands]
    meant = {number: shlex.split(command)[1:] for number, command in enumerate(typed)}
    assert {number: meant[number] for number in arrived} == arrived
    assert len(arrived) >= len(commands) * 0.8, "documented commands should work in every shell"


def test_words_of_documented_commands_without_quotes(type_into):
    commands = documented_commands()
    words = {word for command in commands for word in shlex.split(command)[1:]} | {*helped_words()}
    words = sorted(word for word in words if word.strip())
    for number, got in type_into([f"luthier {word}" for word in words]).items():
        if got != [words[number]]:
            changed = [f"argument {n}: {word}" for n, word in enumerate(got, 1)]
            hinted = with_hints([Problem("no", origin=o) for o in changed], got)
            assert any(HINT in str(problem) for problem in hinted), (words[number], got)


def test_words_of_the_grammar_without_quotes(type_into, shell):
    graphs = words_of_the_grammar()
    words = list(graphs)
    arrived = type_into([f"luthier {word}" for word in words])
    assert len(arrived) > len(words) / 3, "shells let most words through"
    for number, got in arrived.items():
        word = words[number].strip()
        if got != [word]:
            case = {"graph": graphs[words[number]]}
            if not got and shell in VANISHES and VANISHES[shell].search(word):
                continue
            assert got, f"{word} vanished"
            assert_same_or_hint(case, word, got)


def assert_same_or_hint(case, word, got):
    graph = grammar_cases.graph_of(case)
    problems, changed = [], None
    try:
        changed = grammar_cases.apply_words(graph, got)
    except BadInput as error:
        problems = with_hints(error.problems, got)
    if changed is None:
        assert any(HINT in str(problem) for problem in problems), (word, got, problems)
    else:
        meant = grammar_cases.outcome({**case, "word": word})
        assert grammar_cases.changes(graph, changed) == meant, (word, got)


def test_the_table_of_shells(type_into, shell):
    """What the page says: what a shell eats, and what it takes whole."""
    rows = tomllib.loads(grammar_cases.TABLE.read_text(encoding="utf-8"))["shell"]
    arrived = type_into([f"luthier {row['typed']}" for row in rows])
    found = {row["typed"]: arrived.get(number, "fails") for number, row in enumerate(rows)}
    assert found == {row["typed"]: row[shell] for row in rows}
