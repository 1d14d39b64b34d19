"""A side of the bench: it answers questions, one line of JSON each. Python's own modules only.

The first line of the answers says that it is ready. Then it takes `steps N`, `profile N` and
`end`; what else a side prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(make: Callable[[Mapping[str, Any]], Mapping[str, Callable[[int], Any]]]) -> None:
    """Answer questions until there are no more.

    Args:
      make: Takes the settings, which are the first argument of the process; returns what answers,
        by the first word of a question. `ready` is asked first.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        commands = make(json.loads(sys.argv[1]))
        tell(commands["ready"](0))
        for line in sys.stdin:
            word, _, number = line.partition(" ")
            if word.strip() == "end":
                return
            tell(commands[word](int(number)))
    except Exception as error:
        tell({"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"})
        raise
