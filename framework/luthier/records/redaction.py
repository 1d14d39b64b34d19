"""Keeps secrets out of records: passwords, keys and tokens in texts, output and JSON files.

Records are shared: they are copied to object stores, uploaded to W&B and attached to reports. Known
secrets are the values of variables with a telling name, the passwords of netrc, and whatever stands
where a URL holds a credential.
"""

from __future__ import annotations

import functools
import json
import netrc
import os
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from luthier import storage
from luthier.errors import Problem, RecordError

# Finds secrets in texts: those of this process's environment, and those that stand in URLs.
#
# A secret of the environment is the value of a variable whose name says so, as WANDB_API_KEY or
# HF_TOKEN, or a password of ~/.netrc. In a URL it is what stands between the scheme and `@`, or in
# a query under a name such as `signature`.

_LEAST = 8  # shorter values would be found everywhere
_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|ACCESS_KEY(_ID)?|SECRET|TOKEN|PASS|PASSWD|PASSWORD|CREDENTIALS?|AUTH)S?$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(
    # The look-ahead keeps what was redacted before as it is, so that redacting twice gives the same
    # text, and `find_secret` finds nothing in it.
    r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]*://)(?!\*\*\*@)[^\s/?#@'\"<>]+@"
)
_SECRET_IN_QUERY = re.compile(
    r"(?P<name>[?&;](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|token|"
    r"access_token|api_?key|key|password|secret)=)(?!\*\*\*)[^&;#\s'\"<>]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return a text with stars, or the name of the variable, in the place of each secret.

    Args:
      text: The text to record or to show.

    Returns:
      The text; the same where nothing was found.

    Example:
      >>> from luthier import records
      >>> records.redact("https://me:secret@example.com/data")
      'https://***@example.com/data'
    """
    for secret, name in _known():
        if secret in text:
            # The name stays readable, so that a record shows which variable was used.
            text = text.replace(secret, f"[{name}]")
    if "://" in text:
        text = _PASSWORD_IN_URL.sub(r"\g<scheme>***@", text)
        text = _SECRET_IN_QUERY.sub(r"\g<name>***", text)
    return text


def find_secret(text: str) -> str:
    """Return a description of the secret that a text holds, or empty.

    Args:
      text: Any text.

    Returns:
      A phrase that does not hold the secret itself.

    Example:
      >>> from luthier import records
      >>> records.find_secret("https://me:secret@example.com/data"), records.find_secret("plain")
      ('a password in a URL', '')
    """
    return _find(text, _known())


def _find(text: str, known: tuple[tuple[str, str], ...]) -> str:
    for secret, name in known:
        if secret in text:
            return f"the value of {name}"
    if "://" in text and _PASSWORD_IN_URL.search(text):
        return "a password in a URL"
    if "://" in text and _SECRET_IN_QUERY.search(text):
        return "a key in a URL"
    return ""


def require_none(values: Any, what: str) -> None:
    """Refuse nested plain data that holds a secret: it must be recorded as it is.

    Args:
      values: Dicts, lists and leaves.
      what: Their name, for the message.

    Raises:
      RecordError: They hold secrets; each is named by its path and not shown.

    Example:
      >>> from luthier import records
      >>> records.require_none({"path": "data/train"}, "the config")
    """
    remedy = "leave it out, and give it by the environment or ~/.netrc where it is used"
    known = _known()
    problems = [
        Problem(f"holds {found}, which {what} would keep for all to read", path, remedy=remedy)
        for path, text in _texts(values, "")
        if (found := _find(text, known))
    ]
    if problems:
        raise RecordError(problems)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _texts(entry, f"{path}[{index}]")


def _known() -> tuple[tuple[str, str], ...]:
    """Return the secrets of this process and what each is called, the longest first."""
    # Read anew at each call, because programs set variables at run time; what is made of them is
    # cached by their values. Only values of telling names are looked at: this is called for every
    # line that is recorded.
    named = tuple((name, os.environ[name]) for name in os.environ if _is_telling(name))
    return _forms(named, _netrc_path())


@functools.lru_cache(maxsize=4096)
def _is_telling(name: str) -> bool:
    return _NAME.search(name) is not None


@functools.lru_cache(maxsize=8)
def _forms(named: tuple[tuple[str, str], ...], path: str) -> tuple[tuple[str, str], ...]:
    """Return secrets as they stand in texts and in JSON, with what each is called."""
    found = {value: name for name, value in named if _is_secret(value)}
    found |= dict.fromkeys(_passwords(path), "a password of netrc")
    # Also as JSON writes them, with escapes. The longest first: a secret that contains another
    # would otherwise be cut up by it, and its ends stay.
    forms = dict(found) | {json.dumps(value)[1:-1]: name for value, name in found.items()}
    return tuple(sorted(forms.items(), key=lambda form: -len(form[0])))


def _is_secret(value: str) -> bool:
    """Return whether the value of a secret's variable is one: no number, flag, or file."""
    # `GOOGLE_APPLICATION_CREDENTIALS` holds the path of a file, and its text would be found all
    # over the records.
    return len(value) >= _LEAST and not value.isdigit() and not os.path.exists(value)


def _netrc_path() -> str:
    home = os.environ.get("HOME") or str(pathlib.Path.home())
    return os.environ.get("NETRC") or os.path.join(home, ".netrc")


def _passwords(path: str) -> list[str]:
    try:
        hosts = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return []
    return [entry[2] for entry in hosts.values() if entry[2] and _is_secret(entry[2])]


# Keeps secrets out of what a process prints, where that is kept in a file.


class Redacted:
    """A text stream that writes whole lines, each without its secrets.

    Args:
      stream: Where the lines go.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._rest = ""
        self._lock = threading.RLock()  # a signal handler may print while this thread prints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the lines that are whole now; the rest waits for its end, or for a flush.

        Args:
          text: Text, with or without line breaks.

        Returns:
          The number of characters in `text`.
        """
        with self._lock:
            # Whole lines only: `print` writes a text and its line break in two calls, and a secret
            # that is split over two writes would be found in neither.
            whole, end, self._rest = (self._rest + text).rpartition("\n")
            if end:
                self._stream.write(redact(whole + end))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts one after another.

        Args:
          lines: The texts.
        """
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write all that there is."""
        with self._lock:
            rest, self._rest = self._rest, ""
            if rest:
                self._stream.write(redact(rest))
            self._stream.flush()


def redact_output() -> None:
    """Redact all that Python prints in this process from now on.

    What libraries in C or C++ print goes past it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Redacted):
            setattr(sys, name, Redacted(stream))


# Files of records: those of `luthier.storage`, with the secrets taken out of JSON.


def write_json(
    path: str | os.PathLike[str], value: Any, fence: Callable[[], None] | None = None
) -> None:
    """Write a value as strict, indented JSON, atomically and without secrets.

    Args:
      path: The file.
      value: A plain value: dicts with text as keys, lists, text, finite numbers, booleans and None.
      fence: Raises where another process writes here now; called just before the file changes.

    Example:
      >>> import pathlib
      >>> from luthier import records
      >>> records.write_json("note.json", {"source": "https://me:secret@example.com/data"})
      >>> "secret" in pathlib.Path("note.json").read_text()
      False
    """
    storage.write_json(path, value, redact, fence)
