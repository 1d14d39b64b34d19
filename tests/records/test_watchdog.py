from luthier.records import Records, Watchdog


def test_runs_are_watched_unless_they_ask_not_to_be():
    assert Records().watchdog == Watchdog(seconds=1800.0)
    assert Records(watchdog=None).watchdog is None
