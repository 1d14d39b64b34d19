"""Read a page of the manual, or about one component.

`luthier help` lists the commands; `luthier help PAGE` prints a page, which is Markdown; `luthier
help adamw` (or luthier.optim.adamw, or my_project.layers.Mine) tells the settings of a component.
"""

from __future__ import annotations

import argparse
import importlib.resources

from luthier.cli import project
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    known = ", ".join(pages())
    parser.add_argument("page", metavar="PAGE|COMPONENT", help=f"one of {known}; or adamw")


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
    problems = Problems(unknown)
    if arguments.page in pages():
        problems.raise_any()
        page = importlib.resources.files("luthier") / "pages" / f"{arguments.page}.md"
        print(page.read_text(encoding="utf-8"), end="")
        return EXIT_DONE
    entries = _entries(arguments.page, problems)
    problems.raise_any()
    print("\n".join(entries), end="")
    return EXIT_DONE


def _entries(name: str, problems: Problems) -> list[str]:
    """Return the entries of the components of that name, with or without their module."""
    from luthier.cli.showing import settings
    from luthier.cli.showing.settings import added_components, components, describe
    from luthier.graph.paths import nearest
    from luthier.graph.public_names import current_name, load_object

    shipped = tuple(dict.fromkeys((*components(), *added_components())))
    moved = current_name(name if name.startswith("luthier.") else f"luthier.{name}")
    wanted = (moved if any(c.name == moved for c in shipped) else name).lower()
    same = [c for c in shipped if wanted in (c.name.lower(), c.name.rpartition(".")[2].lower())]
    if same:
        return [settings.entry(component) for component in same]
    if "." in name and not name.startswith("luthier."):
        with problems.collected():
            found = load_object(name, project.find().packages)
            if callable(found):
                return [settings.entry(describe(found, name))]
            problems.add(f"{name} is not a class or function")
        return []
    known = [c.name if "." in name else c.name.rpartition(".")[2] for c in shipped]
    near = nearest(name, [*pages(), *known])
    what = f"there is no page and no component {name!r}"
    remedy = f"the pages are {', '.join(pages())}; `luthier help settings` lists the components"
    problems.add(what, remedy=remedy, nearest=near)
    return []
