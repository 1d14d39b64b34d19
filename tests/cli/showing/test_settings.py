from __future__ import annotations

from typing import ClassVar

from luthier.cli import showing
from luthier.cli.showing import Component, ComponentSetting

RATE = ComponentSetting("max_rate", "float | None", "0.1", "0 <= x < 1", "", False, "How fast.")
STEPS = ComponentSetting("warmup_steps", "int", None, "", "steps", False, "")
DIM = ComponentSetting("dim", "int", None, "1 <= x", "", True, "D.")
PART = Component("luthier.optim.part", "A part.", (RATE, STEPS, DIM), ("warmup_steps < 3",))


class Part:
    """A part.

    It has a rate.

    Args:
      max_rate: How fast.
      warmup_steps: How long.
      dim: D.

    Raises:
      ValueError: The rate
        is too low.
      TypeError: It is text.

    Source: Somebody 2020,
      page 3.
    """

    RANGES: ClassVar = {"max_rate": "0 <= x < 1", "dim": "1 <= x"}
    RELATIONS: ClassVar = ("warmup_steps < 3",)

    def __init__(self, warmup_steps: int, dim: int, max_rate: float | None = 0.1):
        pass


ENTRY = """\
luthier.optim.part(warmup_steps, dim, max_rate=0.1)
  A part.

  It has a rate.

  warmup_steps: int  (in steps; required)
      How long.
  dim: int  (1 <= dim; required)
      D.
  max_rate: float | None = 0.1  (0 <= max_rate < 1)
      How fast.

  Constraints:
      warmup_steps < 3

  Raises:
      ValueError: The rate is too low.
      TypeError: It is text.

  Source:
      Somebody 2020, page 3.

  Use:
      luthier train
"""


def test_the_entry_for_the_terminal():
    assert showing.entry("luthier.optim.part", Part, 80, [("Use", "luthier train")]) == ENTRY
    assert showing.entry("a.VALUE", 3, 80) == "a.VALUE\n  Value: 3\n"


def test_the_snapshot():
    assert showing.snapshot([PART]) == (
        "luthier.optim.part.max_rate = 0.1\n"
        "luthier.optim.part.warmup_steps\n"
        "luthier.optim.part.dim\n"
    )
