from __future__ import annotations

import re
import sys

import pytest

from luthier import cli
from luthier.cli import COMMANDS, main


def printed(capsys, name):
    assert main(["help", name]) == 0
    return capsys.readouterr().out


def test_every_page_can_be_read(capsys):
    assert cli.manual_pages()
    for page in cli.manual_pages():
        assert main(["help", page]) == 0
        out = capsys.readouterr().out
        assert out.startswith("# ")
        # Comments and targets of links are for the site; `run: NAME` in code is not one.
        assert not re.findall(r"^<!--.*|<a id=.*", out, re.MULTILINE)


def test_the_html_in_the_code_of_a_page_is_kept(capsys, tmp_path, monkeypatch):
    start = '# a\n\n<!-- run:\nminutes=1 -->\n\n`<a id="x"></a>` ` and <a id="y"></a>b\n\n'
    code = "```html\n<!-- kept -->\n```\n\nends with ``\n"
    (tmp_path / "a.md").write_text(start + code)
    monkeypatch.setattr("luthier.folders.manual_pages", lambda: {"a": str(tmp_path / "a.md")})
    assert printed(capsys, "a") == '# a\n\n`<a id="x"></a>` ` and b\n\n' + code


def test_a_misspelt_page_has_a_hint(capsys):
    page = cli.manual_pages()[0]
    assert main(["help", f"{page}z"]) == 2
    assert f"did you mean {page}" in capsys.readouterr().err


def test_help_alone_lists_the_topics_with_a_sentence_each(capsys):
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    listed = dict(re.findall(r"^  (\w+)  +(\S.*)$", out, re.MULTILINE))
    assert set(cli.manual_pages()) <= set(listed)
    assert max(map(len, out.splitlines())) <= 100
    assert "luthier help NAME" in out
    assert "luthier --help" in out


@pytest.mark.parametrize("name", ["adamw", "AdamW", "luthier.optim.AdamW", "luthier.optim.adamw"])
def test_a_component_lists_its_settings(capsys, name):
    out = printed(capsys, name)
    assert out.startswith("luthier.optim.adamw(learning_rate, b1=0.9, b2=0.95,")
    assert "  Adam with decoupled weight decay.\n" in out
    assert "  b1: float = 0.9  (0 <= b1 < 1)\n      Decay of the first moment.\n" in out


def test_a_component_shows_its_formula_source_and_use(capsys):
    out = printed(capsys, "adamw")
    assert "      θₜ = θₜ₋₁ - ηₜ (uₜ + λ θₜ₋₁)\n" in out
    assert "Source:\n      Loshchilov and Hutter, 2019, arXiv:1711.05101" in out
    assert "Deviation:\n      weight decay is multiplied" in out
    assert "configs.lm.quickstart at optimizer\n" in out
    (override,) = re.findall(r"luthier show (\S+ optimizer\.b1=0\.9)$", out, re.MULTILINE)
    assert main(["show", *override.split(), "optimizer"]) == 0
    # Of a long default only the beginning is shown.
    (default,) = re.findall(r"decay_mask: ParameterMask = (.*)", out)
    assert default.endswith(" ...")
    assert max(map(len, out.splitlines())) <= 100


def test_what_is_subclassed_lists_what_to_define(capsys):
    for name, members in (
        ("ArrayExamples", ["shape", "num_classes", "read()"]),
        ("Rows", ["num_rows", "num_examples", "digest", "gather(rows, visit=None)"]),
    ):
        assert main(["help", name]) == 0
        _, _, shown = capsys.readouterr().out.partition("  To define in a class of your own:\n")
        lines = shown.partition("\n\n")[0].splitlines()
        assert [line.strip() for line in lines if line[6] != " "] == members
        assert all(line.strip() for line in lines)
    assert main(["help", "Digits"]) == 0
    assert "To define" not in capsys.readouterr().out


def test_all_components_of_a_name_are_listed(capsys):
    out = printed(capsys, "Classification")
    assert "luthier.tasks.Classification(" in out
    assert "luthier.data.Classification(" in out


def test_an_object_has_one_entry_under_all_of_its_names(capsys):
    out = printed(capsys, "apply")
    assert out.startswith("luthier.graph.apply(graph, overrides,")
    assert out == printed(capsys, "luthier.graph.apply") == printed(capsys, "graph.apply")
    assert "  Raises:\n      OverrideError: " in out
    out = printed(capsys, "luthier.trainer.run")
    assert out.startswith("luthier.train")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("lora", ["luthier.recipes.lora(", "fiddler:lora\n", "arXiv 2106.09685"]),
        ("fsdp", ["luthier.recipes.fsdp(", "fiddler:fsdp\n", "luthier help parallelism"]),
        ("scale_depth", ["'fiddler:scale_depth("]),
        ("llama", ["luthier.recipes.decoders.llama(", "luthier help llama_7b"]),
        ("llama_7b", ["luthier show luthier.recipes.decoders:llama_7b --params"]),
        ("decoders:llama_7b", ["luthier.recipes.decoders.llama_7b"]),
        ("Slurm", ["luthier.launch.Slurm(", "  nodes: int = 1"]),
        ("train", ["usage: luthier train REF", "See also: luthier help luthier.train"]),
        ("quickstart", ["configs.lm.quickstart\n", "Parameters: 821,376"]),
        ("luthier.data", ["luthier.data\n", "  Names:\n", "Packed "]),
        ("training.steps", ["luthier.program.Training\n  steps: int  (1 <= steps; required)"]),
        ("optimizer.b2", ["luthier.optim.adamw\n  b2: float = 0.95", "luthier.optim.lion"]),
        ("luthier.checkpoint.MaxText", ["luthier.contrib.importers.MaxText("]),
        ("create", ["create"]),
    ],
)
def test_everything_with_a_name_has_an_answer(capsys, name, texts):
    out = printed(capsys, name)
    for text in texts:
        assert text in out


