from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import pytest

from luthier.cli.showing import PACKAGES, components, describe


class Base:
    """What it shares.

    Args:
      a, b: Two of them,
        on two lines: with a colon.
      *others: More.

    Returns:
      c: Not an argument.
    """

    def __init__(self, a: int, b: Callable[..., int] | None = None, num_steps: int = 3):
        """Make it.

        Args:
          num_steps: How long.
        """


class Derived(Base):
    """One paragraph
    on two lines.

    Another.
    """

    RANGES = {"a": "0 <= x"}
    RELATIONS = ("a < num_steps",)
    INHERITED = ("b",)


def test_a_component_with_its_settings():
    found = describe(Derived, "toys.Derived")
    assert found.summary == "One paragraph on two lines."
    assert found.relations == ("a < num_steps",)
    a, b, steps = found.settings
    assert (a.name, a.type, a.default, a.range, a.inherited) == ("a", "int", None, "0 <= x", False)
    assert a.text == b.text == "Two of them, on two lines: with a colon."
    assert (b.type, b.default, b.inherited) == ("Callable[..., int] | None", "None", True)
    assert (steps.default, steps.unit, steps.text) == ("3", "steps", "How long.")


def test_every_argument_of_every_component_has_a_line_in_a_docstring():
    untold = [
        f"{component.name}.{setting.name}"
        for component in components()
        for setting in component.settings
        if not setting.text
    ]
    assert not untold, f"arguments without a line below `Args:`: {untold}"


def test_every_argument_has_a_type():
    untyped = [
        f"{component.name}.{setting.name}"
        for component in components()
        for setting in component.settings
        if not setting.type
    ]
    assert not untyped


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_components_and_no_state_or_result_is_one(package):
    names = {component.name for component in components() if component.package == package}
    assert names
    lines = (files("luthier") / "graph" / "allowed_names.txt").read_text().splitlines()
    assert not names & {line.removeprefix("none ") for line in lines if line.startswith("none ")}


def test_what_the_experiments_name_is_described():
    names = {component.name for component in components()}
    assert {
        *("luthier.program.Experiment", "luthier.optim.adamw", "luthier.optim.WarmupCosine"),
        *("luthier.layers.Attention", "luthier.data.Packed", "luthier.durations.Steps"),
        *("luthier.records.Console", "luthier.parallel.Mesh", "luthier.losses.DPO"),
    } <= names
    assert not names & {"luthier.optim.chain", "luthier.models.generate", "luthier.layers.Block"}


def test_everything_that_goldens_name_of_luthier_is_described():
    """The list of what is no component leaves out nothing that an experiment uses."""
    import re
    from pathlib import Path

    goldens = Path(__file__).parents[2] / "configs" / "goldens"
    used = set()
    for path in goldens.glob("*.txt"):
        if path.stem != "settings":
            heads = re.findall(r"(?:: |^)(?:partial )?(luthier\.\w+\.\w+)$", path.read_text(), re.M)
            used |= set(heads)
    assert len(used) > 50
    names = {component.name for component in components()}
    assert used - names == set()
