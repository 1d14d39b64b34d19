import csv
import io
import json
import sys

import pyarrow.parquet as parquet
import pytest
import simulated_engine as toys

from luthier import study as studies
from luthier.errors import BadInput


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies")
    engine = toys.InstantEngine(1, {5: ["failed"], 7: ["infeasible"]})
    studies.run(toys.make_study(directory=str(path)), packages=toys.PACKAGES, engine=engine)
    return studies.load("toy", path)


def test_a_row_has_what_its_trial_set_and_came_to(table):
    assert [row["trial"] for row in table] == list(range(12))
    assert (table[5]["state"], table[7]["state"]) == ("failed", "infeasible")
    assert table[7]["held_out/loss"] is None
    for row in table.where(state="complete"):
        words = dict(word.split("=") for word in row["overrides"].split()[:2] if "=" in word)
        assert row["width"] == int(words.get("width", 8)), "32, and not its exponent"
        expected = toys.loss({"rate": row["rate"], "width": row["width"]}, 4)
        assert row["held_out/loss"] == pytest.approx(expected, abs=1e-12)
    (best,) = table.best
    assert table.sorted("held_out/loss")[0]["trial"] == best
    assert table.sorted("held_out/loss").rows[-1]["held_out/loss"] is None, "absent ones come last"
    widths = [row["width"] for row in table.sorted("width", descending=True)]
    assert widths == sorted(widths, reverse=True)


def test_the_files_hold_the_rows(table, tmp_path, monkeypatch):
    read = list(csv.DictReader(io.StringIO(table.csv())))
    assert [float(r["rate"]) for r in read] == [r["rate"] for r in table]
    assert read[7]["held_out/loss"] == ""
    assert json.loads(table.json()) == list(table)
    table.write_parquet(tmp_path / "trials.parquet")
    assert parquet.read_table(tmp_path / "trials.parquet").to_pylist() == list(table)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pandas is not installed; pip install pandas"):
        table.frame()


def test_a_column_that_does_not_exist_is_refused(table):
    with pytest.raises(BadInput, match="no column 'loss'; there are trial, state, held_out"):
        table.sorted("loss")
