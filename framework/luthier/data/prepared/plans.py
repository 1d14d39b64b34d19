"""Packing plans, stored beside the shards that they belong to: computed once, then memory-mapped.

A plan is a folder with one file per array and `plan.json`: the identity of the plan, sizes, a few
elements of every array, and a digest of all this. It is read without a pass over its arrays, and a
torn or damaged one is computed again. Plans may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from luthier.data.packing import PackedRows, Packing, RowPlan
from luthier.data.prepared.shards import TokenArray, load_npy, write_json
from luthier.storage.bucket import is_url

FORMAT = 1
FOLDER, HEADER = "plans", "plan.json"
_ALWAYS = {"row_starts": "<i8", "starts": "<i8", "lengths": "<i4", "ids": "<i4"}
_ARRAYS = {**_ALWAYS, "opens": "|b1"}
_SAMPLES = 64
_ABANDONED = 24 * 60 * 60  # seconds after which nobody writes a partial plan any more


@dataclasses.dataclass(frozen=True)
class PlanFacts:
    """The facts of a plan that a start needs.

    Args:
      documents: All documents.
      targets: The targets of all chunks.
      largest_id: The largest number of a chunk.
      corpus: The argument of `digest`.
      digest_of_rows: The result of `digest`.
    """

    documents: int
    targets: int
    largest_id: int
    corpus: str
    digest_of_rows: str


@dataclasses.dataclass(frozen=True, eq=False)
class KeptPlan(RowPlan):
    """A plan that knows its sizes and its digest without a look at its arrays.

    Args:
      facts: The sizes and the digest.
      folder: The folder that holds it; empty where no folder could be written.
    """

    facts: PlanFacts = dataclasses.field(kw_only=True)
    folder: str = dataclasses.field(default="", kw_only=True)

    @property
    def num_targets(self) -> int:
        """The targets of all chunks."""
        return self.facts.targets

    @property
    def largest_id(self) -> int:
        """The largest number of a chunk."""
        return self.facts.largest_id

    def digest(self, corpus: str) -> str:
        """Return a fingerprint of the plan and of its corpus; `corpus` as in `RowPlan.digest`."""
        # The answer was computed when the plan was written; another question reads the arrays.
        known = corpus == self.facts.corpus
        return self.facts.digest_of_rows if known else super().digest(corpus)


def is_kept(packing: Packing) -> bool:
    """Return whether plans of a packing are kept: its class itself defines its `REVISION`."""
    # `vars` and not `getattr`: a subclass that overrides `plan` inherits the number, but not the
    # promise that its plans are those of this number.
    return vars(type(packing)).get("REVISION", 0) > 0


def identity(
    manifest: Mapping[str, Any], shards: Sequence[TokenArray], length: int, packing: Packing
) -> dict[str, Any]:
    """Return the identity of a plan, JSON-able: equal identities, equal plans.

    Args:
      manifest: The manifest of the corpus.
      shards: The tokens of each shard, or their length and dtype alone.
      length: The number of targets in a row.
      packing: Assigns documents to rows.
    """
    name = f"{type(packing).__module__}.{type(packing).__qualname__}"
    return {
        "format": FORMAT,
        "manifest": _digest(manifest),
        # The manifest has the digests of the shards; lengths and dtypes are compared as well,
        # because they are known from the mapped files without reading them.
        "tokens": _digest([[len(shard), shard.dtype.str] for shard in shards]),
        "length": length,
        "packing": [name, packing.REVISION, repr(packing)],
    }


def find(directory: str, of: Mapping[str, Any]) -> KeptPlan | None:
    """Return the stored plan, memory-mapped, or None if there is none or it is damaged.

    Args:
      directory: The folder of the shards.
      of: The result of `identity`.
    """
    # A plan is a cache: whatever goes wrong while one is read, the answer is to compute it again.
    # So every exception is taken for "there is none", and nothing is reported.
    for root in _roots(directory):
        with contextlib.suppress(Exception):  # a header is text, which fails in any way
            return _read(os.path.join(root, _digest(of)), of)
    return None


def keep(directory: str, of: Mapping[str, Any], rows: PackedRows, documents: int) -> KeptPlan:
    """Write the plan of rows whole or not at all.

    Args:
      directory: The folder of the shards; where it cannot be written, or is in an object store,
        the user's cache folder is.
      of: The result of `identity`.
      rows: The rows of the plan.
      documents: All documents.

    Returns:
      The plan, memory-mapped; in memory where no folder could be written.
    """
    plan, corpus = rows.plan, f"{rows.corpus}{rows.length}"
    facts = PlanFacts(documents, plan.num_targets, plan.largest_id, corpus, plan.digest(corpus))
    arrays = {name: np.ascontiguousarray(getattr(plan, name)) for name in _ALWAYS}
    # Only tokenizers with a prefix need to know which chunks open a document, and finding out takes
    # a pass over all documents.
    if rows.prefix_bytes:
        arrays["opens"] = rows.opens
    for root in _roots(directory):
        with contextlib.suppress(OSError):
            _write(root, of, arrays, facts)
        # Read back, also where writing failed: another process may have written the same plan, and
        # a mapped plan is shared by all processes of a host.
        if plan_on_disk := find(directory, of):
            return plan_on_disk
    return _kept(arrays, facts)


# A corpus may lie on a disk that is read-only or belongs to others; then the user's cache serves.
def _roots(directory: str) -> Iterator[str]:
    if not is_url(directory):
        yield os.path.join(directory, FOLDER)
    yield cache_folder(FOLDER)


def cache_folder(name: str) -> str:
    """Return a folder in luthier's cache of the user, which need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "luthier", name)


