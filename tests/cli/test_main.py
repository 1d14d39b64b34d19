from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
import types

import pytest

from luthier import errors, user_code
from luthier.cli import COMMANDS, main, manual_pages, parser_of
from luthier.records import crash


@pytest.fixture
def command(monkeypatch):
    """Installs a command `probe` that runs the given function."""

    def install(function):
        module = types.ModuleType("luthier.cli.commands.probe", "A probe.")
        module.USAGE = "luthier probe"
        module.add_arguments = lambda parser: None
        module.run = lambda arguments, unknown: function()
        monkeypatch.setitem(sys.modules, "luthier.cli.commands.probe", module)
        monkeypatch.setitem(COMMANDS, "probe", "a probe")

    return install


def _raise(error):
    raise error


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_no_command_is_bad_input_and_shows_the_help(capsys):
    assert main([]) == errors.EXIT_BAD_INPUT
    assert "usage: luthier" in capsys.readouterr().out


def test_version(capsys):
    import luthier

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"luthier {luthier.__version__}\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as caught:
        parser_of(name).parse(["--help"])
    assert caught.value.code == 0
    assert f"usage: luthier {name}" in capsys.readouterr().out


def test_help_has_examples_last_and_what_a_command_needs(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    out = capsys.readouterr().out
    assert out.startswith("usage: luthier train REF [OVERRIDE ...] [OPTIONS]\n")
    heads = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads[0] == "arguments:"
    assert heads[-3:] == ["general options:", "overrides:", "examples:"]
    assert "resuming a run:" in heads


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_usage_lines_name_arguments_and_options_that_exist(name):
    parser = parser_of(name)
    for each in (parser, *parser.actions.values()):
        usage = each.usage.replace("[OPTIONS]", "").partition(" -- ")[0]
        text = "|".join(str(action.metavar) for action in each._actions)
        for word in re.findall(r"\b[A-Z]{3,}\b", usage.replace("BASE..HEAD", "")):
            assert word in text or word in ("ARGUMENTS", "TOPIC", "NAME"), word
        options = {option for action in each._actions for option in action.option_strings}
        assert set(re.findall(r"--[a-z-]+", usage)) <= options


def test_an_action_has_a_help_of_its_own(capsys):
    for words in (["data", "prepare", "--help"], ["data", "--help", "prepare"]):
        with pytest.raises(SystemExit):
            main(words)
        out = capsys.readouterr().out
        assert out.startswith("usage: luthier data prepare DIR")
        assert "--text PATTERN" in out
        assert "--batches" not in out
        assert "luthier data prepare corpus --text" in out.partition("\nexamples:\n")[2]
    with pytest.raises(SystemExit):
        main(["sweep", "best", "--help"])
    out = capsys.readouterr().out
    assert "--as {overrides,python,json}" in out
    assert "--space" not in out
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert "--text PATTERN" not in capsys.readouterr().out


def test_help_and_errors_have_colors_on_a_terminal_only(monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def printed():
        with pytest.raises(SystemExit):
            main(["plan", "--help"])
        main(["--help"])
        main(["show", "--wyh"])
        captured = capsys.readouterr()
        return captured.out, captured.err

    plain = printed()
    assert "\x1b" not in "".join(plain)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    out, err = printed()
    assert "\x1b[1musage:\x1b[0m luthier plan REF" in out
    assert "  \x1b[36m--slice SLICE\x1b[0m  " in out
    assert "  \x1b[36mtrain\x1b[0m  " in out
    assert "luthier: \x1b[31munknown option '--wyh'\x1b[0m\x1b[32m; did you mean --why" in err
    assert (re.sub(r"\x1b\[\d*m", "", out), re.sub(r"\x1b\[\d*m", "", err)) == plain
    monkeypatch.setenv("TERM", "dumb")
    assert printed() == plain
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed() == plain


def test_the_topics_of_the_help_are_pages(capsys):
    from luthier.cli import command_line

    assert set(command_line.TOPICS) <= set(manual_pages())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(["trian"], "train"), (["evalaute"], "evaluate"), (["--halp"], ""), (["frobnicate"], "")],
)
def test_unknown_commands_suggest_the_nearest(words, nearest, capsys):
    assert main(words) == errors.EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("luthier: unknown ")
    assert nearest in line


def test_bad_input_is_one_line_for_each_problem(command, capsys):
    problems = [errors.Problem("a is wrong", path="x.a"), errors.Problem("b is\nwrong")]
    command(lambda: _raise(errors.OverrideError(problems)))
    assert main(["probe"]) == errors.EXIT_BAD_INPUT
    assert capsys.readouterr().err == "luthier: x.a: a is wrong\nluthier: b is wrong\n"


