"""Pictures of a terminal as SVG: the output of real commands, in light and in dark.

The text of a picture is text, in one `tspan` for each run of one style, so that a test can compare
it with what the commands print now (`text_of`).
"""

from __future__ import annotations

import dataclasses
import fcntl
import html
import os
import pathlib
import pty
import shlex
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
_CHARACTER, _LINE, _MARGIN = 7.83, 18, 16  # pixels, at a font size of 13 pixels
# The colors of ANSI from 1 to 6, in light and in dark: each readable on its ground.
_COLORS = {
    "red": ("#b3261e", "#ff8a80"),
    "green": ("#22633a", "#8ed2a4"),
    "yellow": ("#7a4b00", "#ecc06b"),
    "blue": ("#2a57a5", "#8fb6f5"),
    "magenta": ("#7b3a8f", "#d7a6e8"),
    "cyan": ("#0b5c69", "#7bcfd9"),
}
_STYLE = """
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #1b1d20; white-space: pre; }}
.ground {{ fill: #fbfbf9; stroke: #d8d8d2; }} .dot {{ fill: #c9c9c4; }}
.bold {{ font-weight: 700; }} .dim {{ fill: #585f69; }}
{light}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e7e7e4; }} .ground {{ fill: #1a1d21; stroke: #2d3238; }} .dot {{ fill: #4a5058; }}
  .dim {{ fill: #a2aab4; }}
  {dark}
}}
"""


@dataclasses.dataclass(frozen=True)
class Screen:
    """A command and what it printed.

    Args:
      command: As it is typed.
      output: What it printed, with ANSI colors.
    """

    command: str
    output: str


def run(command: str, *, is_terminal: bool = True, cwd: pathlib.Path | None = None) -> Screen:
    """Run a command of luthier; return what it printed.

    Args:
      command: As it is typed, with `luthier` as its first word.
      is_terminal: Whether its output is a terminal, so that it has colors. A view that renews
        itself on a terminal is better taken as the lines that a pipe gets.
      cwd: Where it runs; the root of the repository where it is None.
    """
    program, *arguments = shlex.split(command)
    if program != "luthier":
        raise ValueError(f"{command!r} is not a command of luthier")
    path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
    environment = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "PYTHONPATH": path,
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "PAGER": "cat",
        # On a terminal, jax's choice of a device is announced; a picture shows what the CPU does.
        "JAX_PLATFORMS": "cpu",
    }
    words = [sys.executable, "-m", "luthier", *arguments]
    settings: dict[str, Any] = {"cwd": cwd or ROOT, "env": environment, "stdin": subprocess.DEVNULL}
    if not is_terminal:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings
        )
        return Screen(command, done.stdout.decode())
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, **settings)
    os.close(theirs)
    found = b""
    try:
        # The end of the terminal is an error on Linux (EIO), and an empty read elsewhere.
        while part := os.read(ours, 65536):
            found += part
    except OSError:
        pass
    finally:
        os.close(ours)
        process.wait()
    return Screen(command, _without_progress(found.decode()))


