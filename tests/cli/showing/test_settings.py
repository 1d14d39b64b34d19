from __future__ import annotations

from luthier.cli import showing
from luthier.cli.showing import Component, ComponentSetting

RATE = ComponentSetting("max_rate", "float | None", "0.1", "0 <= x < 1", "", False, "How fast.")
STEPS = ComponentSetting("warmup_steps", "int", None, "", "steps", False, "")
DIM = ComponentSetting("dim", "int", None, "1 <= x", "", True, "D.")
PART = Component("luthier.optim.part", "A part.", (RATE, STEPS, DIM), ("warmup_steps < 3",))

ENTRY = """\
luthier.optim.part
  A part.

  max_rate: float | None = 0.1  (0 <= max_rate < 1)
      How fast.
  warmup_steps: int  (in steps; required)
  dim: int  (1 <= dim; passed down by the component above)
      D.

  Constraints:
      warmup_steps < 3
"""

SECTION = """\
### luthier.optim.part

A part.

| argument | type | default | range | |
|---|---|---|---|---|
| `max_rate` | `float \\| None` | `0.1` | `0 <= x < 1` | How fast. |
| `warmup_steps` | `int` | - | steps |  |

Constraints: `warmup_steps < 3`.

Passed down: `dim`.
"""


def test_the_entry_for_the_terminal():
    assert showing.entry(PART) == ENTRY
    assert "It takes no arguments." in showing.entry(Component("a.b.C", "C.", (), ()))


def test_the_page_has_an_index_and_sections():
    page = showing.page([PART])
    assert page.startswith("# Settings\n")
    assert "\n- [optim](#optim): `part`\n" in page
    assert page.partition("\n## optim\n\n")[2].startswith(SECTION)
    assert "## layers" not in page


def test_the_snapshot():
    assert showing.snapshot([PART]) == (
        "luthier.optim.part.max_rate = 0.1\n"
        "luthier.optim.part.warmup_steps\n"
        "luthier.optim.part.dim\n"
    )
