"""A small generated task of translation."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import ClassVar, Literal

from luthier.data.pairs.sources import PairSource
from luthier.errors import DataError, Problem

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
      seed: Of the sentences.
      split: `train` or `test`.
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
        attempt = 0
        while True:
            key = f"{self.seed} {self.split} {index} {attempt}".encode()
            source, target = _sentence(int.from_bytes(hashlib.blake2b(key).digest(), "little"))
            if (_hash(source) % 10 == 0) == (self.split == "test"):
                return source.encode(), target.encode()
            attempt += 1

    def name(self, index: int) -> str:
        """Return `pair N`, counted from 1."""
        return f"pair {index + 1}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _sentence(number: int) -> tuple[str, str]:
    """Return the sentence that a large random number stands for, and its translation."""

    def draw(size: int) -> int:
        nonlocal number
        number, choice = divmod(number, size)
        return choice

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
