"""The example notebook runs in a real kernel, is interrupted and rerun, and changes nothing global.

What a kernel does to streams, signals and threads is not what a stand-in for IPython does.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.process_state import STATE

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ["lowerings", "signatures", "metaclass", "locations of fiddle"]
"""What `luthier.install` documents that it changes."""


class _Kernel:
    """A notebook and its kernel, whose cells are run one by one."""

    def __init__(self, notebook, client):
        self._notebook, self._client = notebook, client

    def run(self, name):
        """Run the cell of a name, and return what it shows as text."""
        (cell,) = [cell for cell in self._notebook.cells if cell.id == name]
        self._client.execute_cell(cell, self._notebook.cells.index(cell))
        return cell.outputs, "".join(map(_text, cell.outputs))

    def ask(self, code):
        """Run code that is not in the notebook, and return what it prints."""
        self._notebook.cells.append(nbformat.v4.new_code_cell(code, id=f"t{time.time_ns()}"))
        return self.run(self._notebook.cells[-1].id)[1].strip()

    def interrupt(self):
        """Send the kernel what the stop button sends."""
        os.kill(self._client.km.provisioner.pid, signal.SIGINT)


def _text(output):
    return output.text if output.output_type == "stream" else output.data.get("text/plain", "")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The kernel of the example notebook, in an empty folder."""
    notebook = nbformat.read(ROOT / "docs" / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    where = {"metadata": {"path": str(tmp_path)}}
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    client = nbclient.NotebookClient(notebook, timeout=300, resources=where)
    with client.setup_kernel():
        yield _Kernel(notebook, client)


def _interrupt_at_step(kernel, folder, step):
    """Interrupt the kernel once a run below a folder has recorded a step."""

    def watch():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for path in folder.glob("runs/notebook/*/metrics.jsonl"):
                if f'"step": {step},' in path.read_text():
                    return kernel.interrupt()
                time.sleep(0.1)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.full
@pytest.mark.filterwarnings("default")
def test_the_example_notebook_in_a_kernel(kernel, tmp_path):
    kernel.ask(STATE + "before = state()")
    assert "training" in kernel.run("config")[1]

    watching = _interrupt_at_step(kernel, tmp_path, 20)
    outputs, shown = kernel.run("train")
    watching.join()
    assert "interrupted at step" in shown
    step = int(shown.split("\ninterrupted ")[-1].split()[0])
    assert 20 <= step < 300
    # One output is updated while it trains; lines are not appended.
    assert sum(_text(output).lstrip().startswith("step ") for output in outputs) <= 2
    (run,) = (tmp_path / "runs" / "notebook").iterdir()

    _, shown = kernel.run("train")
    assert re.search(rf"resumed at step[^\n]*\b{step}\b", shown)
    assert "finished 300" in shown
    assert "held_out" in shown
    _, shown = kernel.run("train")
    assert "finished 300" in shown, "a rerun of a finished cell has its metrics"
    assert "held_out" in shown
    assert list((tmp_path / "runs" / "notebook").iterdir()) == [run]

    assert kernel.run("model")[1].startswith("(1, 19, ")
    _, shown = kernel.run("change")
    assert "1 change" in shown
    assert "optimizer.learning_rate.peak" in shown
    _, shown = kernel.run("plot")
    assert shown.count("finished, step 300/300") == 2
    assert "step 300" in shown.splitlines()[-3]
    _, shown = kernel.run("sweep")
    assert sum(line.startswith("trial ") for line in shown.splitlines()) == 3

    assert kernel.ask("print(changes(before))") == str(INSTALLED)
    assert kernel.ask("import luthier; luthier.install()(); print(changes(before))") == "[]"
