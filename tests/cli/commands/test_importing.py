import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from luthier.cli import main

GOLDENS = Path(__file__).parents[2] / "recipes" / "foreign" / "pax" / "goldens"
TOLD = "layouts follow from the mesh here"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with dumps of Pax, and the weights of one."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDENS / "gpt.json", tmp_path)
    shutil.copy(GOLDENS / "gpt.safetensors", tmp_path)
    dumped = gzip.decompress((GOLDENS / "c4.json.gz").read_bytes())
    (tmp_path / "c4.json").write_bytes(dumped)
    return tmp_path


def test_python_is_printed_and_leftovers_are_listed_beside_it(here, capsys):
    assert main(["import", "pax", "gpt.json"]) == 0
    out, err = capsys.readouterr()
    assert "def experiment() -> fdl.Config:" in out
    first, *lines = err.splitlines()
    assert first == f"{len(lines)} settings have no equivalent:"
    where = "task.model.lm_tpl.softmax_tpl.weight_split_dims_mapping"
    assert f"  {where}.wt = [data, mdl] (WeightSharding): {TOLD}" in lines


@pytest.mark.parametrize("form", ["json", "yaml", "tree"])
def test_other_forms(here, capsys, form):
    assert main(["import", "pax", "c4.json", "--to", form]) == 0
    assert "luthier.program.Experiment" in capsys.readouterr().out


def test_a_file_can_be_shown(here, capsys):
    words = ["import", "pax", "gpt.json", "--checkpoint", "gpt.safetensors"]
    assert main([*words, "--output", "gpt.yaml"]) == 0
    assert capsys.readouterr().out.startswith("gpt.yaml: ")
    assert main(["show", "gpt.yaml", "restore", "model.num_layers"]) == 0
    out = capsys.readouterr().out
    assert "luthier.checkpoint.Pax" in out
    assert "heads_first = False" in out


def test_what_is_left_over_as_json(here, capsys):
    assert main(["import", "pax", "gpt.json", "--output", "gpt.json.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["experiment"], found["file"]) == ("goldens.Gpt", "gpt.json.yaml")
    assert {"path", "target", "field", "value", "why", "is_essential"} == set(found["leftovers"][0])


def test_the_dumper_is_printed(capsys):
    assert main(["import", "pax", "--print-dumper"]) == 0
    out = capsys.readouterr().out
    assert out.startswith('"""Write an experiment of Pax as JSON')
    assert out.endswith("main(sys.argv[1:])\n")


ERRORS = {
    ("import", "pax"): "no file is given; `luthier import pax --print-dumper > dump_pax.py` writes "
    "the script that makes one",
    ("import", "pax", "no.json"): "cannot read no.json: No such file or directory",
    ("import", "pax", "gpt.json", "--to", "py", "--output", "x.yaml"): "--to py and x.yaml name "
    "different formats; leave out --to",
    ("import", "pax", "gpt.json", "--output", "no/x.py"): "cannot write no/x.py: no such file or "
    "directory [set by --output]",
}


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_bad_input_is_reported_in_a_line(here, capsys, words):
    assert main(list(words)) == 2
    assert capsys.readouterr().err == f"luthier: {ERRORS[words]}\n"


def test_what_has_no_like_is_refused_and_nothing_written(here, capsys):
    content = json.loads(Path("gpt.json").read_text())
    content["task"]["set"]["model"]["set"]["lm_tpl"]["set"]["ngrammer_tpl"] = {
        "class": "praxis.layers.ngrammer.Ngrammer",
        "set": {},
    }
    Path("gpt.json").write_text(json.dumps(content))
    assert main(["import", "pax", "gpt.json", "--output", "x.py"]) == 2
    assert capsys.readouterr().err == (
        "luthier: task.model.lm_tpl: ngrammer_tpl of TransformerLm is Ngrammer, which has no "
        "equivalent here; supported: None\n"
    )
    assert not Path("x.py").exists()
    assert main(["import", "pax", "gpt.json", "--output", "x.py", "--partial"]) == 0
    assert "ngrammer_tpl = Ngrammer (TransformerLm): supported: None" in capsys.readouterr().out


def test_its_help_imports_neither_jax_nor_fiddle():
    code = (
        "import sys; from luthier.cli import main\n"
        "try: main(['import', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('jax', 'fiddle', 'flax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
