"""A run whose length is written in epochs: record, resume, and use without its data."""

import shutil
from pathlib import Path

import pytest

from luthier import trainer
from luthier.errors import RunError
from luthier.records import RunDirectory

EPOCHS = "training.steps=Epochs(1)"


@pytest.mark.full
def test_a_run_keeps_its_epochs_in_the_config_and_their_number_in_the_record(tiny, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a", "b"):
        (corpus / f"{name}.txt").write_text("To be, or not to be, that is the question.\n" * 40)
    text = f"luthier.data.TextFiles('{corpus}/*.txt')"
    data = [f"data.source:={text}", f"evaluations.held_out.data.source:={text}"]
    graph = tiny(tmp_path / "runs", *data, EPOCHS)
    result = trainer.run(graph)
    directory = RunDirectory(result.directory)
    rows = trainer.load_run(str(directory.path)).program.experiment.data.num_rows
    status = directory.read_status()
    assert (status.status, status.total_steps) == ("finished", -(-rows // 8))
    assert "Epochs" in directory.read_config()
    assert trainer.run(graph).was_over
    assert f"training.steps={2 * status.total_steps} --run {directory.id}" in trainer.next_steps(
        directory, "finished", f"luthier train x '{EPOCHS}'", status.total_steps
    )

    # More data is another number of steps, and the schedules that share it are other curves.
    shutil.copy(corpus / "a.txt", corpus / "c.txt")
    with pytest.raises(RunError) as caught:
        trainer.run(graph)
    line = f"training.steps: Epochs(1) was {status.total_steps} steps when the run began, and is "
    assert str(caught.value).startswith(line)
    assert "restore the data that it began with" in str(caught.value)

    # A trained run is evaluated and sampled without the data that it was trained on.
    for path in corpus.glob("*"):
        Path(path).unlink()
    trained = trainer.load_run(str(directory.path))
    assert trained.program.experiment.training.steps == status.total_steps
