"""The experiments of the repository, found in its folder: adding one is adding nothing here."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WORDS = ("Paper", "Command", "Parameters", "Hardware", "Expected")
NOT_MEASURED = "not measured yet."
_EXPECTED = re.compile(
    r"(?P<metric>\w+) (?P<relation>>=|<=) (?P<bound>[\d.]*\d) on (?P<evaluation>\w+) "
    r"\((?P<found>[\d.]*\d) on (?P<date>\d{4}-\d\d-\d\d)\)"
)
_MINUTES = re.compile(r"2 CPU cores, under (\d+) minutes?\b")


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a header promises.

    Args:
      metric: The metric's name.
      relation: `>=` or `<=`.
      bound: What a run reaches.
      evaluation: The set that it is measured on.
      found: What the run that was measured had.
      date: When that was.
    """

    metric: str
    relation: str
    bound: float
    evaluation: str
    found: float
    date: str

    def holds(self, value):
        return value >= self.bound if self.relation == ">=" else value <= self.bound


@dataclasses.dataclass(frozen=True)
class Listed:
    """An experiment.

    Args:
      reference: What the command line takes.
      header: The docstring that tells how it is trained: its own, or that of its file.
    """

    reference: str
    header: str

    @property
    def lines(self):
        """The header's entries by word; each goes on until the next begins or a line is empty."""
        start = re.compile(rf"^({'|'.join(WORDS)}): ", re.MULTILINE)
        parts = start.split(self.header)[1:]
        texts = [re.split(r"\n\s*\n", text)[0] for text in parts[1::2]]
        return {w: " ".join(t.split()) for w, t in zip(parts[::2], texts, strict=True)}

    @property
    def expected(self):
        """What is promised; None where the header says that it was not measured yet."""
        line = self.lines["Expected"]
        if line == NOT_MEASURED:
            return None
        match = _EXPECTED.match(line)
        assert match, f"{self.reference}: `Expected:` reads like {_EXPECTED.pattern}"
        found = match.groupdict()
        numbers = {name: float(found.pop(name)) for name in ("bound", "found")}
        return Expected(**found, **numbers)

    @property
    def is_small(self):
        """Whether it is meant to be trained on the machine that tests it."""
        return self.lines["Hardware"].startswith("2 CPU cores")

    @property
    def is_first(self):
        """Whether it is what the name of its file stands for; the others are variants of it."""
        return ":" not in self.reference

    @property
    def minutes(self):
        """The time that training takes, in minutes."""
        match = _MINUTES.match(self.lines["Hardware"])
        assert match, f"{self.reference}: `Hardware:` reads like {_MINUTES.pattern}"
        return int(match[1])


def find():
    """Return every experiment below configs/, in the order of their names."""
    found = []
    for path in sorted((ROOT / "configs").rglob("*.py")):
        if path.name == "__init__.py":
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name)
        for function in vars(module).values():
            if not inspect.isfunction(function) or function.__module__ != name:
                continue
            if function.__name__.startswith("_") or _required(function):
                continue
            own = inspect.cleandoc(function.__doc__ or "")
            header = own if "\nCommand:" in own else inspect.cleandoc(module.__doc__)
            is_default = function.__name__ == "experiment"
            found.append(Listed(name if is_default else f"{name}:{function.__name__}", header))
    return found


def _required(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


EXPERIMENTS = find()


def pytest_generate_tests(metafunc):
    small = [listed for listed in EXPERIMENTS if listed.is_small]
    for fixture, found in (("experiment", EXPERIMENTS), ("small_experiment", small)):
        if fixture in metafunc.fixturenames:
            rows = [
                pytest.param(
                    listed,
                    id=listed.reference.removeprefix("configs."),
                    marks=() if listed.is_small or listed.is_first else pytest.mark.slow,
                )
                for listed in found
            ]
            metafunc.parametrize(fixture, rows)