def test_debug_shows_the_traceback_of_bad_input(command, capsys):
    command(lambda: _raise(errors.BadInput("wrong")))
    assert main(["probe", "--debug"]) == errors.EXIT_BAD_INPUT
    assert "Traceback" in capsys.readouterr().err


def test_stopped_training_is_a_line_and_an_error(command, capsys):
    command(lambda: _raise(errors.TrainingStopped("5 steps in a row were skipped")))
    assert main(["probe"]) == errors.EXIT_BUG
    assert capsys.readouterr().err == "luthier: 5 steps in a row were skipped\n"


def test_our_bugs_show_their_traceback(command, capsys, monkeypatch):
    monkeypatch.setattr(user_code, "is_users", lambda filename: False)
    command(lambda: _raise(ZeroDivisionError("oops")))
    assert main(["probe"]) == errors.EXIT_BUG
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert output.endswith("luthier: this is a bug in luthier: ZeroDivisionError: oops\n")


def test_an_error_in_the_users_code_is_printed_with_its_place_and_arguments(
    command, capsys, tmp_path
):
    def fail():
        try:
            _raise(ZeroDivisionError("oops"))
        except ZeroDivisionError as error:
            if kept:
                crash.write(tmp_path, error, graph_path="model.block")
            raise

    place = f"tests/cli/test_main.py:{_raise.__code__.co_firstlineno + 1}, in _raise"
    kept = False
    command(fail)
    assert main(["probe"]) == errors.EXIT_BUG
    first, *_, frame, called, last = capsys.readouterr().err.splitlines()
    assert first == "luthier: ZeroDivisionError: oops"
    assert frame == f"luthier:   {place}: raise error"
    assert called == "luthier:   called with error=ZeroDivisionError"
    assert last == "luthier: to see the traceback, add --debug"
    assert main(["probe", "--debug"]) == errors.EXIT_BUG
    assert "Traceback" in capsys.readouterr().err
    kept = True
    assert main(["probe"]) == errors.EXIT_BUG
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "luthier: model.block: ZeroDivisionError: oops"
    assert last == f"luthier: traceback: {crash.newest(tmp_path)}"


def test_interrupts_exit_with_130(command, capsys):
    command(lambda: _raise(KeyboardInterrupt()))
    assert main(["probe"]) == errors.EXIT_INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_the_machines_failures_are_one_line(command, capsys, number):
    command(lambda: _raise(OSError(number, os.strerror(number), "runs/a")))
    assert main(["probe"]) == errors.EXIT_BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "runs/a" in line


def test_other_system_errors_are_bugs(command, capsys):
    command(lambda: _raise(OSError(errno.EBADF, "bad")))
    assert main(["probe", "--debug"]) == errors.EXIT_BUG
    assert "Traceback" in capsys.readouterr().err


def test_the_working_directory_can_be_imported_and_is_taken_back(command, monkeypatch, tmp_path):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    command(lambda: seen.extend(sys.path) or 0)
    assert main(["probe"]) == 0
    assert seen[0] == str(tmp_path)
    assert str(tmp_path) not in sys.path


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["list"]) == errors.EXIT_BAD_INPUT
    assert "working directory" in capsys.readouterr().err


def _luthier(*words, **settings):
    command = [sys.executable, "-m", "luthier", *words]
    return subprocess.run(command, capture_output=True, text=True, **settings)


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m luthier --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_the_process_exits_with_the_code():
    done = _luthier("trian")
    assert done.returncode == errors.EXIT_BAD_INPUT
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "code", ["import luthier", "from luthier.cli import main; main(['--help'])"]
)
def test_import_and_help_take_less_than_half_a_second(code):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
        if times[-1] < 0.5:
            return
    pytest.fail(f"{code}: {times} s")


@pytest.mark.parametrize("name", ["show", "train"])
def test_help_of_fiddle(project, capsys, name):
    assert main([name, "--fdl_help"]) == 0
    assert capsys.readouterr().out.startswith("# Overrides")
    assert main([name, "trials.tiny", "--fdl.seed=5", "--fdl_help"]) == 0
    out = capsys.readouterr().out
    assert "seed = 5" in out
    assert "(default)" in out
    assert out.endswith("`luthier help overrides` describes all forms\n")


def test_commands_about_experiments_list_the_flags_of_other_frameworks():
    assert "--fiddler NAME" in parser_of("train").format_help()
    assert "--fiddler" not in parser_of("evaluate").format_help()
