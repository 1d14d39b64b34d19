"""The examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import luthier

PACKAGE = Path(luthier.__file__).parent
PLACES = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in PACKAGE.rglob("*.py")
    if "template" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES)
def test_examples_print_what_they_show(place, tmp_path, monkeypatch):
    """Each docstring runs alone, in an empty folder, with the names that it imports itself."""
    name = f"luthier.{place.removesuffix('/__init__').replace('/', '.')}"
    module, finder = importlib.import_module(name), doctest.DocTestFinder()
    tests = finder.find(module, globs={})
    for own, value in vars(module).items():  # functions that are named after `luthier` itself
        is_root = inspect.isfunction(value) and value.__module__ == "luthier"
        if is_root and value.__code__.co_filename == module.__file__:
            tests += finder.find(value, own, globs={})
    examples = [test for test in tests if test.examples]
    assert examples, "`>>> ` is in the module, but in no docstring of it"
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for number, test in enumerate(examples):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(test, out=report.append)
    assert not report, "".join(report)
