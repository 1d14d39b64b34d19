"""The process that plans: it reads a question, and writes its progress and the answer as lines.

It has JAX's CPU backend and no other; accelerators are known by their descriptions alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, Any

from luthier import environment
from luthier import graph as graphs
from luthier.errors import BadInput


def serve(question: str, answers: IO[str]) -> None:
    """Answer one question.

    Args:
      question: JSON with `graph`, `slice`, `level`, `packages` and `search`.
      answers: Where lines of JSON go: `phase` while it works, then `report` or `problems`.
    """
    asked: Mapping[str, Any] = json.loads(question)

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        from luthier.planner import planning
        from luthier.planner.targets import read

        graph = graphs.from_json(asked["graph"], packages=asked["packages"])
        report = planning.plan_here(
            graph,
            read(asked["slice"]),
            level=asked["level"],
            packages=asked["packages"],
            search=asked["search"],
            on_progress=send,
        )
        send({"report": report.to_dict()})
    except BadInput as error:
        fields = ("what", "path", "origin", "remedy")
        problems = [{f: getattr(p, f) for f in fields} for p in error.problems]
        for problem, made in zip(error.problems, problems, strict=True):
            made["nearest"] = list(problem.nearest)
        send({"problems": problems})


def main() -> None:
    """Serve on the standard streams; what else is printed goes to standard error.

    It is called with the id of the process that asks.
    """
    environment.end_with(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin.read(), answers)


if __name__ == "__main__":
    main()
