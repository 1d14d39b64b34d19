"""What shells do to words without quotes, and the hint for a word that arrived damaged.

Shells replace `$name` by a variable, end the command at `&`, `;`, `|`, `<` and `>`, split at
spaces, take quotes away and make several words of `{a,b}`. What is left of such a word seldom means
anything. What a shell takes whole cannot be told: shells drop `#Name=1` as a comment, and fish
drops a word with `()` or with an unknown `$name`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from luthier.errors import Problem

HINT = "if you typed it in a shell, put the whole word in single quotes"

_OPERATOR = re.compile(r":=|[+*-]?=")
_EMPTIED = re.compile(r"(ref:|alias:)?(\.[A-Za-z_]|[*/%+)\]]|$)")
_CLOSING = {")": "(", "]": "[", "}": "{"}


def with_hints(problems: Iterable[Problem], words: Sequence[str]) -> list[Problem]:
    """Return problems, with a hint where a shell may have changed the word.

    Args:
      problems: Their origins say which word is meant: `argument 2: steps=`.
      words: The words of the grammar on the command line.
    """
    told = []
    for problem in problems:
        match = re.match(r"argument (\d+): ", problem.origin)
        index = int(match[1]) - 1 if match else len(words)
        wants_quotes = " quote" in problem.remedy
        if index < len(words) and (wants_quotes or _is_damaged(words, index)):
            remedy = f"{problem.remedy}; {HINT}" if problem.remedy else HINT
            problem = dataclasses.replace(problem, remedy=remedy)
        told.append(problem)
    return told


def _is_damaged(words: Sequence[str], index: int) -> bool:
    word = words[index]
    if word.startswith(("fiddler:", "file:")):
        return not _is_balanced(word) or word.endswith(":")
    match = _OPERATOR.search(word)
    if match is None:
        return not word.startswith("reset:") or " " in word
    target, value = word[: match.start()], word[match.end() :].strip()
    if _EMPTIED.match(value) or not _is_balanced(word) or re.search(r"\[[^'\"\]]* ", target):
        return True
    beside = [other for i, other in enumerate(words) if abs(i - index) == 1]
    return any(other.startswith(word[: match.end()]) for other in beside)


def _is_balanced(text: str) -> bool:
    """Return whether brackets and quotes are closed; quotes inside of words are apostrophes."""
    opened: list[str] = []
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not text[position - 1 : position].isalnum():
            quote = letter
        elif letter in "([{":
            opened.append(letter)
        elif letter in _CLOSING and (not opened or opened.pop() != _CLOSING[letter]):
            return False
    return not opened and not quote
