"""The recorded mutations still fit the package, and one of them is caught."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutation", mutate.mutations(), ids=lambda mutation: mutation.id)
def test_a_mutation_fits_the_package(mutation):
    path = ROOT / "framework" / "luthier" / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, "edit tests/repo/baseline/mutations.toml"
    ast.parse(text.replace(mutation.old, mutation.new))
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), test
        assert name.partition("[")[0] in (ROOT / file).read_text() if name else True


def test_ids_are_unique():
    ids = [mutation.id for mutation in mutate.mutations()]
    assert len(ids) == len(set(ids)) >= 40


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "mutate.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.full
def test_a_mutation_is_caught():
    done = run("window-one-wider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 caught" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_mutations_are_caught():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
