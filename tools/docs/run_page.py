"""Run the code of a documentation page, and compare what it prints with the page.

    python tools/docs/run_page.py docs/get_started/first_run.md            # compare
    python tools/docs/run_page.py docs/get_started/first_run.md --update   # rewrite the output
    python tools/docs/run_page.py docs/get_started/first_run.md --quick    # dry runs where marked

A page is executed if it has a comment `<!-- run: extras=examples; minutes=3 -->`: the extras of
luthier that it needs, and the minutes that it takes on two CPU cores. Its blocks run in order, in
one fresh folder and with nothing of the clone on the path but the package, as for a user:

- `console`: lines that begin with `$ ` are run by bash; the lines after each are its output. The
  working folder carries over from one command to the next.
- `python`: runs in one interpreter per page. A `text` block that follows it directly is its output.
- Everything else (`bash`, `yaml`, ...) is shown only.

Output is compared as by doctest with ELLIPSIS: `...` stands for any text, and a line of it for any
lines or none. `--update` replaces only what does not match, and keeps the elisions. A comment
directly before a block changes how it runs:

- `<!-- file: my_project/layers.py -->` writes the block to that file instead of running it.
- `<!-- exit: 2 -->` is the exit code of the block's last command (1: the Python code raises).
- `<!-- interrupt: step 200/ -->` presses Ctrl-C once a line of output matches the expression.
- `<!-- dry-run -->` marks what takes minutes: with `--quick`, `luthier train` gets `--dry-run`, and
  nothing else of the block runs.
- `<!-- skip: reason -->` does not run it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import doctest
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"<!--\s*([\w-]+)(?:\s*:\s*(.*?))?\s*-->", re.DOTALL)
DIRECTIVES = {"file", "exit", "interrupt", "dry-run", "skip"}
COLUMNS = 100
# What a shell starts in the background ignores Ctrl-C, and so do its children. By a process in
# between and not by `preexec_fn`, which forks, while JAX may have threads in this one.
WITH_CTRL_C = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Reads requests in JSON from its standard input; the last line of a reply is the mark and a status.
INTERPRETER = """
import json, os, sys, traceback
namespace, mark = {"__name__": "__main__"}, sys.argv[1]
requests, sys.stdin = sys.stdin, open(os.devnull)
for line in requests:
    request, status = json.loads(line), 0
    os.chdir(request["folder"])
    try:
        exec(compile("\\n" * request["line"] + request["code"], request["page"], "exec"), namespace)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    print(f"\\n{mark} {status}", flush=True)
"""


class PageError(Exception):
    """A block that did not do what its page shows, or a page that cannot be read."""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command or a piece of Python with the output that its page shows.

    Args:
      line: The line of the page that holds its first line, from 0.
      code: The source, without prompts.
      start, stop: The lines of the page that hold the output.
      compared: Whether the page shows the output at all.
    """

    line: int
    code: str
    start: int
    stop: int
    compared: bool = True


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code of a page, with the directives in the comments before it."""

    language: str
    commands: tuple[Command, ...]
    directives: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of documentation.

    Args:
      path: Its file.
      lines: Its text.
      blocks: Its blocks of code, of all languages.
      settings: The settings of its `run` comment; None if it is not executed.
    """

    path: Path
    lines: tuple[str, ...]
    blocks: tuple[Block, ...]
    settings: dict[str, str] | None

    @property
    def minutes(self) -> float:
        """Minutes that the page takes on two CPU cores."""
        return float((self.settings or {})["minutes"])

    @property
    def extras(self) -> list[str]:
        """The extras of luthier that the page needs."""
        return [e.strip() for e in (self.settings or {}).get("extras", "").split(",") if e.strip()]

    @property
    def has_dry_runs(self) -> bool:
        """Whether some of its blocks are shortened by `--quick`."""
        return any("dry-run" in block.directives for block in self.blocks)


def read(path: Path) -> Page:
    """Read a page.

    Raises:
      PageError: A comment is not one of those that the module describes.
    """
    text = path.read_text(encoding="utf-8")
    lines = tuple(text.splitlines())
    settings, blocks, directives, python_end = None, [], {}, None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            for name, value in COMMENT.findall(token.content):
                if name == "run":
                    settings = _run_settings(f"{path}:{token.map[0] + 1}", value)
                elif name in DIRECTIVES:
                    directives[name] = value
                elif settings is not None:
                    raise PageError(
                        f"{path}:{token.map[0] + 1}: unknown comment {name!r}; the known ones are "
                        f"run, {', '.join(sorted(DIRECTIVES))}"
                    )
            continue
        if token.type == "fence":
            first, last = token.map[0] + 1, token.map[1] - 1
            language = token.info.split()[0] if token.info else ""
            if language == "text" and python_end is not None and not directives:
                (code,) = blocks[-1].commands
                shown = dataclasses.replace(code, start=first, stop=last, compared=True)
                blocks[-1] = dataclasses.replace(blocks[-1], commands=(shown,))
            elif language == "console":
                commands = tuple(_console(lines, first, last))
                blocks.append(Block(language, commands, directives))
            else:
                code = Command(first, token.content, last, last, compared=False)
                blocks.append(Block(language, (code,), directives))
            python_end = token.map[1] if language == "python" and not directives else None
        elif token.block:
            python_end = None
        directives = {}
    return Page(path, lines, tuple(blocks), settings)


