from __future__ import annotations

import dataclasses
import typing

import pytest

from luthier.records import events


def test_every_event_has_a_kind():
    assert set(events.KINDS.values()) == set(typing.get_args(events.Event))


@pytest.mark.parametrize("cls", events.KINDS.values(), ids=events.KINDS)
def test_events_are_frozen(cls):
    event = cls(**{
        field.name: {} if "Mapping" in str(field.type) else 0
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
    })  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, dataclasses.fields(cls)[0].name, 1)


def test_performance_names_are_names_of_this_module():
    names = {value for key, value in vars(events).items() if key.isupper() and key != "KINDS"
             and isinstance(value, str)}  # fmt: skip
    assert names >= events.PERFORMANCE
