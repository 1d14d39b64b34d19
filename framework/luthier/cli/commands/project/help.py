"""Read a page of the manual, or the settings of one component.

`luthier help PAGE` prints a page of the manual, as Markdown. `luthier help
adamw` (or luthier.optim.adamw, or my_project.layers.Mine) lists the settings
of a component.
"""

from __future__ import annotations

import argparse
import importlib.resources

from luthier import project
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, Problem

USAGE = "luthier help [TOPIC]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    known = ", ".join(pages())
    parser.add_argument(
        "page", metavar="PAGE|COMPONENT", help=f"a page ({known}), or a component, as adamw"
    )


def pages() -> list[str]:
    """Return the names of the pages of the manual."""
    folder = importlib.resources.files("luthier") / "pages"
    return sorted(f.name.removesuffix(".md") for f in folder.iterdir() if f.name.endswith(".md"))


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier help`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
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
    """Return the entries of the components of a name, with or without their module."""
    # In this order: shipped components and those of entry points, also by a name that they had in
    # an earlier version; then any class or function of the user's packages. Several components can
    # have the same short name, and all of them are shown.
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
    # A name within luthier that is no component is not loaded; the nearest components are
    # suggested.
    if "." in name and not name.startswith("luthier."):
        with problems.collected():
            target = load_object(name, project.find().packages)
            if callable(target):
                return [settings.entry(describe(target, name))]
            problems.add(f"{name} is not a class or function")
        return []
    known = [c.name if "." in name else c.name.rpartition(".")[2] for c in shipped]
    near = nearest(name, [*pages(), *known])
    what = f"there is no page or component {name!r}"
    remedy = f"the pages are {', '.join(pages())}; `luthier help settings` lists the components"
    problems.add(what, remedy=remedy, nearest=near)
    return []