def test_a_name_of_many_objects_lists_them(capsys, monkeypatch):
    from luthier.cli.showing import names

    symbols = [
        names.Symbol(f"luthier.a{n}.Same", test_a_name_of_many_objects_lists_them) for n in range(5)
    ]
    monkeypatch.setattr(names, "find", lambda name: symbols)
    out = printed(capsys, "same")
    assert out.startswith("same is the name of 5 objects;")
    assert all(f"  {symbol.name}\n" in out for symbol in symbols)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_are_answered_with_their_help(capsys, name):
    out = printed(capsys, name)
    assert f"usage: luthier {name}" in out or out.startswith("# "), "a page has the name, too"


def test_components_of_other_packages(project, capsys):
    (project / "own").mkdir()
    (project / "own" / "__init__.py").write_text(
        "WIDTH = 3\ndef widget(size: int = 3):\n    '''A widget.'''\n"
        "def halved(graph: 'fdl.Buildable', size: int):\n    '''Edit it.'''\n"
        "import fiddle as fdl\n"
    )
    settings = '[tool.luthier]\npackages = ["own"]\nfiddlers = ["own"]\n'
    (project / "pyproject.toml").write_text(settings)
    assert printed(capsys, "own.widget") == "own.widget(size=3)\n  A widget.\n\n  size: int = 3\n"
    assert "luthier train REF 'fiddler:halved(size=...)'" in printed(capsys, "halved")
    assert printed(capsys, "widget") == printed(capsys, "own.widget")
    assert main(["help", "widgett"]) == 2
    assert "did you mean widget or" in capsys.readouterr().err
    (project / "own" / "more.py").write_text("class widget:\n    pass\n")
    assert main(["help", "widget"]) == 2
    assert "did you mean own.widget or own.more.widget?" in capsys.readouterr().err
    assert main(["help", "optax.sgd"]) == 0
    assert main(["help", "os.system"]) == 2
    assert "may not be imported" in capsys.readouterr().err
    assert main(["help", "own.WIDTH"]) == 2
    assert capsys.readouterr().err == "luthier: own.WIDTH is not a class or function\n"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("adamv", "adamw"),
        ("luthier.optim.adamv", "luthier.optim.adamw"),
        ("trian", "train"),
        ("overides", "overrides"),
        ("training.stepz", ""),
        ("frobnicate", ""),
    ],
)
def test_an_unknown_name_has_at_most_three_hints(capsys, name, near):
    assert main(["help", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"luthier: there is no topic and no object {name!r}; ")
    assert line.endswith("`luthier help` lists the topics")
    hints = re.findall(r"did you mean (.*)\?", line)
    assert (near in hints[0]) if near else True
    assert sum(hint.count(" or ") for hint in hints) <= 2


def _on_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LINES", "24")
    for name in ("NO_COLOR", "FORCE_COLOR", "LUTHIER_PAGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAGER", "cat")


def test_a_terminal_gets_rendered_pages_and_colors(capsys, monkeypatch):
    _on_terminal(monkeypatch)
    out = printed(capsys, "overrides")
    assert "\x1b[1m" in out
    assert "# Overrides" not in out
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 90
    out = printed(capsys, "adamw")
    assert out.startswith("\x1b[1mluthier.optim.adamw\x1b[0m(")
    assert "\n  \x1b[36mb1\x1b[0m: float" in out
    assert "\n\x1b[1m  Source:\x1b[0m" in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(capsys, "adamw")
    assert not re.search(r"\x1b\[(3|9)\d", printed(capsys, "overrides"))


def test_long_texts_go_through_the_pager_that_is_chosen(tmp_path, capfd, monkeypatch):
    _on_terminal(monkeypatch)
    seen = tmp_path / "seen"
    monkeypatch.setenv("PAGER", f"tee {seen}")
    assert main(["help", "overrides"]) == 0
    assert "Overrides" in seen.read_text()
    assert capfd.readouterr().out == seen.read_text()
    # What fits on the screen is printed, and LUTHIER_PAGER comes first.
    seen.unlink()
    monkeypatch.setenv("LINES", "10000")
    assert main(["help", "overrides"]) == 0
    assert not seen.exists()
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("LUTHIER_PAGER", "cat")
    assert main(["help", "overrides"]) == 0
    assert not seen.exists()
    # A pager that ends early, or that does not exist, ends nothing else.
    monkeypatch.setenv("LUTHIER_PAGER", "true")
    assert main(["help", "overrides"]) == 0
    capfd.readouterr()
    monkeypatch.setenv("LUTHIER_PAGER", "no-such-pager")
    assert main(["help", "overrides"]) == 0
    assert "Overrides" in capfd.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("LUTHIER_PAGER", f"tee {seen}")
    assert main(["help", "overrides"]) == 0
    assert not seen.exists()
