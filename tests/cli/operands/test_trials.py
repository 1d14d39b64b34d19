from __future__ import annotations

import shutil

import pytest

from luthier.cli.operands import recorded
from luthier.errors import UnknownReference


def test_a_trial_is_found_by_its_number(study):
    assert recorded.find_trial("rates/1") == recorded.Path("studies/rates/trials/0001")
    assert recorded.find_trial(f"{study}/2").name == "0002"
    assert recorded.is_trial(study / "trials" / "0000")
    assert not recorded.is_trial(study)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("rates", "'rates' is not a trial of a study; write study:NAME/7"),
        ("rates/9", "rates has no trial 9; it has the trials 0 to 2"),
        ("rate/1", "there is no study 'rate'; did you mean rates?"),
    ],
)
def test_what_is_not_there_is_refused(study, reference, text):
    with pytest.raises(UnknownReference) as caught:
        recorded.find_trial(reference)
    assert str(caught.value) == text


def test_a_study_of_one_trial_has_nothing_to_compare(study):
    for number in (1, 2):
        shutil.rmtree(study / "trials" / f"000{number}")
    with pytest.raises(UnknownReference, match=r"^the study rates has only one trial yet$"):
        recorded.every("rates")


def test_how_a_trial_stands(study):
    base = recorded.describe(study / "trials" / "0000")
    assert (base["detail"], base["state"]) == ("the base, complete", "complete")
    assert base["objectives"][0].direction == "lower"
    waiting = recorded.describe(study / "trials" / "0002")
    assert (waiting["detail"], waiting["state"]) == ("seed=3", "")
    assert waiting["objectives"][0].value is None
    (study / "facts.json").unlink()
    alone = recorded.describe(study / "trials" / "0001")
    assert (alone["detail"], alone["objectives"]) == ("optimizer.b2=0.9", [])
