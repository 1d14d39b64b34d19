"""Count the requests and bytes with which a corpus in an object store is read.

The store is an emulator in this process (`tests/object_stores.py`): it counts what is asked of it,
and shows nothing of how fast a real store is. Batches are those of `luthier.data.Prepared`, packed
from documents of random bytes (tokens of two bytes), with several shards and a shuffled order.
Only requests for tokens are counted; the files with the sizes of documents are read once, at the
first start.

Command: python tools/bench/streaming.py [--scheme gs|s3] [--rows 1000] [--length 2048]
  [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from luthier import data
from tests import object_stores
from tools.bench import report

BATCH = 8
SHARDS = 5
DOCUMENT_BYTES = 5000
CACHES = (("a fifth of the corpus", 0.2), ("the corpus", 2.0))


class Store:
    """What has been read of the tokens since it was last asked."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def before_read(self, key: str, num_bytes: int) -> None:
        """Note a request."""
        if key.endswith("/tokens.npy"):
            self.sizes.append(num_bytes)

    def counted(self) -> tuple[int, float]:
        """Return the requests and the megabytes since the last call."""
        found = (len(self.sizes), sum(self.sizes) / 1e6)
        self.sizes.clear()
        return found


def write(url: str, num_tokens: int) -> None:
    """Prepare a corpus of about so many tokens."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 2 * DOCUMENT_BYTES, num_tokens // DOCUMENT_BYTES)
    source, tokenizer = data.Documents([random.bytes(size) for size in sizes]), data.Bytes()
    layout = data.plan_layout(source, tokenizer, data.survey(source, tokenizer), SHARDS)
    data.prepare(source, tokenizer, url, layout)


def measure(arguments: argparse.Namespace) -> list[dict]:
    """Return a row for each cache and epoch."""
    store, rows = Store(), []
    objects: dict[str, bytes] = {}
    with object_stores.serving({"lab": objects}, before_read=store.before_read) as (address, _):
        os.environ |= object_stores.environment(address)
        url = f"{arguments.scheme}://lab/corpus"
        write(url, arguments.rows * arguments.length)
        num_bytes = sum(len(x) for key, x in objects.items() if key.endswith("/tokens.npy"))
        for name, share in CACHES:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = folder
                os.environ["LUTHIER_DATA_CACHE_BYTES"] = str(int(share * num_bytes))
                corpus = data.Prepared(url, arguments.length, data.Concatenate())
                steps = corpus.num_rows // BATCH
                iterator = corpus.iterator(global_batch_size=BATCH, seed=0)
                store.counted()
                for epoch in (1, 2):
                    for _ in range(steps):
                        next(iterator)
                    requests, megabytes = store.counted()
                    row = {"cache holds": name, "epoch": epoch, "rows": steps * BATCH}
                    rows.append({**row, "requests": requests, "MB": round(megabytes, 1)})
                iterator.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", choices=("gs", "s3"), default="gs")
    parser.add_argument("--rows", type=int, default=1000, help="of the corpus, about")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    arguments = parser.parse_args()
    rows = measure(arguments)
    settings = {name: getattr(arguments, name) for name in ("scheme", "rows", "length")}
    note = "Requests for tokens, of an emulator in the same process."
    made = report.Report("streaming", settings, rows, [note])
    print(report.table(made), note, sep="\n")
    if arguments.json:
        report.write(made, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