def _write(
    root: str, of: Mapping[str, Any], arrays: Mapping[str, np.ndarray], facts: PlanFacts
) -> None:
    # Written aside under a random name and renamed when complete: processes of several hosts may do
    # this at the same time, and a reader never sees half a plan. Arrays are made durable before the
    # rename; the header, written last, has the sizes and samples that a reader compares.
    #
    # A folder cannot replace one that is not empty, so an old one is moved away first. Between the
    # two renames there is none for a moment: a reader then computes the plan, which is right too.
    os.makedirs(root, exist_ok=True)
    _remove_abandoned(root)
    folder = os.path.join(root, _digest(of))
    partial = f"{folder}.partial-{secrets.token_hex(4)}"
    try:
        os.mkdir(partial)
        for name, array in arrays.items():
            with open(os.path.join(partial, f"{name}.npy"), "wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        header = {
            "of": of,
            "facts": dataclasses.asdict(facts),
            "arrays": {name: _sizes(array) for name, array in arrays.items()},
        }
        write_json(os.path.join(partial, HEADER), {**header, "digest": _digest(header)})
        # A process that comes between these lines makes a rename fail; `keep` ignores that and
        # reads the other process's plan.
        if os.path.exists(folder):  # damaged, or another process was faster
            os.rename(folder, f"{partial}-old")
        os.rename(partial, folder)
    finally:
        # A process that still maps the old arrays keeps them: removing a file does not take it away
        # from whoever has it open.
        for left in (partial, f"{partial}-old"):
            shutil.rmtree(left, ignore_errors=True)


def _remove_abandoned(root: str) -> None:
    for name in os.listdir(root):
        path = os.path.join(root, name)
        with contextlib.suppress(OSError):
            # By age and not by process id: the folder may be shared by machines.
            if ".partial-" in name and time.time() - os.path.getmtime(path) > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _read(folder: str, of: Mapping[str, Any]) -> KeptPlan:
    with open(os.path.join(folder, HEADER), encoding="utf-8") as file:
        header = json.load(file)
    if header.pop("digest") != _digest(header) or header["of"] != of:
        raise ValueError(f"{folder}: its header is damaged")
    arrays = {}
    for name, sizes in header["arrays"].items():
        path = os.path.join(folder, f"{name}.npy")
        mapped = load_npy(path, "r")
        array = np.asarray(mapped)  # a plain array, which is faster to index
        # A longer file is another array than the header describes; a shorter one fails in
        # `np.load`.
        beyond = os.path.getsize(path) - mapped.offset - array.nbytes
        if beyond or array.dtype.str != _ARRAYS[name] or _sizes(array) != sizes:
            raise ValueError(f"{path}: is damaged")
        arrays[name] = array
    return _kept(arrays, PlanFacts(**header["facts"]), folder)


def _kept(arrays: Mapping[str, np.ndarray], facts: PlanFacts, folder: str = "") -> KeptPlan:
    row_starts, starts, lengths, ids = (arrays[name] for name in _ALWAYS)
    opens = arrays.get("opens")
    return KeptPlan(row_starts, starts, lengths, ids, opens, facts=facts, folder=folder)


def _sizes(array: np.ndarray) -> dict[str, Any]:
    """Return the length of an array, and a few elements of it, evenly spread."""
    # A full check would read as much as making the plan anew. Sizes and a few elements notice what
    # really happens: a file that was cut short, or blocks of zeros.
    samples = array[np.linspace(0, len(array) - 1, min(_SAMPLES, len(array))).astype(np.int64)]
    return {"length": len(array), "samples": samples.tolist()}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
