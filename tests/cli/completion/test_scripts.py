"""The scripts complete in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from luthier.cli.completion import SCRIPTS

LINES = {
    "luthier tr": ["train"],
    "luthier train configs.t": ["configs.toy"],
    "luthier train configs.toy optimizer.learning_rate.v": ["optimizer.learning_rate.value="],
    "luthier train configs.toy precision.matmul=HIGHE": ["precision.matmul=HIGHEST"],
    "luthier show configs.toy class:Constant.v": ["class:Constant.value="],
    "luthier train run:0": ["run:0a1b2c3d"],
    "luthier train --wandb off": ["offline"],
    "luthier completion ": ["bash", "zsh", "fish"],
    "luthier train configs.toy nothing.like.this": [],
}


def needs(shell: str):
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")


def run(shell: dict[str, str], *command: str) -> list[str]:
    done = subprocess.run(command, env=shell, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


BASH = r"""
source "$BASH_SCRIPT"
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
_luthier
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.full
@needs("bash")
@pytest.mark.parametrize("line", LINES)
def test_bash(shell, line):
    """Readline puts back what stands before the last `=` or `:` of the word."""
    word = line.rpartition(" ")[2]
    kept = word[: max(word.rfind("="), word.rfind(":")) + 1]
    found = run(shell, "bash", "--norc", "-c", BASH, "bash", line)
    assert [kept + word for word in found if word] == LINES[line]


@pytest.mark.full
@needs("bash")
def test_bash_as_it_is_typed(shell):
    """The whole line, by a bash that reads keys: Tab completes, and adds no space after `=`."""
    start = ["bash", "--norc", "--noprofile", "-i"]
    typed = "luthier train configs.toy training.ste\t3"
    assert "training.steps=3" in answer(shell, start, "BASH_SCRIPT", typed)


@pytest.mark.full
@needs("fish")
@pytest.mark.parametrize("line", LINES)
def test_fish(shell, line):
    script = 'source "$FISH_SCRIPT"; complete --do-complete $argv[1]'
    found = run(shell, "fish", "--no-config", "-c", script, line)
    assert sorted(line.partition("\t")[0] for line in found) == sorted(LINES[line])


@pytest.mark.full
@needs("zsh")
@pytest.mark.parametrize("line", [line for line, words in LINES.items() if len(words) == 1])
def test_zsh(shell, line):
    found = answer(shell, ["zsh", "-f", "-i"], "ZSH_SCRIPT", f"{line}\t")
    assert found.split()[-1] == LINES[line][0]


def answer(shell: dict[str, str], command: list[str], script: str, keys: str) -> str:
    """Type keys into an interactive shell, and return the words that the line had in the end."""
    terminal, inside = pty.openpty()
    environment = shell | {"TERM": "dumb", "PS1": "> ", "INPUTRC": "/dev/null"}
    child = subprocess.Popen(
        command, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    )
    try:
        send(terminal, f'source "${script}"; echo rea""dy\n')
        read(terminal, "ready")
        send(terminal, keys)
        time.sleep(1)
        send(terminal, "\x01echo \x22<\x22 \x05 \x22>\x22\n")
        return read(terminal, "\r\n< ", " >").rpartition("\r\n< ")[2].partition(" >")[0]
    finally:
        child.kill()
        child.wait()
        os.close(inside)
        os.close(terminal)


def send(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


def read(terminal: int, *wanted: str) -> str:
    """Read until all that is wanted has come."""
    text, end = "", time.monotonic() + 60
    while not all(part in text for part in wanted):
        assert time.monotonic() < end, text
        if select.select([terminal], [], [], 1)[0]:
            text += os.read(terminal, 4096).decode(errors="replace")
    return text


def test_every_script_asks_for_words():
    for script in SCRIPTS.values():
        assert "completion words" in script
        assert "LUTHIER_WORDS" in script
