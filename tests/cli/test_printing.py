import json

from luthier.cli.printing import print_json


def _refuse(word):
    raise AssertionError(f"{word} is not JSON")


def test_numbers_that_are_none_are_words(capsys):
    values = {
        "loss": [float("nan"), 1.5],
        "best": {"at": float("-inf"), "step": 3},
        "rows": (1, None),
    }
    print_json(values)
    assert json.loads(capsys.readouterr().out, parse_constant=_refuse) == {
        "loss": ["nan", 1.5],
        "best": {"at": "-inf", "step": 3},
        "rows": [1, None],
    }
