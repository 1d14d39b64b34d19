"""Modules of a small package are merged; what the package prints stays the same."""

import subprocess
import sys

import pytest

from tools import move_modules

FILES = {
    "framework/luthier/__init__.py": '"""A package."""\n',
    "framework/luthier/shapes/__init__.py": '''"""Shapes."""

from luthier.shapes.circles import area as circle_area
from luthier.shapes.squares import Square

__all__ = ["Square", "circle_area"]
''',
    "framework/luthier/shapes/circles.py": '''"""Circles."""

from __future__ import annotations

import math
import os.path as places

_UNIT = 2


def area(radius):
    """Return the area of a circle."""
    return round(_scaled(math.pi * radius**2), 3)


def _scaled(value):
    return value * _UNIT
''',
    "framework/luthier/shapes/squares.py": '''"""Squares."""

from __future__ import annotations

import math as maths
from typing import TYPE_CHECKING

from luthier.shapes import circles

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNIT = 3


class Square:
    """A square around a circle."""

    def __init__(self, side: float):
        self.side = maths.floor(side)

    def beside(self, others: Sequence[float]):
        from luthier.shapes.circles import area as inner

        _scaled = [inner(other) for other in others]
        return [self._scaled(), circles.area(self.side / 2), *_scaled]

    def _scaled(self):
        # Not the function of that name: a method.
        return _scaled(self.side)


def _scaled(value):
    """Return a value in units of squares, of which there are %d."""
    return value * _UNIT
''',
    "framework/luthier/use.py": '''"""Uses shapes."""

import luthier.shapes.circles
from luthier.shapes import Square, circle_area, squares
from luthier.shapes.circles import area  # noqa: F401

HOME = "luthier.shapes.squares"


def show(squares_beside=(1, 2)):
    print(Square(4.5).beside(squares_beside), circle_area(1), squares._scaled(2), end=" ")
    print(luthier.shapes.circles.area(3), area(4))


show()
''',
    "notes.md": "`luthier.shapes.squares.Square` is in framework/luthier/shapes/squares.py.\n",
}
PLAN = """
[[move]]
to = "luthier.shapes"
from = ["luthier.shapes.circles", "luthier.shapes.squares", "luthier.shapes"]
doc = "Circles and squares."
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "repository", check=True)
    (tmp_path / "plan.toml").write_text(PLAN)
    for name in ("ROOT", "SOURCES"):  # `main` sets them
        monkeypatch.setattr(move_modules, name, getattr(move_modules, name))
    return tmp_path / "repository"


def move(root, plan=PLAN):
    (root.parent / "plan.toml").write_text(plan)
    return move_modules.main([str(root.parent / "plan.toml"), "--root", str(root)])


def printed(root):
    command = [sys.executable, "-P", "-m", "luthier.use"]
    environment = {"PYTHONPATH": str(root / "framework")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_merged_package_does_what_it_did(root, capsys):
    before = printed(root)
    assert move(root) == 0
    assert printed(root) == before
    assert "luthier.shapes.squares:_scaled is called _scaled_squares now" in capsys.readouterr().out
    package = root / "framework" / "luthier"
    assert sorted(path.name for path in package.iterdir() if path.is_file()) == [
        *("__init__.py", "shapes.py", "use.py"),
    ]
    merged = (package / "shapes.py").read_text()
    assert merged.startswith('"""Circles and squares."""\n\nfrom __future__ import annotations\n')
    assert merged.count("import math\n") == merged.count("import math as maths\n") == 1
    assert "from luthier.shapes" not in merged
    assert "# Not the function of that name: a method." in merged
    assert merged.index("# Circles.\n") < merged.index("def area") < merged.index("# Squares.\n")
    use = (package / "use.py").read_text()
    assert 'HOME = "luthier.shapes"' in use
    assert "# noqa: F401" in use
    wanted = "`luthier.shapes.Square` is in framework/luthier/shapes.py.\n"
    assert (root / "notes.md").read_text() == wanted


def test_what_would_mean_something_else_is_refused_and_nothing_is_written(root, capsys):
    squares = root / "framework" / "luthier" / "shapes" / "squares.py"
    squares.write_text(squares.read_text() + "\n\ndef area(side):\n    return side**2\n")
    before = {path: path.read_text() for path in root.rglob("*.py")}
    assert move(root) == 2
    assert "both define area: rename one" in capsys.readouterr().err
    assert {path: path.read_text() for path in root.rglob("*.py")} == before

    squares.write_text(
        FILES["framework/luthier/shapes/squares.py"].replace("inner(", "circles.area(")
    )
    text = squares.read_text().replace(
        "for other in others", "for other, area in zip(others, others)"
    )
    squares.write_text(text)
    assert move(root) == 2
    assert "area (was circles.area) is a local name" in capsys.readouterr().err
