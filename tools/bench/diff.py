"""Measure what the difference of two graphs of 5,000 nodes costs, from their records.

python tools/bench/diff.py                # medians of 5 runs
python tools/bench/diff.py --runs 9 --nodes 10000

`records` reads two records with the history and values beside them, and compares them; `live`
compares two live graphs, as `luthier.graph.diff` does; `page` makes the JSON that pages read.
Processor seconds are what counts. Exit code 1 where a median is above its limit.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from graph import asked, count, experiment, measure

LIMITS = {"read": 1.0, "compare": 1.0, "records": 1.0, "live": 1.0, "page": 2.0}


def edited(made: Any) -> Any:
    """Return a copy of the graph with an inserted, a moved, a lost and some changed blocks."""
    from luthier import graph

    changed = graph.copy_graph(made)
    blocks = changed.model.block
    blocks.insert(0, graph.copy_graph(blocks[7]))
    blocks[0].attention.num_heads = 3
    blocks.append(blocks.pop(20))
    del blocks[len(blocks) // 2]
    for index in range(30, len(blocks), 10):
        blocks[index].attention.num_heads = 5
    changed.seed = 7
    return changed


def main() -> int:
    """Measure, print a table, and return the exit code."""
    arguments = asked(__doc__)
    from luthier import graph
    from luthier.graph import compare

    made = experiment(arguments.nodes)
    sides = (made, edited(made))
    texts = [
        (
            graph.to_json(side),
            json.dumps(graph.history_record(side), default=str),
            json.dumps(graph.to_dict(side)),
        )
        for side in sides
    ]

    def read() -> list[compare.Document]:
        return [
            compare.read(text, "config.json", history=history, values=values)
            for text, history, values in texts
        ]

    documents = read()
    compared = compare.compare(*documents)
    works = {
        "read": lambda: read(),
        "compare": lambda: compare.compare(*documents),
        "records": lambda: compare.compare(*read()),
        "live": lambda: graph.diff(*sides),
        "page": lambda: compare.to_json(compared),
    }
    size = sum(len(part) for part in texts[0])
    print(f"{count(made):,} nodes, {size:,} bytes a side, {len(compared.changes)} changes")
    print(f"{'':<12}{'processor':>12}{'wall':>12}{'limit':>12}")
    over = False
    for name, work in works.items():
        processor, wall = measure(work, arguments.runs)
        over = over or processor > LIMITS[name]
        print(f"{name:<12}{processor:>10.3f} s{wall:>10.3f} s{LIMITS[name]:>10.3f} s")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
