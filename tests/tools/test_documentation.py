"""The documentation is about the code that is there; its site builds without a warning."""

from __future__ import annotations

import fnmatch
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path

import pytest

import luthier
from luthier import errors, recipes
from luthier.cli.showing import Component, ComponentSetting
from luthier.records import events
from tools.docs import docstrings, inventories, messages
from tools.docs.pages import environment_variables, exit_codes, model_zoo, run_folder
from tools.docs.pages import errors as errors_page
from tools.docs.pages import metrics as metrics_page
from tools.docs.pages import settings as settings_page

ROOT = Path(__file__).resolve().parents[2]


def test_every_environment_variable_that_is_read_is_documented():
    documented = [name for table in environment_variables.VARIABLES.values() for name in table]
    assert sorted(documented) == sorted(environment_variables.read_variables())


def test_every_exit_code_is_documented():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(exit_codes.CODES) == codes


SECTION = """\
## luthier.optim.part

A part.

| argument | type | default | range | |
|---|---|---|---|---|
| `max_rate` | `float \\| None` | `0.1` | `0 <= x < 1` | How fast. |
| `warmup_steps` | `int` | - | steps |  |

Constraints: `warmup_steps < 3`.

Passed down: `dim`.
"""


def test_settings_have_a_page_for_each_package_and_a_list_with_links():
    rate = ("max_rate", "float | None", "0.1", "0 <= x < 1", "", False, "How fast.")
    part = Component(
        "luthier.optim.part",
        "A part.",
        (
            ComponentSetting(*rate),
            ComponentSetting("warmup_steps", "int", None, "", "steps", False, ""),
            ComponentSetting("dim", "int", None, "1 <= x", "", True, "D."),
        ),
        ("warmup_steps < 3",),
    )
    pages = settings_page.pages([part])
    assert list(pages) == ["settings", "settings/settings_optim"]
    assert "[`part`](settings/settings_optim.md#luthieroptimpart)" in pages["settings"]
    assert pages["settings/settings_optim"].startswith("# Settings of luthier.optim\n")
    assert pages["settings/settings_optim"].endswith(SECTION)


def test_the_index_of_errors_has_every_message_that_the_tests_provoke():
    index = messages.messages()
    assert {one.package for one in index} == {
        package for packages, _ in errors_page.SUBJECTS.values() for package in packages
    }
    cases = tomllib.loads((ROOT / "tests" / "end_to_end" / "mistakes.toml").read_text())["mistake"]
    grammar = tomllib.loads((ROOT / "tests" / "graph" / "grammar" / "cases.toml").read_text())
    printed = [case["says"] for case in cases]
    printed += [case["message"] for case in grammar["case"] if "message" in case]
    assert len(printed) > 100
    # A pattern of a single word would be in many messages.
    patterns = [one.expression for one in index if len(one.pattern.split()) > 2]
    missing = [text for text in printed if not any(p.search(text) for p in patterns)]
    # A fiddler of the tests raised this one, and Python's arithmetic the other.
    ours = [t for t in missing if "no layer can be refused" not in t and "by zero" not in t]
    assert ours == []


def test_messages_are_read_out_of_what_raises_them(tmp_path):
    source = tmp_path / "parts.py"
    source.write_text(
        """
class Deck:
    def check(self, names, size):
        what = f"{size} cards, and {len(names)} names"
        if size < 0:
            what = "no cards"
        raise BadInput(Problem(what, "deck", remedy=f"set size={size!r}"))

    def color(self, color):
        self._refuse(f"no color {color!r}" if color else "a color is required")

    def _refuse(self, text):
        raise DataError(text)

    def stop(self):
        self._reason = self._reason or "the deck is empty"
        raise TrainingStopped(self._reason)

def own(error):
    raise BadInput(error.problem)
"""
    )
    assert [(m.pattern, m.remedy, m.module) for m in messages.of_module(source, tmp_path)] == [
        ("no cards", "set size='SIZE'", "parts"),
        ("SIZE cards, and N names", "set size='SIZE'", "parts"),
        ("no color 'COLOR'", "", "parts"),
        ("a color is required", "", "parts"),
        ("the deck is empty", "", "parts"),
    ]
    (message,) = [m for m in messages.of_module(source, tmp_path) if "N names" in m.pattern]
    assert message.expression.search("deck: 3 cards, and 2 names; set size=2")
    assert not message.expression.search("3 cards and 2 names")


def test_the_reference_lists_every_public_package():
    text = (ROOT / "docs" / "reference" / "python" / "index.md").read_text()
    listed = re.findall(r"^   (luthier[\w.]*)$", text, re.MULTILINE)
    assert listed == ["luthier", *(f"luthier.{name}" for name in docstrings.PACKAGES)]
    assert set(docstrings.PACKAGES) <= set(luthier.__all__)
    assert {name for name in luthier.__all__ if inspect.ismodule(getattr(luthier, name))} == set(
        docstrings.PACKAGES
    )


