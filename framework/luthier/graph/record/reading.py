"""The text of a record as JSON, checked: that it is one, and of a version that we know."""

from __future__ import annotations

import collections
import json
from typing import Any

from luthier.errors import Problem, RecordError
from luthier.graph.record.encode import FORMAT, VERSION


def read_record(text: str, source: str) -> Any:
    """Return the JSON value of the graph that a record holds.

    Args:
      text: What `to_json` wrote.
      source: What the text was read from.

    Raises:
      RecordError: It is no JSON, no record, or one of another version.
    """
    data = _parsed(text, source)
    if not isinstance(data, dict) or data.get("format") != FORMAT or "graph" not in data:
        remedy = "give the config.json of a run"
        raise RecordError(Problem(f"{source} is not a recorded graph", remedy=remedy))
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        what = f"{source} has format version {version!r}; this luthier reads up to {VERSION}"
        raise RecordError(Problem(what, remedy="read it with the luthier that wrote it, or newer"))
    return data["graph"]


def _parsed(text: str, source: str) -> Any:
    """Return the value of strict JSON text: no key twice, no number that is not finite."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        what = "it is nested too deeply"
    except json.JSONDecodeError as error:
        what = f"{error.msg} in line {error.lineno}, column {error.colno}"
    except (ValueError, TypeError) as error:
        what = str(error)
    raise RecordError(Problem(f"{source} is not readable as JSON: {what}"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        raise ValueError(f"{counts.most_common(1)[0][0]!r} is given twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is not JSON; write {{"float": "{name.lower()}"}}')
