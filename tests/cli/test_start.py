"""A command that computes starts once more with its environment in order; the others do not."""

import gc
import json
import os
import subprocess
import sys

import pytest

from luthier import environment

# Stands for `luthier`: goes through the same door, and tells how it got here.
PROGRAM = """
import gc, json, os, sys
from pathlib import Path
from luthier import environment
from luthier.cli import start
environment._MODES = Path(__file__).with_name("modes")
start.prepare(sys.argv[1:])
names = ("GLIBC_TUNABLES", "JAX_COMPILATION_CACHE_DIR")
held = {name: os.environ.get(name) for name in names}
print(json.dumps({"pid": os.getpid(), "words": sys.argv[1:], "gc": gc.get_threshold()} | held))
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that starts a process with words; it returns its id and what it told."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def started(*words, modes="always [madvise] never"):
        (tmp_path / "modes").write_text(modes)
        names = ("GLIBC_TUNABLES", "JAX_COMPILATION_CACHE_DIR")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        environment["XDG_CACHE_HOME"] = str(tmp_path)
        command = [sys.executable, str(program), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            return process.pid, json.loads(process.stdout.read())

    return started


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_it_is_the_same_process_with_the_same_words(run, tmp_path):
    pid, process = run("train", "a b", "c='d'")
    assert process["pid"] == pid
    assert process["words"] == ["train", "a b", "c='d'"]
    assert process["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert process["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path / "luthier" / "compiled"))


@pytest.mark.parametrize("words", [("show", "lm"), (), ("help",)])
def test_what_does_not_compute_is_left_alone(run, words):
    process = run(*words)[1]
    assert process["GLIBC_TUNABLES"] is None
    assert process["JAX_COMPILATION_CACHE_DIR"] is None


def test_where_large_pages_cannot_be_had_it_goes_on(run):
    process = run("train", modes="always madvise [never]")[1]
    assert process["GLIBC_TUNABLES"] is None
    assert process["JAX_COMPILATION_CACHE_DIR"] is not None


@pytest.mark.parametrize("words", [("train",), ("show", "lm")])
def test_cycles_are_looked_for_rarely(run, words):
    newest, *others = run(*words)[1]["gc"]
    assert newest == environment.NEW_OBJECTS
    assert others == list(gc.get_threshold()[1:])