def _without_progress(text: str) -> str:
    """Return what stays on a terminal: a line that is erased or overwritten leaves nothing."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2].rpartition("\x1b[K")[2] for line in lines)


def lines_of(screen: Screen, most: int = 48, num_last: int = 0) -> list[Any]:
    """Return the lines of a picture as Rich texts: the prompt, the output, what is left out.

    Args:
      screen: The command and its output.
      most: The most lines of output.
      num_last: How many of them are the last ones, where not all are shown.
    """
    from rich.text import Text

    output = []
    for line in screen.output.rstrip("\n").split("\n"):
        text = Text.from_ansi(line)
        # As a terminal does it, in the middle of a word.
        output += text.divide(range(COLUMNS, len(text), COLUMNS))
    if len(output) > most:
        num_first = most - num_last - 1
        left = len(output) - num_first - num_last
        rest = Text(f"... {left} more lines", style="dim")
        output = [*output[:num_first], rest, *output[len(output) - num_last :]]
    prompt = Text.assemble(("$ ", "dim"), (screen.command, "bold"))
    return [*_wrapped(prompt), *output]


def _wrapped(prompt: Any) -> list[Any]:
    """Return a command on as many lines as it needs, as a shell continues it."""
    parts: list[Any] = []
    while len(prompt) > COLUMNS:
        at = prompt.plain.rfind(" ", 0, COLUMNS - 2)
        if at <= 4:
            break
        first, rest = prompt.divide([at + 1])
        first.append("\\")
        parts.append(first)
        rest.pad_left(4)
        prompt = rest
    return [*parts, prompt]


def _spans(line: Any) -> str:
    """Return the runs of one style of a line as SVG."""
    from rich.console import Console

    found = []
    at = 0
    for segment in line.render(Console(width=400, color_system="truecolor"), end=""):
        style = segment.style
        names = [] if style is None else [name for name in ("bold", "dim") if getattr(style, name)]
        if style is not None and style.color is not None:
            number = (style.color.number or 0) % 8  # the bright ones are from 9 to 14
            names += [list(_COLORS)[number - 1]] if 1 <= number <= 6 else []
        if segment.text.strip():
            kind = f' class="{" ".join(names)}"' if names else ""
            # The length is given, because the widths of fonts differ from ours.
            length = f'x="{_MARGIN + at * _CHARACTER:.1f}" textLength="{_width(segment.text)}"'
            found.append(f"<tspan {length}{kind}>{html.escape(segment.text, quote=False)}</tspan>")
        at += len(segment.text)
    return "".join(found)


def _width(text: str) -> str:
    return f"{len(text) * _CHARACTER:.1f}"


def _lines(lines: Sequence[Any]) -> str:
    found = []
    for i, line in enumerate(lines):
        if spans := _spans(line):
            found.append(f'<text y="{_MARGIN + 36 + i * _LINE}">{spans}</text>')
    return "\n".join(found)


def _document(num_lines: int, title: str, content: str, style: str = "") -> str:
    width = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
    height = num_lines * _LINE + 2 * _MARGIN + 32
    colors = [
        "\n".join(f".{name} {{ fill: {pair[i]}; }}" for name, pair in _COLORS.items())
        for i in (0, 1)
    ]
    dots = "".join(f'<circle class="dot" cx="{20 + 18 * i}" cy="19" r="5"/>' for i in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE.format(light=colors[0], dark=colors[1])}{style}</style>\n"
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
        f"{dots}\n{content}\n</svg>\n"
    )


def picture(screen: Screen, most: int = 48) -> str:
    """Return the picture of one command as SVG.

    Args:
      screen: The command and its output.
      most: The most lines of output.
    """
    lines = lines_of(screen, most)
    return _document(len(lines), f"Output of {screen.command}", _lines(lines))


def animation(screens: Sequence[Screen], most: int = 20, seconds: float = 5.0) -> str:
    """Return a picture that shows several commands, one after another, as SVG.

    Where a reader wants no motion, it shows the last one.

    Args:
      screens: The commands and their outputs.
      most: The most lines of one output.
      seconds: How long each of them is shown.
    """
    frames: list[tuple[Sequence[Any], float]] = []
    for screen in screens:
        lines = lines_of(screen, most, num_last=2 * most // 3)
        prompts = len(_wrapped(lines_of(Screen(screen.command, ""))[0]))
        frames += [(lines[:prompts], 1.0), (lines, seconds)]
    total, at = sum(duration for _, duration in frames), 0.0
    styles, parts = [], []
    for i, (lines, duration) in enumerate(frames):
        start, at = at, at + duration
        steps = {0.0: "hidden", 100 * start / total: "visible", 100 * at / total: "hidden"}
        if i == len(frames) - 1:
            steps[100.0] = "visible"
        keys = " ".join(f"{key:.2f}% {{ visibility: {value}; }}" for key, value in steps.items())
        styles.append(f"@keyframes f{i} {{ {keys} }}\n#f{i} {{ animation-name: f{i}; }}")
        parts.append(f'<g class="frame" id="f{i}">\n{_lines(lines)}\n</g>')
    last = len(frames) - 1
    style = f"""
.frame {{ visibility: hidden; animation: {total:g}s step-end infinite; }}
{chr(10).join(styles)}
@media (prefers-reduced-motion: reduce) {{
  .frame {{ animation: none !important; }} #f{last} {{ visibility: visible; }}
}}
"""
    height = max(len(lines) for lines, _ in frames)
    title = "A session: " + "; ".join(screen.command for screen in screens)
    return _document(height, title, "\n".join(parts), style)


def text_of(svg: str) -> str:
    """Return the text that a picture shows, line by line, without colors and blank lines.

    Args:
      svg: The picture.
    """
    space = "{http://www.w3.org/2000/svg}"
    found = []
    for line in ElementTree.fromstring(svg).iter(f"{space}text"):
        text = ""
        for span in line.iter(f"{space}tspan"):
            place = round((float(span.attrib["x"]) - _MARGIN) / _CHARACTER)
            text = text.ljust(place) + (span.text or "")
        found.append(text.rstrip())
    return "\n".join(found)
