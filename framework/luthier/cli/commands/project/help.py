"""Read about a topic, or about anything that has a name: a component, function or fiddler.

Without TOPIC, the command lists all topics. TOPIC is a page (overrides), a
command (train), a name that luthier exports, in full or only its end
(luthier.graph.apply, graph.apply, apply), a fiddler (bf16), a recipe (llama_7b),
an experiment (quickstart), a path of the config (training.steps), or a class or
function of your own packages. On a terminal, a pager shows long texts. It is
$LUTHIER_PAGER, $PAGER or less. In a pipe, pages are printed as Markdown.

examples:
  luthier help
  luthier help overrides
  luthier help adamw
  luthier help fsdp
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from luthier import folders, project
from luthier.cli import paging
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, BadInput, Problem
from luthier.terminal import can_print, has_colors, printable, styled

USAGE = "luthier help [TOPIC]"

# Groups of pages, in the order in which they are read.
_FOLDERS = ("get_started", "tutorials", "coming_from", "how_to", "explanation", "reference")
_MOST_ENTRIES = 3  # of a name; more are listed, with a line each
_MOST_RELATED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "page", nargs="?", metavar="TOPIC", help="a page, a command, or the name of an object"
    )


def pages() -> list[str]:
    """Return the names of the pages of the manual."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    """Return the files of the pages of the manual, by name."""
    return {name: Path(path) for name, path in folders.manual_pages().items()}


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier help`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    Problems(unknown).raise_any()
    if arguments.page is None:
        paging.show(_topics(_groups()))
        return EXIT_DONE
    paging.show(_answer(arguments.page))
    return EXIT_DONE


def _answer(name: str) -> str:
    """Return what there is about a name.

    Raises:
      BadInput: There is nothing of this name.
    """
    # The first of these wins, and `See also` names the others, which have longer names: a page, a
    # group of pages, a command, an object, an experiment, a setting. Only pages, commands and
    # groups are found without importing the packages of components.
    files = _files()
    name = name.removeprefix("fiddler:")  # as it is written on the command line
    if name in files:
        text = paging.without_html(files[name].read_text(encoding="utf-8"))
        return paging.rendered(text) if sys.stdout.isatty() else text
    groups = _groups()
    group = next((g for g in groups if name.lower() in (g, g.rstrip("s"), g.replace("_", "-"))), "")
    if group:
        return _topics({group: groups[group]})
    from luthier.cli import command_line

    if name in command_line.COMMANDS:
        from luthier.cli.showing import names

        text = command_line.parser_of(name).format_help()
        if name in names.exported()["luthier"]:
            text += f"\n{_see_also([f'luthier help luthier.{name}'])}"
        return command_line.arguments.colored(text) if has_colors() else text
    return _colored(_of_objects(name, files))


def _see_also(commands: Sequence[str]) -> str:
    return f"See also: {', '.join(commands)}\n"


# The list of topics.


def _groups() -> dict[str, dict[str, str]]:
    """Return the title of each page, by the folder and the name of the page."""
    found: dict[str, dict[str, str]] = {}
    for name, path in sorted(_files().items(), key=lambda item: (str(item[1].parent), item[0])):
        found.setdefault(path.parent.name, {})[name] = _title(path.read_text(encoding="utf-8"))
    known = [folder for folder in _FOLDERS if folder in found]
    return {folder: found[folder] for folder in dict.fromkeys([*known, *found])}


def _title(markdown: str) -> str:
    """Return the title of a page."""
    match = re.search(r"^# (.+)$", markdown, flags=re.MULTILINE)
    return match[1].replace("`", "") if match else ""


def _topics(groups: Mapping[str, Mapping[str, str]]) -> str:
    names = [name for group in groups.values() for name in group]
    indent = max(map(len, names)) + 4
    width = paging.width()
    bold = "bold" if has_colors() else ""
    lines = []
    for group, entries in groups.items():
        lines.append(styled(group.replace("_", " ").capitalize(), bold))
        for name, sentence in entries.items():
            text = textwrap.shorten(sentence, width - indent, placeholder=" ...")
            head = styled(name, "cyan" if bold else "") + " " * (indent - 2 - len(name))
            lines.append(f"  {head}{text}".rstrip())
        lines.append("")
    lines += [
        "luthier help TOPIC     read a page",
        "luthier help NAME      read about a component, function, fiddler, recipe or setting:",
        "                       adamw, luthier.graph.apply, fsdp, llama_7b, training.steps",
        "luthier list --components WORD",
        "                       search the components",
        "luthier --help         list the commands",
    ]
    return "\n".join(lines) + "\n"


# Entries of objects.


def _of_objects(name: str, files: Mapping[str, Path]) -> str:
    """Return the entries of the objects, experiments or settings that a name means."""
    from luthier.cli.showing import names

    own = project.find()
    found = names.find(name)
    fiddlers = names.fiddlers(own.shelves)
    known = [symbol.value for symbol in found]
    if name in fiddlers and not any(fiddlers[name] is value for value in known):
        found.append(names.Symbol(f"{fiddlers[name].__module__}.{name}", fiddlers[name]))
    experiments = _experiments(name)
    if not found and not experiments:
        return _of_settings_or_own(name, own.packages, fiddlers)
    if len(found) > _MOST_ENTRIES:
        return _listed(name, found)
    parts = [_entry(symbol, fiddlers, files) for symbol in found]
    parts += ["\n".join(_experiment_lines(listed)) + "\n" for listed in experiments if not found]
    related = [f"luthier show {listed.reference}" for listed in experiments if found]
    related += _longer_names(found)
    if related:
        parts.append(_see_also(related[:_MOST_RELATED]))
    return "\n".join(parts)


def _listed(name: str, found: Sequence[Any]) -> str:
    from luthier.cli.showing import entries

    indent = max(len(symbol.name) for symbol in found) + 4
    lines = [f"{name} is the name of {len(found)} objects; `luthier help` with a longer name:", ""]
    for symbol in found:
        text = entries.summary(symbol.value)
        text = textwrap.shorten(text, max(20, paging.width() - indent), placeholder=" ...")
        lines.append(f"  {symbol.name.ljust(indent - 2)}{text}".rstrip())
    return "\n".join(lines) + "\n"


def _entry(symbol: Any, fiddlers: Mapping[str, Any], files: Mapping[str, Path]) -> str:
    """Return the entry of an object, with notes on how it is used."""
    import inspect

    from luthier.cli.showing import entries, names

    short = symbol.name.rpartition(".")[2]
    notes = []
    if inspect.ismodule(symbol.value):
        exported = names.exported().get(symbol.name, ())
        members = [(each, entries.summary(getattr(symbol.value, each, None))) for each in exported]
        wide = max((len(each) for each, _ in members), default=0) + 2
        most = paging.width() - wide - 6
        lines = [
            f"{each.ljust(wide)}{textwrap.shorten(text, most, placeholder=' ...')}".rstrip()
            for each, text in members
        ]
        notes.append(("Names", "\n".join(lines)))
    elif fiddlers.get(short) is symbol.value:
        notes.append(("Use", _fiddler_command(short, symbol.value)))
    elif symbol.name.startswith(("luthier.recipes.decoders.", "luthier.recipes.encoders.")):
        notes.append(("Use", _recipe_command(symbol.name, symbol.value)))
    elif names.is_component(symbol.name):
        usages = entries.usages(symbol.value)
        if override := next((f"luthier show {r} {o}" for r, _, o in usages if o), ""):
            notes.append(("Override", override))
        if usages:
            lines = [f"{reference} at {path}" for reference, path, _ in usages]
            notes.append(("Used by", "\n".join(lines)))
    if symbol.others:
        notes.append(("Also", ", ".join(symbol.others)))
    if about := _pages_about(short, files):
        notes.append(("Pages", ", ".join(f"luthier help {page}" for page in about)))
    text = entries.entry(symbol.name, symbol.value, paging.width(), notes)
    return text if can_print(text) else text.encode("ascii", "replace").decode()


def _fiddler_command(name: str, function: Any) -> str:
    from luthier.graph import signatures

    known = signatures.arguments(function)
    required = [each for each in known.names[1:] if each not in known.defaults]
    if not required:
        return f"luthier train configs.lm.quickstart fiddler:{name}"
    return f"luthier train REF 'fiddler:{name}({', '.join(f'{each}=...' for each in required)})'"


def _recipe_command(name: str, function: Any) -> str:
    from luthier.graph import signatures

    known = signatures.arguments(function)
    required = [str(each) for each in known.names if each not in known.defaults]
    package, _, short = name.rpartition(".")
    given = f"({', '.join(f'{each}=...' for each in required)})" if required else ""
    reference = f"{package}:{short}{given}"
    return f"luthier show {reference!r} --params" if given else f"luthier show {reference} --params"


def _pages_about(name: str, files: Mapping[str, Path]) -> list[str]:
    """Return the pages that name an object in code, at most three."""
    word = re.compile(rf"(?:`|fiddler:|\.){re.escape(name)}(?:`|\(|\b)")
    counts = {
        page: len(word.findall(path.read_text(encoding="utf-8")))
        for page, path in files.items()
        if not page.startswith("settings")
    }
    found = sorted((page for page in counts if counts[page]), key=lambda page: -counts[page])
    return found[:3]


def _longer_names(found: Sequence[Any]) -> list[str]:
    """Return commands for names that continue with a size or a variant: llama_7b of llama."""
    from luthier.cli.showing import names

    # Of the same package only: `data_` begins names of many others.
    starts = tuple(f"{symbol.name}_" for symbol in found)
    longer = [full.rpartition(".")[2] for full in names.all_names() if full.startswith(starts)]
    return [f"luthier help {each}" for each in dict.fromkeys(longer)]


def _experiments(name: str) -> list[Any]:
    """Return the experiments and studies whose name ends so: `quickstart`, `families:llama`."""
    from luthier.cli import listing

    wanted = name.replace(":", ".")
    return [
        listed
        for package in folders.EXPERIMENT_FOLDERS
        for listed in listing.find_all(package)
        if f".{listed.reference.replace(':', '.')}".endswith(f".{wanted}")
    ]


def _experiment_lines(listed: Any) -> list[str]:
    facts = [
        ("Parameters", listed.parameters),
        ("Hardware", listed.hardware),
        ("Expected", listed.expected),
        ("Use", f"luthier show {listed.reference}"),
    ]
    lines = [listed.reference, f"  {listed.description}", ""]
    return [*lines, *(f"  {label}: {text}" for label, text in facts if text)]


def _of_settings_or_own(name: str, packages: Sequence[str], fiddlers: Mapping[str, Any]) -> str:
    """Return settings of components, or a class or function of another package.

    Raises:
      BadInput: There is nothing of this name.
    """
    from luthier.cli.showing import entries, names
    from luthier.graph.public_names import load_object

    if found := names.settings(name):
        return _settings_text(name, found)
    own = project.defined_names(packages)  # by their source: no module is imported for it
    if len(own.get(name, ())) == 1:
        (name,) = own[name]
    if "." in name and not name.startswith("luthier.") and not names.is_field(name.split(".")[0]):
        target = load_object(name, packages)
        if callable(target):
            return entries.entry(name, target, paging.width())
        raise BadInput(Problem(f"{name} is not a class or function"))
    from luthier.cli import command_line

    full = [*names.all_names(), *itertools.chain.from_iterable(own.values())]
    known = [*pages(), *command_line.COMMANDS, *fiddlers]
    known += full if "." in name else [each.rpartition(".")[2] for each in full]
    near = difflib.get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.6)
    near = own.get(name, near)[:3]  # the same name in several of the user's modules
    what = f"there is no topic and no object {name!r}"
    raise BadInput(Problem(what, remedy="`luthier help` lists the topics", nearest=near))


def _settings_text(path: str, found: Sequence[tuple[str, str]]) -> str:
    """Return the description of a setting in each component that has it."""
    from luthier.cli.showing import entries
    from luthier.cli.showing.settings import components

    by_name = {component.name: component for component in components()}
    lines = [f"{path}: a setting of"]
    for component, name in found[: 2 * _MOST_RELATED]:
        setting = next(s for s in by_name[component].settings if s.name == name)
        lines += ["", component, *entries.setting_lines(setting, paging.width())]
    if len(found) > 2 * _MOST_RELATED:
        more = len(found) - 2 * _MOST_RELATED
        lines += ["", f"and {more} more: `luthier help settings` lists the page of each package"]
    return "\n".join(lines) + "\n"


def _colored(text: str) -> str:
    """Return entries with colors: their names and labels bold, arguments cyan."""
    # Docstrings may be of anybody's package.
    text = printable(text)
    if not has_colors():
        return text
    text = re.sub(
        r"^  ([a-z_*]\w*)(?=: .*(?:=|\)$)|  \()",
        lambda m: "  " + styled(m[1], "cyan"),
        text,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"^(?:  [A-Z][\w ]*:(?= |$)|[a-z]\w*(?:\.\w+)+|See also:)",
        lambda m: styled(m[0], "bold"),
        text,
        flags=re.MULTILINE,
    )
