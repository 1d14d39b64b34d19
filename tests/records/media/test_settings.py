import inspect

from luthier.durations import Steps
from luthier.records import Histograms, Images, Records, Samples


def test_a_sample_at_the_end_is_all_that_is_shown_by_default():
    records = Records()
    assert (records.histograms, records.samples, records.images) == (None, Samples(), None)
    assert Samples().every is None


def test_ranges_are_of_arguments():
    for kind in (Histograms, Samples, Images):
        settings = kind(every=Steps(10))
        assert settings.every == Steps(10)
        assert set(kind.RANGES) < set(inspect.signature(kind).parameters)
