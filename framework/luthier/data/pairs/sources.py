"""Where pairs of texts, and preferences between texts, come from."""

from __future__ import annotations

import abc
import dataclasses

from luthier.data.sources.records import Records, text_of


class PairSource(abc.ABC):
    """Pairs of a text and the text that it is turned into, in a fixed order.

    A source of your own subclasses this and is cheap to construct.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of pairs."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        """Return the text and its target, of pair `index`."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return where pair `index` is from."""


class PreferenceSource(abc.ABC):
    """Prompts with a chosen and a rejected response, in a fixed order.

    A source of your own subclasses this and is cheap to construct.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of prompts."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[bytes, bytes, bytes]:
        """Return the prompt, the chosen and the rejected response of `index`."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return where `index` is from."""


@dataclasses.dataclass(frozen=True)
class PairFields(PairSource):
    """Pairs that are two fields of records.

    Args:
      records: The records.
      source: The name of the field that holds the text.
      target: The name of the field that holds what it is turned into.

    Raises:
      DataError: at a pair, naming its place, when a field is missing or not text.
    """

    records: Records
    source: str = "source"
    target: str = "target"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        return (
            text_of(self.records, index, self.source),
            text_of(self.records, index, self.target),
        )

    def name(self, index: int) -> str:
        """Return where pair `index` is from."""
        return self.records.name(index)


@dataclasses.dataclass(frozen=True)
class PreferenceFields(PreferenceSource):
    """Preferences that are three fields of records.

    Args:
      records: The records.
      prompt: The name of the field that holds the prompt.
      chosen: The name of the field that holds the better response.
      rejected: The name of the field that holds the worse response.

    Raises:
      DataError: at a record, naming its place, when a field is missing or not text.
    """

    records: Records
    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[bytes, bytes, bytes]:
        return (
            text_of(self.records, index, self.prompt),
            text_of(self.records, index, self.chosen),
            text_of(self.records, index, self.rejected),
        )

    def name(self, index: int) -> str:
        """Return where `index` is from."""
        return self.records.name(index)
