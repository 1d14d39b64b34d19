import pytest

from luthier.data import Arithmetic
from luthier.errors import DataError


def test_the_chosen_answer_is_right_and_the_rejected_one_is_wrong():
    source = Arithmetic(500)
    for index in range(500):
        prompt, chosen, rejected = (text.decode() for text in source[index])
        a, b = map(int, prompt.removesuffix("=").split("+"))
        assert int(chosen) == a + b
        assert 1 <= abs(int(rejected) - a - b) <= 9
        assert int(rejected) >= 0
        assert 0 <= min(a, b) <= max(a, b) <= 99


def test_seeds_and_splits():
    assert Arithmetic(9)[4] == Arithmetic(99)[4]
    assert Arithmetic(9, seed=1)[4] != Arithmetic(9)[4]
    train = {Arithmetic(3000)[index][0] for index in range(3000)}
    test = {Arithmetic(300, split="test")[index][0] for index in range(300)}
    assert not train & test
    with pytest.raises(DataError, match="no split 'valid'"):
        Arithmetic(split="valid")[0]
    with pytest.raises(IndexError):
        Arithmetic(9)[9]
    assert Arithmetic(9).name(8) == "prompt 9"
