"""The planning process: reads a request, and writes its progress and the result as JSON lines.

It has JAX's CPU backend only; accelerators are known by their descriptions.
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


def serve(request_json: str, output: IO[str]) -> None:
    """Plan one experiment.

    Args:
      request_json: JSON with `graph`, its `history`, `slice`, `level`, `packages` and `search`.
      output: Takes lines of JSON: `phase` while it works, then `report` or `problems`.
    """
    # Bad input travels as its problems, so that the caller raises the same exception as if it had
    # planned itself. Everything else is a bug: it ends this process with its traceback.
    request: Mapping[str, Any] = json.loads(request_json)

    def send(message: Mapping[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        from luthier.planner import planning
        from luthier.planner.targets import read

        graph = graphs.from_json(request["graph"], packages=request["packages"])
        graphs.restore_history(graph, request["history"])
        report = planning.plan_here(
            graph,
            read(request["slice"]),
            level=request["level"],
            packages=request["packages"],
            search=request["search"],
            on_progress=send,
        )
        send({"report": report.to_dict()})
    except BadInput as error:
        fields = ("what", "path", "origin", "remedy")
        problems = [{f: getattr(p, f) for f in fields} for p in error.problems]
        for problem, values in zip(error.problems, problems, strict=True):
            values["nearest"] = list(problem.nearest)
        send({"problems": problems})


def main() -> None:
    """Serve on the standard streams; the argument is the id of the caller's process."""
    environment.end_with(int(sys.argv[1]))
    environment.collect_rarely()
    # Compilers and the user's modules may print to descriptor 1. It is replaced by that of standard
    # error, so that the caller reads lines of JSON only.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin.read(), output)


if __name__ == "__main__":
    main()