def test_every_published_size_belongs_to_one_family_with_a_test():
    names = list(model_zoo.sizes())
    assert len(names) > 60
    families = {n: [f for f in model_zoo.FAMILIES if re.fullmatch(f.sizes, n)] for n in names}
    assert {name for name, found in families.items() if len(found) != 1} == set()
    assert {f.title for found in families.values() for f in found} == {
        f.title for f in model_zoo.FAMILIES
    }
    for family in model_zoo.FAMILIES:
        path, _, test = family.test.partition("::")
        assert f"\ndef {test}(" in (ROOT / path).read_text(), family.test


def test_parameters_are_those_of_the_publication():
    assert model_zoo.count(recipes.decoders.gpt2_small()) == 124_439_808


def test_inventories_hold_what_their_table_lists():
    for project in inventories.PAGES:
        header, _, body = (
            (ROOT / "docs" / "inventories" / f"{project}.inv").read_bytes().partition(b"zlib.\n")
        )
        assert f"# Project: {project}\n".encode() in header
        lines = zlib.decompress(body).decode().splitlines()
        expected = [
            f"{name} py:{role} 1 {page}#$ -"
            for name, (role, page) in sorted(inventories.objects(project).items())
        ]
        assert lines == expected, "python tools/docs/inventories.py"


def test_docstrings_become_markup():
    text = inspect.cleandoc(r"""Return $\|g\|$ of `jax.Array` `x + 1`s.

    With a formula:

    $$ g \leftarrow g \min(1,
       c / \|g\|_2) $$

    And code of *args_:

        luthier show quickstart

    Items:
    - the first, with
      two lines
    - the second

    Args:
      b1: Decay, $\beta_1$.

    Example:
      >>> print("$a$ `b`")

    Source: Somebody, 2020,
      arXiv:1, table 2.
    Deviation: none.
    """)
    assert docstrings.restructured(text) == inspect.cleandoc(r"""
    Return :math:`\|g\|` of :py:obj:`jax.Array` ``x + 1``\ s.

    With a formula:

    .. math::

       g \leftarrow g \min(1,
          c / \|g\|_2)

    And code of \*args\_:

    ::

        luthier show quickstart

    Items:

    - the first, with
      two lines
    - the second

    Args:
      b1: Decay, :math:`\beta_1`.

    Example:
      >>> print("$a$ `b`")

    Source:
        Somebody, 2020, arXiv:1, table 2.

    Deviation:
        none.
    """)


@pytest.mark.full
def test_every_file_of_a_run_is_described(tmp_path):
    # A resume with more steps, so that the first config is kept under a number.
    for more in ([], ["training.steps=3", "--extend", "--run", "last"]):
        command = [sys.executable, "-m", "luthier", "train", "quickstart", "fiddler:debug", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    names = ", ".join(name for table in run_folder.FILES.values() for name in table)
    described = names.split(", ")
    patterns = [re.sub(r"\b(N|STEP|NAME|TIME|SHA256)\b", "*", name) for name in described]
    patterns = [f"{name}*" if name.endswith("/") else name for name in patterns]
    (run,) = (tmp_path / "runs").glob("*/*")
    files = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
    assert {"config.1.json", "checkpoints/3/commit.json"} <= set(files)
    unknown = [f for f in files if not any(fnmatch.fnmatchcase(f, p) for p in patterns)]
    assert not unknown, unknown
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    values = {name for one in recorded if one["kind"] == "step" for name in one["values"]}
    tasks = metrics_page.tasks_with_metrics()
    # `mfu` only where the peak of the processor is known.
    documented = {*metrics_page.STEP_VALUES, *tasks["LanguageModelling"][0]}
    absent = {"learning_rate/NAME", "mfu"}
    assert values | absent == documented


def test_every_metric_and_performance_value_is_documented():
    assert set(metrics_page.metric_constants()) == set(metrics_page.METRICS)
    described = metrics_page.tasks_with_metrics().values()
    assert {name for kinds in described for names in kinds for name in names} == set(
        metrics_page.METRICS
    )
    assert set(metrics_page.STEP_VALUES) >= events.PERFORMANCE


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="needs luthier[docs]")
def test_the_site_builds_without_a_warning(tmp_path):
    # A copy, because the reference of the Python API is generated beside the pages.
    for name in ("docs", "framework", "tools"):
        ignored = shutil.ignore_patterns("__pycache__", "luthier.*.rst", "luthier.rst")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for page in ROOT.glob("*.md"):  # the changelog and the guide for contributors are on the site
        shutil.copy(page, tmp_path)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "docs", "site"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # What a search finds, and a page of every kind.
    index = (tmp_path / "site" / "searchindex.js").read_text()
    assert "luthier.optim" in index
    for page in ("index", "how_to/sweeps", "reference/python/luthier.optim", "examples/notebook"):
        assert (tmp_path / "site" / f"{page}.html").is_file()
    optim = (tmp_path / "site" / "reference" / "python" / "luthier.optim.html").read_text()
    assert optim.count("<math") > 20
    assert (
        "fiddle.readthedocs.io/en/latest/api_reference/core.html#fiddle.Config"
        in (tmp_path / "site" / "reference" / "python" / "luthier.graph.html").read_text()
    )
    # Nothing is loaded from elsewhere when a page is read.
    assert not re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="https?:[^"]*"', optim)
    assert 'id="luthier.optim.DECAYED"' in optim