def _run_settings(place: str, text: str) -> dict[str, str]:
    settings = dict(part.strip().split("=", 1) for part in text.split(";") if "=" in part)
    if not {"minutes"} <= set(settings) <= {"minutes", "extras"}:
        raise PageError(f"{place}: write <!-- run: extras=NAMES; minutes=NUMBER -->, not {text!r}")
    return settings


def _console(lines: tuple[str, ...], first: int, last: int) -> Iterator[Command]:
    """Yield the commands between two lines of a page, each with its output."""
    number = first
    while number < last:
        at, code = number, [lines[number].strip().removeprefix("$ ")]
        while code[-1].endswith("\\") and number + 1 < last:
            number += 1
            code.append(lines[number].strip().removeprefix("> "))
        start = number + 1
        number = start
        while number < last and not lines[number].strip().startswith("$ "):
            number += 1
        yield Command(at, "\n".join(code), start, number)


@functools.cache
def _python_path() -> dict[str, str]:
    """Return the variable by which commands find the luthier of this checkout, where needed."""
    # Not where it is the one that is installed: commands for other machines pass the variable on,
    # and would print it on the page.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", "import luthier; print(luthier.__file__)"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    source = ROOT / "framework"
    is_installed = found.returncode == 0 and Path(found.stdout.strip()).is_relative_to(source)
    return {} if is_installed else {"PYTHONPATH": str(source)}


class Runner:
    """Runs the blocks of one page in one folder.

    Args:
      page: The page.
      folder: An empty folder.
      quick: Whether blocks that are marked `dry-run` are shortened.
    """

    def __init__(self, page: Page, folder: Path, quick: bool = False):
        self._page, self._quick = page, quick
        self._folder = folder / "session"
        self._folder.mkdir()
        self._cwd_file = folder / "cwd"
        commands = folder / "bin"
        commands.mkdir()
        # `-P`, as the installed script: the working folder is not on the path.
        for name, arguments in (("luthier", "-P -m luthier"), ("python", "")):
            script = commands / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            script.chmod(0o755)
        others = ("LUTHIER_", "WANDB_", "PYTHONPATH")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        self._environment = {
            **kept,
            "PATH": f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}"
            + os.environ["PATH"],
            **_python_path(),
            "PYTHONUNBUFFERED": "1",  # for errors and output in the order in which they come
            "WANDB_MODE": "offline",
            "COLUMNS": str(COLUMNS),
            "NO_COLOR": "1",
            "TERM": "dumb",
            "PAGER": "cat",
        }
        self._python: subprocess.Popen[str] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._python is not None:
            self._python.stdin.close()
            self._python.stdout.close()
            self._python.wait()

    def run(self, update: bool = False) -> str:
        """Run all blocks; return the text of the page.

        Args:
          update: Whether output that differs is put into the text instead of raising.

        Raises:
          PageError: The output or the exit code of a command is not that of the page.
        """
        changes: list[tuple[int, int, list[str]]] = []
        for block in self._page.blocks:
            if "skip" in block.directives:
                continue
            if "file" in block.directives:
                place = self._folder / block.directives["file"]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.commands[0].code, encoding="utf-8")
            elif block.language in ("console", "python"):
                shortened = self._quick and "dry-run" in block.directives
                for number, command in enumerate(block.commands, 1):
                    is_last = number == len(block.commands)
                    lines = self._run(block, command, shortened, is_last, update)
                    if lines is not None:
                        changes.append((command.start, command.stop, lines))
        lines = list(self._page.lines)
        for start, stop, output in reversed(changes):
            lines[start:stop] = output
        return "\n".join(lines) + "\n"

    def _run(
        self, block: Block, command: Command, shortened: bool, is_last: bool, update: bool
    ) -> list[str] | None:
        """Run a command; return its new output, or None where the page is right."""
        expected = [line.rstrip() for line in self._page.lines[command.start : command.stop]]
        indent = re.match(r" *", self._page.lines[command.line])[0]
        expected = [line.removeprefix(indent) for line in expected]
        status = int(block.directives.get("exit", 0)) if is_last else 0
        code = command.code
        if block.language == "console":
            if shortened:
                if not code.startswith("luthier train "):
                    return None
                code, status = f"{code} --dry-run", 0
            output, found = self._shell(code, block.directives.get("interrupt"))
        else:
            if shortened:
                return None
            output, found = self._evaluate(code, command.line)
        got = [line.rstrip() for line in output.splitlines()]
        while got and not got[-1]:
            got.pop()
        place = f"{self._page.path}:{command.line + 1}"
        if found != status:
            shown = "\n".join(got[-30:])
            raise PageError(f"{place}: exit code {found}, not {status}, of\n{code}\n\n{shown}")
        if shortened or not command.compared or matches(expected, got):
            return None
        if not update:
            difference = "\n".join(difflib.ndiff(merged(expected, got), got))
            raise PageError(
                f"{place}: other output than on the page, of\n{code}\n\nexpected:\n"
                + "\n".join(expected)
                + "\n\ngot:\n"
                + "\n".join(got)
                + (f"\n\ndifference:\n{difference}" if len(got) < 40 else "")
            )
        return [(indent + line).rstrip() for line in merged(expected, got)]

    def _shell(self, code: str, interrupt: str | None) -> tuple[str, int]:
        """Run a command in bash; return its output and exit code."""
        script = f'{code}\nstatus=$?; pwd > "$RUN_PAGE_CWD"; exit $status'
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_CTRL_C, "bash", "-c", script],
            cwd=self._folder,
            env={**self._environment, "RUN_PAGE_CWD": str(self._cwd_file)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a group of its own, which Ctrl-C reaches as on a terminal
        )
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if interrupt is not None and re.search(interrupt, line):
                    lines.append("^C\n")
                    os.killpg(process.pid, signal.SIGINT)
                    interrupt = None
            code = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
        if interrupt is not None:
            lines.append(f"[no line matched {interrupt!r}: there was no Ctrl-C]\n")
        if self._cwd_file.exists():
            self._folder = Path(self._cwd_file.read_text().strip())
        # bash dies of the signal that its command handled.
        return "".join(lines), 128 - code if code < 0 else code

    def _evaluate(self, code: str, line: int) -> tuple[str, int]:
        """Run Python code in the interpreter of the page; return its output and 1 if it raised."""
        mark = "end-of-block"
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER, mark],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        page = str(self._page.path.resolve())
        request = {"folder": str(self._folder), "line": line, "page": page, "code": code}
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        return _reply(self._python.stdout, mark)


