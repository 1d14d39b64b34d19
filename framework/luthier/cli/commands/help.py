"""Read a page of the manual.

`luthier help` lists the commands; `luthier help PAGE` prints a page. The pages are Markdown.
"""

from __future__ import annotations

import argparse
import importlib.resources

from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    known = ", ".join(pages())
    parser.add_argument("page", metavar="PAGE", help=f"one of {known}")


def pages() -> list[str]:
    """Return the names of the pages of the manual."""
    folder = importlib.resources.files("luthier") / "pages"
    return sorted(f.name.removesuffix(".md") for f in folder.iterdir() if f.name.endswith(".md"))


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Print the page; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    from luthier.graph.paths import nearest

    problems = Problems(unknown)
    if arguments.page not in pages():
        near = nearest(arguments.page, pages())
        what = f"there is no page {arguments.page!r}"
        problems.add(what, remedy=f"there are {', '.join(pages())}", nearest=near)
    problems.raise_any()
    page = importlib.resources.files("luthier") / "pages" / f"{arguments.page}.md"
    print(page.read_text(encoding="utf-8"), end="")
    return EXIT_DONE
