import json

import numpy as np
import pytest

from luthier.records import Histogram, Image, MediaFiles, Records, Step, encode_png, read_events

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def test_an_image_is_a_file_of_its_name_and_step(tmp_path):
    kept = MediaFiles(tmp_path).keep(Image(7, "data/inputs", PIXELS))
    assert kept == Image(7, "data/inputs", path="media/data/inputs/7.png")
    assert kept.pixels is None
    assert (tmp_path / kept.path).read_bytes() == encode_png(PIXELS)


@pytest.mark.parametrize("name", ["", "..", "a/../../b", "/a", "a//b", "a b"])
def test_a_name_stays_below_the_directory(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be the name of an image"):
        MediaFiles(tmp_path / "run").keep(Image(1, name, PIXELS))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_cut_back_has_every_image_and_histogram_once(run):
    for last, restored in ((6, None), (6, 3)):
        run.cut_back(restored)
        with Records(console=None).open(run) as recorder:
            for step in range(1 if restored is None else restored + 1, last + 1):
                recorder.emit(Step(step, {"loss": 1.0}))
                recorder.emit(Image(step, "x", PIXELS))
                recorder.emit(Histogram(step, "w", 0.0, 1.0, [step]))
        found = [recorded.event for recorded in read_events(run.metrics_path)]
        for kind in (Step, Image, Histogram):
            assert [e.step for e in found if isinstance(e, kind)] == [1, 2, 3, 4, 5, 6]
        files = sorted(p.name for p in (run.path / "media" / "x").iterdir())
        assert files == [f"{step}.png" for step in range(1, 7)]
    run.cut_back(4)
    assert sorted(p.name for p in (run.path / "media" / "x").iterdir()) == [
        f"{step}.png" for step in range(1, 5)
    ]


def test_an_image_that_cannot_be_kept_is_reported_and_harms_nothing(run):
    (run.path / "media").write_text("in the way")
    with Records(console=None).open(run) as recorder:
        recorder.emit(Image(1, "x", PIXELS))
        recorder.emit(Step(2, {"loss": 1.0}))
    records = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert [record["kind"] for record in records] == ["notice", "step"]
    assert records[0]["text"].startswith("the image x of step 1 is lost: cannot create")


def test_without_a_directory_images_are_dropped():
    with Records(console=None).open(None) as recorder:
        recorder.emit(Image(1, "x", PIXELS))