def _reply(stream: IO[str], mark: str) -> tuple[str, int]:
    lines = []
    for line in stream:
        if line.startswith(f"{mark} "):
            return "".join(lines), int(line.split()[1])
        lines.append(line)
    return "".join(lines), 1  # the interpreter ended


def matches(expected: list[str], got: list[str]) -> bool:
    """Return whether lines of output are those of a page, by doctest's rules for `...`."""
    want, have = ("\n".join(lines).rstrip() + "\n" for lines in (expected, got))
    # With the end of its own line, `...` would stand for one line or more.
    want = re.sub(r"^\.\.\.\n", "...", want, flags=re.MULTILINE)
    return doctest.OutputChecker().check_output(want, have, doctest.ELLIPSIS)


def merged(expected: list[str], got: list[str]) -> list[str]:
    """Return the output with the elisions of the page, wherever the page still matches it."""
    result: list[str] = []
    position, gap = 0, False
    for line in expected:
        if line.strip() == "...":
            gap = True
            continue
        found = next((i for i in range(position, len(got)) if matches([line], [got[i]])), None)
        if found is None:
            continue
        between = got[position:found]
        result += ["...", line] if gap and between else [*between, line]
        position, gap = found + 1, False
    rest = got[position:]
    return result + (["..."] if gap and rest else rest)


def run(path: Path, *, quick: bool = False, update: bool = False) -> str:
    """Run a page in a fresh folder; return its text, with the new output where it is updated.

    Args:
      path: The page.
      quick: Whether blocks that are marked `dry-run` are shortened.
      update: Whether output that differs is put into the text instead of raising.

    Raises:
      PageError: The page does not show what its code does, or has no `run` comment.
    """
    page = read(path)
    if page.settings is None:
        raise PageError(f"{path}: has no comment <!-- run: minutes=NUMBER -->")
    with (
        tempfile.TemporaryDirectory(prefix="page-") as folder,
        Runner(page, Path(folder), quick) as runner,
    ):
        return runner.run(update)


def main() -> int:
    """Run pages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--update", action="store_true", help="write the output into the pages")
    parser.add_argument("--quick", action="store_true", help="shorten blocks marked dry-run")
    arguments = parser.parse_args()
    if arguments.update and arguments.quick:
        parser.error("--update needs the whole output: leave out --quick")
    failed = False
    for path in arguments.pages:
        try:
            text = run(path, quick=arguments.quick, update=arguments.update)
        except PageError as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        changed = text != path.read_text(encoding="utf-8")
        if changed and arguments.update:
            path.write_text(text, encoding="utf-8")
        print(f"{path}: {'updated' if changed else 'as printed'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
