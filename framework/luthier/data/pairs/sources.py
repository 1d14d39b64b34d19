"""Sources of pairs of texts, and of preferences between texts."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from typing import ClassVar, Literal

import numpy as np

from luthier.data.sources.records import Records, text_of
from luthier.errors import DataError, Problem


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
        """Return the origin of pair `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """


# Sources hand out bytes, as documents do: what is text is up to the tokenizer.
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
        """Return the origin of prompt `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """


@dataclasses.dataclass(frozen=True)
class PairFields(PairSource):
    """Pairs that are two fields of records.

    Args:
      records: The records.
      source: The name of the field that holds the text.
      target: The name of the field that holds the target text.

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
        """Return the origin of pair `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
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
        """Return the origin of prompt `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.records.name(index)


# Generated preferences: sums, of which one answer is right.


@dataclasses.dataclass(frozen=True)
class Arithmetic(PreferenceSource):
    """Prompts `A+B=` with the right sum chosen and a wrong one rejected.

    A and B are drawn from 0 to `largest`; the wrong answer differs by 1 to 9. Which split a prompt
    belongs to is decided by a hash of its text (1 in 10 is held out), so that no held-out prompt is
    ever trained on.

    Args:
      count: The number of prompts; one may come more than once.
      largest: Largest summand.
      seed: Seed of the numbers.
      split: `train` or `test`.

    Example:
      >>> from luthier import data
      >>> source = data.Arithmetic(count=8)
      >>> len(source)
      8
    """

    RANGES: ClassVar[dict[str, str]] = {"count": "1 <= x", "largest": "9 <= x", "seed": "0 <= x"}
    STREAM: ClassVar[tuple[str, ...]] = ("seed", "split", "largest")

    count: int = 2000
    largest: int = 99
    seed: int = 0
    split: Literal["train", "test"] = "train"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, bytes, bytes]:
        if self.split not in ("train", "test"):
            what = f"Arithmetic has no split {self.split!r}"
            raise DataError(Problem(what, remedy="it has 'train' and 'test'"))
        if not 0 <= index < self.count:
            raise IndexError(index)
        # A prompt is a function of seed, split and index: random access without a stored list. The
        # key is different for every (index, split), so that splits have independent streams; a
        # prompt that falls into the other split is drawn again, nine times of ten for `test`.
        held_out = int(self.split == "test")
        random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * index + held_out]))
        while True:
            a, b = (int(number) for number in random.integers(0, self.largest + 1, 2))
            if _is_held_out(f"{a}+{b}=") == bool(held_out):
                break
        distance = int(random.integers(1, 10))
        # A wrong sum is never negative: a minus sign would give it away.
        wrong = a + b + (distance if random.integers(2) or a + b < distance else -distance)
        return f"{a}+{b}=".encode(), f"{a + b}".encode(), f"{wrong}".encode()

    def name(self, index: int) -> str:
        """Return `prompt N`, counted from 1.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return f"prompt {index + 1}"


def _is_held_out(prompt: str) -> bool:
    digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
    # By the text alone: whatever seed or count, a prompt is always in the same split.
    return int.from_bytes(digest, "little") % 10 == 0


# A small generated task of translation.

_NOUNS = {
    "dog": "kilo", "cat": "mavo", "bird": "pisu", "fish": "tora", "horse": "neli", "child": "dumo",
    "king": "rexa", "queen": "vira", "tree": "olma", "stone": "gatu", "book": "libe",
    "house": "kasu",
}  # fmt: skip
_VERBS = {
    "sees": "vid", "loves": "am", "finds": "rip", "holds": "ten", "follows": "sek", "hears": "aud",
}  # fmt: skip
_ADJECTIVES = {
    "red": "sal", "old": "vet", "small": "pik", "great": "mag", "quiet": "kam", "white": "bel",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Translation(PairSource):
    """Sentences of a small English and their translation into a made-up language.

    A sentence is `the [ADJECTIVE] NOUN[s] VERB the [ADJECTIVE] NOUN[s] [not]`, with or without
    each bracket. Its translation has the order subject, object, verb; adjectives follow their noun
    and agree with it in the plural ending `-n`; the object ends in `-ko`; the verb ends in `-as`,
    of a plural subject `-ar`; `not` becomes the prefix `ne` of the verb. So words are reordered,
    agree over a distance, and are many to one, as in a language. There are 12 nouns, 6 verbs, 6
    adjectives: 338,688 sentences. Which split a sentence belongs to is decided by a hash of its
    text (1 in 10 is held out), so that no held-out sentence is ever trained on.

    Args:
      count: The number of pairs; a sentence may come more than once.
      seed: Seed of the sentences.
      split: `train` or `test`.

    Example:
      >>> from luthier import data
      >>> source = data.Translation(count=8)
      >>> len(source)
      8
    """

    RANGES: ClassVar[dict[str, str]] = {"count": "1 <= x", "seed": "0 <= x"}
    STREAM: ClassVar[tuple[str, ...]] = ("seed", "split")

    count: int = 10_000
    seed: int = 0
    split: Literal["train", "test"] = "train"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        if self.split not in ("train", "test"):
            what = f"Translation has no split {self.split!r}"
            raise DataError(Problem(what, remedy="it has 'train' and 'test'"))
        if not 0 <= index < self.count:
            raise IndexError(index)
        # The same rejection as in `Arithmetic`; one hash of 64 bytes is the number that all choices
        # of a sentence are taken from.
        attempt = 0
        while True:
            key = f"{self.seed} {self.split} {index} {attempt}".encode()
            source, target = _sentence(int.from_bytes(hashlib.blake2b(key).digest(), "little"))
            if (_hash(source) % 10 == 0) == (self.split == "test"):
                return source.encode(), target.encode()
            attempt += 1

    def name(self, index: int) -> str:
        """Return `pair N`, counted from 1.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return f"pair {index + 1}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _sentence(number: int) -> tuple[str, str]:
    """Return the sentence that a large random number stands for, and its translation."""

    # Mixed-radix digits of one large number: each choice takes the remainder and leaves the
    # quotient. 512 bits for about 18 bits of choices leave no measurable bias.
    def draw(size: int) -> int:
        nonlocal number
        number, choice = divmod(number, size)
        return choice

    # Builds both languages from the same choices; the object takes its ending behind the plural.
    def phrase(ending: str) -> tuple[str, str, bool]:
        noun = list(_NOUNS)[draw(len(_NOUNS))]
        plural = bool(draw(2))
        choice = draw(len(_ADJECTIVES) + 1)
        agree = "n" if plural else ""
        words = [noun + ("s" if plural else "")]
        translated = [_NOUNS[noun] + agree + ending]
        if choice:
            adjective = list(_ADJECTIVES)[choice - 1]
            words.insert(0, adjective)
            translated.append(_ADJECTIVES[adjective] + "a" + agree)
        return " ".join(["the", *words]), " ".join(translated), plural

    subject, subject_translated, plural = phrase("")
    object_, object_translated, _ = phrase("ko")
    verb = list(_VERBS)[draw(len(_VERBS))]
    negated = bool(draw(2))
    source = f"{subject} {verb} {object_}" + (" not" if negated else "")
    verb_translated = ("ne" if negated else "") + _VERBS[verb] + ("ar" if plural else "as")
    return source, f"{subject_translated} {object_translated} {verb_translated}"
