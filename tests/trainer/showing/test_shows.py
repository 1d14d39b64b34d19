import json

import numpy as np
import pytest

from luthier import trainer
from luthier.durations import Steps
from luthier.errors import BadInput
from luthier.records import Histogram, Image, Sample, read_events
from luthier.trainer import Shows, tile

SHOWS = (
    "records.histograms:=luthier.records.Histograms("
    "every=luthier.durations.Steps(4), num_bins=8, pattern='kernel')",
    "records.samples:=luthier.records.Samples("
    "every=luthier.durations.Steps(6), prompts=('To ', ''), num_tokens=3)",
)


def _events(result, kind):
    events = [r.event for r in read_events(result.directory / "metrics.jsonl")]
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.full
def test_a_run_shows_what_is_asked_for_when_it_is_due(tiny, finished, tmp_path):
    result = trainer.run(tiny(tmp_path, *SHOWS))
    histograms = _events(result, Histogram)
    names = {h.name for h in histograms}
    assert "blocks.mlp.up.kernel" in names
    assert all("kernel" in name for name in names)
    assert [h.step for h in histograms if h.name == min(names)] == [4, 8, 12]
    counts = {sum(h.counts) for h in histograms if h.name == "blocks.mlp.up.kernel"}
    assert counts == {16 * 32}
    samples = [s for s in _events(result, Sample) if s.name]
    assert [(s.step, s.prompt, s.name) for s in samples] == [
        (6, "To ", "training/0"),
        (6, "", "training/1"),
        (12, "To ", "training/0"),
        (12, "", "training/1"),
    ]
    # Looking does not touch.
    losses = [
        [json.loads(line)["values"]["loss"] for line in lines if '"kind": "step"' in line]
        for lines in (
            (r.directory / "metrics.jsonl").read_text().splitlines() for r in (result, finished)
        )
    ]
    assert losses[0] == losses[1]


def test_what_cannot_be_shown_is_refused_before_anything_is_written(tiny, tmp_path):
    overrides = (
        "records.histograms:=luthier.records.Histograms("
        "every=luthier.durations.Steps(4), pattern='kernle')",
        "records.images:=luthier.records.Images(every=luthier.durations.Steps(4))",
    )
    with pytest.raises(BadInput) as caught:
        trainer.run(tiny(tmp_path / "runs", *overrides))
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["records.histograms.pattern", "records.images.entry"]
    assert not (tmp_path / "runs").exists()


class _Program:
    """Stands for a program whose batches are images."""

    def __init__(self, records):
        self.experiment = type("Experiment", (), {"records": records})


def test_images_of_the_batch_are_side_by_side():
    from luthier.durations import Progress
    from luthier.records import Images, Records

    events = []
    shows = Shows(_Program(Records(images=Images(every=Steps(2), num_rows=3))), events.append)
    assert shows.due(Progress(steps=0), Progress(steps=1)) == []
    kinds = shows.due(Progress(steps=1), Progress(steps=2))
    batch = {"inputs": np.arange(4 * 2 * 5, dtype=np.float32).reshape(4, 2, 5, 1)}
    shows.show(kinds, 2, (), batch)
    (image,) = events
    assert isinstance(image, Image)
    assert (image.step, image.name, image.pixels.shape) == (2, "data/inputs", (4, 10, 1))


def test_tiles_use_the_whole_range():
    images = np.stack([np.full((2, 3, 3), value) for value in (-1.0, 0.0, 1.0)])
    grid = tile(images)
    assert grid.dtype == np.uint8
    assert grid.shape == (4, 6, 3)
    corners = [grid[0, 0, 0], grid[0, 3, 0], grid[2, 0, 0], grid[2, 3, 0]]
    assert corners == [0, 128, 255, 0]
    assert (tile(np.ones((1, 2, 2, 1))) == 0).all()


def test_several_processes_refuse_what_only_one_can_show(monkeypatch):
    from luthier.records import Records, Samples
    from luthier.trainer import check_shows

    monkeypatch.setattr("luthier.parallel.hosts.process_count", lambda: 2)
    monkeypatch.setattr("luthier.trainer.media.can_generate", lambda program: True)
    records = Records(samples=Samples(every=Steps(4)))
    with pytest.raises(BadInput) as caught:
        check_shows(_Program(records))
    assert str(caught.value) == (
        "records.samples: cannot be shown while several processes train; set records.samples=None"
    )
    check_shows(_Program(Records()))
