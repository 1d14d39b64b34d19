import re

import pytest

from luthier.data import Translation
from luthier.errors import DataError

NOUNS = {
    "dog": "kilo", "cat": "mavo", "bird": "pisu", "fish": "tora", "horse": "neli", "child": "dumo",
    "king": "rexa", "queen": "vira", "tree": "olma", "stone": "gatu", "book": "libe",
    "house": "kasu",
}  # fmt: skip
VERBS = {
    "sees": "vid", "loves": "am", "finds": "rip", "holds": "ten", "follows": "sek", "hears": "aud",
}  # fmt: skip
ADJECTIVES = {
    "red": "sal", "old": "vet", "small": "pik", "great": "mag", "quiet": "kam", "white": "bel",
}  # fmt: skip


def translate(sentence):
    """The grammar of the docstring, written once more, from the English side."""
    words = sentence.split()
    negated = words[-1] == "not"
    words = words[:-1] if negated else words
    verb = next(place for place, word in enumerate(words) if word in VERBS)

    def phrase(part, ending):
        assert part[0] == "the"
        noun = part[-1]
        plural = noun not in NOUNS
        agree = "n" if plural else ""
        result = [NOUNS[noun[:-1] if plural else noun] + agree + ending]
        result += [ADJECTIVES[word] + "a" + agree for word in part[1:-1]]
        return " ".join(result), plural

    subject, plural = phrase(words[:verb], "")
    object_, _ = phrase(words[verb + 1 :], "ko")
    return f"{subject} {object_} {'ne' * negated}{VERBS[words[verb]]}{'ar' if plural else 'as'}"


def test_every_pair_follows_the_grammar():
    source = Translation(400)
    pairs = [source[index] for index in range(400)]
    for text, target in pairs:
        assert re.fullmatch(r"the (\w+ )?\w+ \w+ the (\w+ )?\w+( not)?", text.decode())
        assert translate(text.decode()) == target.decode()
    assert len(set(pairs)) > 380


def test_seeds_and_splits():
    assert Translation(9)[4] == Translation(99)[4]
    assert Translation(9, seed=1)[4] != Translation(9)[4]
    train = {Translation(3000)[index][0] for index in range(3000)}
    test = {Translation(300, split="test")[index][0] for index in range(300)}
    assert not train & test
    with pytest.raises(DataError, match="no split 'valid'"):
        Translation(split="valid")[0]
    with pytest.raises(IndexError):
        Translation(9)[9]
    assert Translation(9).name(8) == "pair 9"
