"""Rows of tokens whose inputs and targets a shift makes.

Shapes: B rows, L length, E chunks in the batch, N tokens in the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

import numpy as np

from luthier.data.order import Visit
from luthier.data.rows import PackedRows
from luthier.data.splitting.shifts import Shift, ShiftLeft


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftedRows(PackedRows):
    """The rows of a plan whose chunks are runs of the tokens of documents.

    Chunks with one number, which follow one another in a row, are one segment: its positions run
    on from one to the next.

    Args:
      shift: How inputs and targets come from the tokens.
    """

    shift: Shift = ShiftLeft()

    @property
    def num_examples(self) -> int:
        """The largest number among `documents`: the segments."""
        return self.plan.largest_id

    @property
    def num_targets(self) -> int:
        """The targets of all rows that have weight."""
        return super().num_targets - self.shift.LOST * self.num_rows

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint of all rows: equal digests, equal rows."""
        parts = f"{super().digest}{self.shift}".encode()
        return hashlib.blake2b(parts, digest_size=16).hexdigest()

    def first_inputs(self, num_targets: np.ndarray) -> np.ndarray:
        """Return where the first token of each document stands in the token stream.

        Args:
          num_targets: The targets of each document, int64 [documents].
        """
        return np.cumsum(num_targets + 1) - num_targets

    def gather(self, rows: np.ndarray, visit: Visit | None = None) -> dict[str, np.ndarray]:
        """Assemble rows.

        Args:
          rows: The rows wanted, int64 [B]; -1 is a row of padding.
          visit: Not looked at: text is the same in every epoch.

        Returns:
          What `PackedRows.gather` does; `segments`, `positions` and `documents` are those of the
          tokens.
        """
        plan, at = self.plan, self._places(rows)
        first_E = plan.starts[at.chunk_E] - at.before_E
        token_N = self.stream.tokens[at.index_N + np.repeat(first_E, at.length_E)]
        bytes_N = self.byte_lengths[token_N]
        if self.prefix_bytes:
            first = at.before_E[self.opens[at.chunk_E]]
            bytes_N[first] = np.maximum(bytes_N[first] - self.prefix_bytes, 0)
        id_E = plan.ids[at.chunk_E]
        opens_E = (at.segment_E == 0) | (id_E != np.roll(id_E, 1))
        segment_E = np.cumsum(opens_E)
        start_E = at.before_E[opens_E][segment_E - 1]
        before_row_E = (segment_E[at.segment_E == 0] - 1)[np.cumsum(at.segment_E == 0) - 1]

        shape = (len(rows), self.length)
        found = {}
        for name, values_N in (
            ("tokens", token_N),
            ("segments", np.repeat(segment_E - before_row_E, at.length_E)),
            ("positions", at.index_N - np.repeat(start_E, at.length_E)),
            ("documents", np.repeat(id_E, at.length_E)),
            ("bytes", bytes_N),
        ):
            found[name] = np.zeros(shape, np.int32)
            found[name].reshape(-1)[at.place_N] = values_N
        tokens, segments = found["tokens"], found["segments"]
        return {
            "inputs": self.shift.inputs(tokens, segments),
            "targets": self.shift.targets(tokens, segments),
            "segments": segments,
            "positions": found["positions"],
            "documents": found["documents"],
            "target_bytes": self.shift.of_targets(found["bytes"]),
            "weights": self.shift.of_targets((segments > 0).astype(np.float32)),
        }
