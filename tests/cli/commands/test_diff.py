from __future__ import annotations

import json
import re
import subprocess
import sys

import jax
import pytest

from luthier.cli import main

CHANGED = "trials.tiny model.num_layers=2 name=other checkpoints.every.count=3"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "effects"))
    jax.devices()  # are those of the tests, whatever the command asks for


def _run(capsys, *words):
    code = main(["diff", *words])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_tree(project, capsys):
    code, out, err = _run(capsys, "trials.tiny", "trials.tiny model.num_layers=2 name=other")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "- trials.tiny",
        "+ trials.tiny model.num_layers=2 name=other",
        "2 changes: 2 changed",
        "├── ~ name: 'tiny' -> 'other'",
        "└── ~ model.num_layers: 1 -> 2 (x2)",
    ]


def test_what_is_left_out_does_not_count(project, capsys):
    both = ("trials.tiny", "trials.tiny model.num_layers=2 name=other")
    assert _run(capsys, *both, "--exit-code")[0] == 1
    code, out, _ = _run(capsys, *both, "--exit-code", "--ignore", "**.name", "--ignore", "model")
    assert (code, out.splitlines()[-1]) == (0, "nothing differs")
    code, out, _ = _run(capsys, *both, "--only", "structure", "--exit-code")
    assert (code, out.splitlines()[-1]) == (0, "nothing differs")


def test_why(project, capsys):
    out = _run(capsys, "trials.tiny", "trials.tiny seed=3 model.dim=32", "--why")[1]
    assert re.search(r"│   ├── - set by \S*trials/tiny\.py:\d+\n", out)
    assert "│   └── + set by argument 2: model.dim=32" in out
    assert "    └── + set by argument 1: seed=3" in out


def test_json(project, capsys):
    out = _run(capsys, "trials.tiny", "trials.tiny seed=3", "--json")[1]
    found = json.loads(out)
    assert found["version"] == 1
    assert [change["path"] for change in found["changes"]] == ["seed"]
    assert found["sides"][1]["title"] == "trials.tiny seed=3"
    assert "effects" not in found


def test_overrides_are_words_that_make_the_second(project, capsys):
    out = _run(capsys, "trials.tiny", CHANGED, "--overrides")[1]
    words = out.splitlines()
    assert words == ["model.num_layers=2", "checkpoints.every.count=3", "\"name='other'\""]
    code, out, _ = _run(capsys, f"trials.tiny {' '.join(words)}", CHANGED, "--exit-code")
    assert (code, out.splitlines()[-1]) == (0, "nothing differs")


def test_a_patch_is_a_fiddler(project, capsys):
    code, out, err = _run(capsys, "trials.tiny", CHANGED, "--patch", "made.py")
    assert (code, out, err) == (0, "", "made.py\n")
    code, out, _ = _run(capsys, "trials.tiny fiddler:made:patch", CHANGED, "--exit-code")
    assert (code, out.splitlines()[-1]) == (0, "nothing differs")
    assert (
        _run(capsys, "trials.tiny", CHANGED, "--patch", "-")[1] == (project / "made.py").read_text()
    )


def test_what_no_override_and_no_fiddler_can_make_is_listed_with_the_reason(project, capsys):
    (project / "unwritable.py").write_text(
        "import fiddle as fdl\n"
        "def plain():\n    return fdl.Config(dict, a=3)\n"
        "def closed():\n    return fdl.Config(dict, a=lambda: 4)\n"
    )
    operands = ("unwritable:plain", "unwritable:closed")
    assert _run(capsys, *operands, "--overrides") == (
        0,
        "# a: unwritable.closed.<locals>.<lambda> has no form that code can write\n",
        "",
    )
    code, out, err = _run(capsys, *operands, "--patch", "made.py")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "luthier: the difference cannot be written as a fiddler"
    assert second.startswith("luthier: a: ")
    assert not (project / "made.py").exists()


