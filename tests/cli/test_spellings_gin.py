from __future__ import annotations

import pytest

from luthier import cli
from luthier.cli import main
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE


def test_flags_become_words_at_their_place():
    words = ["a", "x=1", "--gin_file", "b.gin", "--gin.s/C.d=[1, 2]", "y=2"]
    words += ["--gin_bindings=C.d = 3", "--gin_search_paths=p,q", "--gin_skip_unknown", "--new"]
    translated = ["a", "x=1", "gin_file:b.gin", "gin_bindings:s/C.d = [1, 2]", "y=2"]
    translated += ["gin_bindings:C.d = 3", "gin_search_paths:p,q", "gin_skip_unknown:true", "--new"]
    assert cli.translate(words) == (translated, [])


def test_a_root_is_the_experiment():
    words, problems = cli.translate(["--gin_root", "Trainer", "a=1"])
    assert (words, problems) == (["gin_root:Trainer", "a=1"], [])
    _, problems = cli.translate(["--gin_file"])
    assert [problem.what for problem in problems] == ["--gin_file has no value"]


@pytest.fixture
def folder(importable_project):
    (importable_project / "small.gin").write_text(
        "DIM = 8\nDecoder.dim = %DIM\nTraining.steps = 2\n"
    )
    return importable_project


def run(capsys, *words):
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_gin_file_over_an_experiment(folder, capsys):
    words = ["show", "trials.tiny", "--gin_file", "small.gin", "--gin.DIM=24", "--why"]
    code, out, _ = run(capsys, *words)
    assert code == EXIT_DONE
    assert "argument 2: gin_bindings:DIM = 24" in out
    assert "small.gin:3: Training.steps = 2" in out


def test_flags_may_come_before_the_experiment(folder, capsys):
    code, out, _ = run(capsys, "show", "--gin_file", "small.gin", "trials.tiny", "training")
    assert code == EXIT_DONE
    assert "steps = 2" in out
    last = run(capsys, "show", "trials.tiny", "--gin_file", "small.gin", "training")
    assert (code, out, "") == last


def test_what_was_skipped_is_listed_beside_the_output(folder, capsys):
    words = ["show", "trials.tiny", "--gin.Nowhere.dim=1", "--gin_skip_unknown", "--to", "json"]
    code, out, errors = run(capsys, *words)
    assert code == EXIT_DONE
    assert out.startswith("{")
    assert errors == (
        "note: --gin_skip_unknown skipped 1 statement of gin that this experiment has no place "
        "for: Nowhere.dim\n"
    )


def test_an_export_is_shown_again(folder, capsys):
    assert run(capsys, "show", "trials.tiny", "--output", "tiny.gin")[0] == EXIT_DONE
    _, again, _ = run(capsys, "show", "tiny.gin", "--to", "gin")
    assert again == (folder / "tiny.gin").read_text()
    assert run(capsys, "show", "tiny.gin")[1] == run(capsys, "show", "trials.tiny")[1]


def test_a_class_without_an_experiment(folder, capsys):
    words = ["show", "--gin_root", "luthier.models.Decoder", "--gin_file", "small.gin"]
    code, out, _ = run(capsys, *words, "--gin_skip_unknown", "vocab_size=7")
    assert code == EXIT_DONE
    lines = ["luthier.models.Decoder", "  vocab_size = 7", "  dim = 8 (shared as DIM)"]
    assert out.splitlines()[:3] == lines


def test_bad_input_is_reported_with_file_and_line(folder, capsys):
    (folder / "bad.gin").write_text("Decodr.dim = 3\n")
    words = ["show", "trials.tiny", "--gin_file=bad.gin", "--gin.Training.stepz=3", "--gin_rot=a"]
    code, out, errors = run(capsys, *words)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    first, *others = errors.splitlines()
    assert first.startswith("luthier: unknown option '--gin_rot'; did you mean --gin_root")
    assert [line.removeprefix("luthier: ") for line in others] == [
        "there is nothing called 'Decodr' [set by bad.gin:1: Decodr.dim = 3]; did you mean "
        "Decoder?",
        "Training has no argument 'stepz' [set by argument 2: gin_bindings:Training.stepz = 3]; "
        "did you mean steps?",
    ]


PARTS = '''
import dataclasses

import gin


@gin.configurable("half", module="mine.parts")
def halved(rate, end=0.0):
    """Return half of a rate."""
    return rate / 2


@gin.configurable
@dataclasses.dataclass(frozen=True)
class OwnSchedule:
    """A schedule."""

    peak: float = 1.0

    def __call__(self, step):
        """Return the rate."""
        return self.peak
'''

GIN = """
import registered_parts

adamw.learning_rate = @OwnSchedule()
OwnSchedule.peak = @parts.half()
mine.parts.half.rate = %RATE
RATE = 0.5
"""


@pytest.fixture
def registered(importable_project):
    (importable_project / "registered_parts.py").write_text(PARTS)
    (importable_project / "own.gin").write_text(GIN)
    lines = '[tool.luthier]\npackages = ["trials", "registered_parts"]\n'
    (importable_project / "pyproject.toml").write_text(lines)
    return importable_project


@pytest.mark.usefixtures("registered")
def test_what_users_registered_is_found(capsys):
    assert main(["show", "trials.tiny", "--gin_file", "own.gin", "optimizer"]) == 0
    shown = capsys.readouterr().out.splitlines()
    start = shown.index("  learning_rate: registered_parts.OwnSchedule")
    assert shown[start + 1 : start + 3] == [
        "    peak: registered_parts.halved",
        "      rate = 0.5 (shared as RATE)",
    ]
    words = ["show", "trials.tiny", "--gin_file=own.gin", "--gin.half.rat=1"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    message = "halved has no argument 'rat' [set by argument 2: gin_bindings:half.rat = 1]"
    assert line == f"luthier: {message}; did you mean rate?"
