"""The commands and their arguments, cached: making the parsers takes longer than a Tab may."""

from __future__ import annotations

import json
import os

import luthier
from luthier.cli.completion import cache


def commands() -> dict:
    """Return what the command line takes.

    Returns:
      `commands`, their help by name; `flags`, Fiddle's and Pax's that take a value; `options` of
      each command by name: [takes a value, choices, what it is, help]; `places` of each command,
      its words that are no options: [what it is, choices].
    """
    name = f"syntax-{cache.digest(_state().encode())}"
    try:
        found = json.loads(cache.read(name))
        if {"commands", "flags", "options", "places"} <= found.keys():
            return found
    except (ValueError, AttributeError):
        pass  # damaged, or not there
    found = _found()
    cache.write(name, json.dumps(found))
    return found


def _state() -> str:
    """Return what tells one state of the command line's files from another."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = [
        entry
        for folder in (here, os.path.join(here, "commands"))
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    ]
    stats = sorted(f"{file.path} {file.stat().st_mtime_ns}" for file in files)
    return "\n".join([luthier.__version__, *stats])


def _found() -> dict:
    from luthier.cli import main, spellings

    options, places = {}, {}
    for command in main.COMMANDS:
        parser = main.parser_of(command)
        shown = [action for action in parser._actions if action.help != "==SUPPRESS=="]
        options[command] = {
            option: [
                action.nargs != 0,
                _choices(action),
                str(action.metavar or ""),
                action.help or "",
            ]
            for action in shown
            for option in action.option_strings
        }
        places[command] = [
            [str(action.metavar or action.dest), _choices(action) or _told(action)]
            for action in shown
            if not action.option_strings
        ]
    return {
        "commands": dict(main.COMMANDS),
        "flags": list(spellings.flags()),
        "options": options,
        "places": places,
    }


def _choices(action: object) -> list[str]:
    return [str(choice) for choice in getattr(action, "choices", None) or ()]


def _told(action: object) -> list[str]:
    """Return the words that the help of an argument lists, where it does nothing else."""
    is_list = getattr(action, "metavar", None) in ("ACTION", "SHELL")
    return str(getattr(action, "help", "")).split(", ") if is_list else []