def test_a_page(project, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    both = ("trials.tiny", "trials.tiny seed=3")
    assert _run(capsys, *both, "--html", "out.html", "--open") == (0, "", "out.html\n")
    assert "trials.tiny seed=3" in (project / "out.html").read_text()
    assert shown == [(project / "out.html").resolve().as_uri()]
    code, _, err = _run(capsys, *both, "--html", "no/folder/out.html")
    assert code == 2
    assert err == "luthier: cannot write no/folder/out.html: No such file or directory\n"


@pytest.mark.full
def test_effects(project, capsys):
    code, out, _ = _run(capsys, "trials.tiny", "trials.tiny model.num_layers=2", "--effects")
    assert code == 0
    lines = out.splitlines()
    assert lines[4] == "effects"
    assert any(line.startswith("    blocks") and line.endswith("(x2)") for line in lines)
    assert "  checkpoint  no: a checkpoint of the first does not fit the second:" in lines
    out = _run(capsys, "trials.tiny", "trials.tiny seed=1", "--effects", "--json")[1]
    assert set(json.loads(out)["effects"]) == {"quantities", "charts", "verdicts"}


@pytest.mark.full
def test_effects_of_experiments_with_components_of_the_project(importable_project, capsys):
    (importable_project / "pyproject.toml").write_text(
        '[tool.luthier]\npackages = ["gate_norms"]\n'
    )
    (importable_project / "gate_norms.py").write_text(
        "from luthier import layers\n\n\nclass GateNorm(layers.RMSNorm):\n    pass\n"
    )
    own = "trials.tiny model.norm=gate_norms.GateNorm()"
    code, out, err = _run(capsys, own, f"{own} model.num_layers=2", "--effects")
    assert (code, err) == (0, "")
    assert any(line.startswith("    blocks") and line.endswith("(x2)") for line in out.splitlines())


def test_two_names_of_one_config_are_noted(importable_project, capsys):
    (importable_project / "named_twice").mkdir()
    (importable_project / "named_twice" / "quickstart.py").write_text(
        "from luthier.shipped.configs.lm.quickstart import experiment\n"
    )
    own, other = "named_twice.quickstart", "named_twice.quickstart:experiment"
    shipped = "luthier.shipped.configs.lm.quickstart"
    code, out, err = _run(capsys, own, other)
    assert (code, out.splitlines()[-1]) == (0, "nothing differs")
    assert err == (
        f"note: {own} and {other} are the same config, named_twice/quickstart.py; the one "
        f"that comes with luthier is {shipped}\n"
    )
    assert _run(capsys, own, f"{other} seed=1")[2] == ""
    assert _run(capsys, own, shipped) == (0, f"- {own}\n+ {shipped}\nnothing differs\n", "")


def test_more_than_two_are_a_matrix(project, capsys):
    words = ("trials.tiny", "trials.tiny seed=1", "trials.tiny seed=2 model.dim=32")
    code, out, _ = _run(capsys, *words, "--exit-code")
    assert code == 1
    assert [line.split() for line in out.splitlines()[5:]] == [
        ["A", "B", "C"],
        ["seed", "0", "1", "2"],
        ["model.dim", "16", ".", "32"],
    ]
    found = json.loads(_run(capsys, *words, "--json", "--ignore", "seed")[1])
    assert [row["path"] for row in found["rows"]] == ["model.dim"]
    assert _run(capsys, *words, "--html", "m.html") == (0, "", "m.html\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no operands are given"),
        (("trials.tiny",), "only one operand is given"),
        (("a", "b", "--json", "--overrides"), "--json and --overrides cannot be combined"),
        (("a", "b", "--patch", "x", "--only", "values"), "--patch covers all differences"),
        (("a", "b", "--devices", "cpu"), "--devices needs --effects"),
        (("a", "b", "--textconv"), "--textconv needs one file"),
        (("trials.tiny",) * 3 + ("--why",), "--why needs exactly two operands; give two"),
        (("trials.tiny", "trials.tinny"), "did you mean trials.tiny?"),
        (("trials.tiny", "bad.json"), "bad.json is not readable as JSON"),
        (("trials.tiny", "none.json"), "there is no module 'none.json'"),
        (("trials.tiny", "trials.tiny", "--only", "some"), "invalid choice: 'some'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(project, capsys, words, text):
    (project / "bad.json").write_text('{"format"')
    code, out, err = _run(capsys, *words)
    assert (code, out) == (2, "")
    assert any(text in line for line in err.splitlines())
    assert all(line.startswith("luthier: ") for line in err.splitlines())


def test_git_diff_reads_records_by_textconv(project, capsys):
    assert main(["show", "trials.tiny", "--output", "config.json"]) == 0
    capsys.readouterr()
    code, out, _ = _run(capsys, "--textconv", "config.json")
    assert code == 0
    assert "model.block.attention.num_heads = 2" in out.splitlines()


def test_help_imports_no_jax_and_no_fiddle():
    code = (
        "import sys; from luthier.cli import main\n"
        "try: main(['diff', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(sorted({'jax', 'fiddle', 'flax', 'rich'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--textconv" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_two_operands_are_printed_as_markdown(importable_project, capsys):
    assert main(["diff", "trials.tiny", "trials.tiny seed=3", "--markdown", "--why"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### Configs: trials.tiny → trials.tiny seed=3\n\n1 changed.\n")
    assert "~ seed: 0 -> 3 (+3)" in text
    assert "+ set by argument 1: seed=3" in text
