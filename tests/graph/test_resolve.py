from __future__ import annotations

import pathlib
import sys

import fiddle as fdl
import pytest

from luthier.errors import BadInput, Problem, UnknownReference, UserCodeError
from luthier.graph import resolve


def message(reference: str) -> str:
    with pytest.raises(UnknownReference) as caught:
        resolve(reference)
    (problem,) = caught.value.problems
    assert "Traceback" not in str(problem)
    return str(problem)


@pytest.mark.parametrize(
    "reference",
    [
        "graph_toys.experiments",
        " graph_toys.experiments:experiment ",
        "graph_toys.experiments:experiment()",
        "graph_toys.experiments()",
    ],
)
def test_a_reference_makes_a_graph(reference):
    assert resolve(reference).name == "toy"


def test_arguments_are_read_by_their_annotations():
    graph = resolve('graph_toys.experiments:sized(2**5, name="a b", rate=1)')
    assert (graph.model.dim, graph.name) == (32, "a b")
    assert graph.optimizer.learning_rate.peak == 1.0
    assert resolve("graph_toys.experiments:sized(size=1e3, name=small)").model.dim == 1000


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("graph_toys.experimnts", "there is no module 'graph_toys.experimnts'"),
        ("graph_toys.experimnts", "did you mean graph_toys.experiments?"),
        ("graph_toy.experiments", "did you mean graph_toys.experiments?"),
        ("zzzzzz.q", "there is no module 'zzzzzz.q'"),
        ("zzzzzz.q", "run from the folder that contains it, or install its package"),
        ("xmlrpcc.q", "'xmlrpcc.q'; run from the folder that contains it"),
        ("pytes.q", "'pytes.q'; run from the folder that contains it"),
        ("graph_toys.experiments.sized", "did you mean graph_toys.experiments:sized?"),
        ("graph_toys.experiments.a.b", "there is no module 'graph_toys.experiments.a.b'"),
        ("graph_toys.experiments:sizd", "there is no function 'sizd' in graph_toys.experiments"),
        ("graph_toys.experiments:sizd", "did you mean graph_toys.experiments:sized?"),
        ("graph_toys.experiments:zzz", "it has graph_toys.experiments:experiment, "),
        ("graph_toys", "it is a package; it has graph_toys.broken_import, "),
        (
            "graph_toys.experiments:sized",
            "graph_toys.experiments:sized needs size; write graph_toys.experiments:sized(size=...)",
        ),
        (
            "graph_toys.experiments:sized(size=abc)",
            "argument size of graph_toys.experiments:sized: ",
        ),
        ("graph_toys.experiments:sized(size=abc)", "'abc' is not an int"),
        ("graph_toys.experiments:sized(siz=1)", "has no argument 'siz'"),
        ("graph_toys.experiments:sized(siz=1)", "did you mean size?"),
        ("graph_toys.experiments:sized(1, 2, 3, 4)", "takes 3 arguments, not 4"),
        ("graph_toys.experiments:sized(1", "cannot read the arguments '(1'"),
        ("graph_toys.experiments:sized(*a)", "* is not allowed"),
        ("graph_toys.experiments:sized(1).x", "cannot read the arguments"),
        (
            "graph_toys.experiments:built",
            "returned Source, not a config; import Source under luthier.lazy.imports(), or return "
            "fdl.Config(",
        ),
        (
            "graph_toys/experiments.py",
            "write the module instead of the file: graph_toys.experiments",
        ),
        ("", "'' is not a reference; write it like package.module:function"),
        ("a b", "'a b' is not a reference"),
        ("a..b", "'a..b' is not a reference"),
        (":f", "':f' is not a reference"),
    ],
)
def test_what_is_wrong_is_one_line(reference, expected):
    assert expected in message(reference)


def test_failures_in_the_users_code_are_reported_by_file_and_line():
    reported = message("graph_toys.broken_import")
    assert "importing graph_toys.broken_import failed: " in reported
    assert (
        "broken_import.py:3: ModuleNotFoundError: No module named 'graph_toys.not_there'"
        in reported
    )
    with pytest.raises(UserCodeError) as caught:
        resolve("graph_toys.experiments:failing")
    failed = "graph_toys.experiments:failing failed: KeyError: 'no such size'"
    assert str(caught.value) == failed
    assert "experiments.py:29, in failing: raise KeyError" in caught.value.details[0]


def test_a_syntax_error_is_reported_by_file_and_line(tmp_path: pathlib.Path, monkeypatch):
    (tmp_path / "graph_toys_syntax.py").write_text("x = 1\ndef experiment(:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    reported = message("graph_toys_syntax")
    assert "graph_toys_syntax.py:2: SyntaxError: invalid syntax" in reported


def test_bad_input_of_the_function_itself_passes(tmp_path: pathlib.Path, monkeypatch):
    source = (
        "from luthier.errors import BadInput\ndef experiment():\n    raise BadInput('too big')\n"
    )
    (tmp_path / "graph_toys_refusing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput) as caught:
        resolve("graph_toys_refusing")
    assert caught.value.problems == (Problem("too big"),)


def test_each_call_makes_a_new_graph():
    first, second = resolve("graph_toys.experiments"), resolve("graph_toys.experiments")
    assert first == second
    assert first is not second
    assert isinstance(first, fdl.Config)
    assert "graph_toys.experiments" in sys.modules


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty working directory, as the only place of the user's modules."""
    monkeypatch.chdir(tmp_path)
    clone = str(pathlib.Path(__file__).parents[2])
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *(p for p in sys.path if p not in ("", clone))]
    )
    for name in _imported():
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in _imported():  # of this folder: other tests must not find them
        del sys.modules[name]


def _imported() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] in ("configs", "sweeps")]


@pytest.fixture
def own(empty):
    """A project with experiments of its own, one of which has the name of one of luthier."""
    text = "import fiddle as fdl\n\ndef experiment():\n    return fdl.Config(dict, name='own')\n"
    for name in ("lm/quickstart", "lm/twice", "vision/twice"):
        path = empty / "configs" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return empty


def test_experiments_and_studies_of_luthier_are_found_everywhere(empty):
    assert resolve("configs.lm.quickstart").name == "quickstart"
    assert resolve("quickstart").name == "quickstart"
    assert resolve("configs.lm.pax_c4:decoder_2b").name == "pax-2b"  # which has moved
    assert resolve("lm_learning_rate:study").base.name == "quickstart"
    assert resolve("lm.quickstart").name == "quickstart"
    assert resolve("lm.families:gpt2").name == "gpt2"
    assert "did you mean vision.digits?" in message("vision.digts")
    assert "configs.lm.quickstart?" in message("configs.lm.quikstart")
    assert "did you mean quickstart?" in message("quikstart")
    assert "configs.lm.quickstart:experiment?" in message("configs.lm.quickstart:experimnt")
    assert message("configs.lm").endswith("configs.lm.preferences, configs.lm.quickstart")


def test_an_experiment_of_the_project_comes_before_one_of_luthier(own):
    assert resolve("configs.lm.quickstart").name == "own"
    assert resolve("quickstart").name == "own"
    assert resolve("configs.lm.families:gpt2").name == "gpt2"
    assert resolve("lm.quickstart").name == "own"
    assert message("twice") == (
        "'twice' is ambiguous: it may mean configs.lm.twice or configs.vision.twice; "
        "write the full name"
    )


def test_what_the_project_has_beside_it_does_not_hide_an_experiment_of_luthier(empty):
    (empty / "digits").mkdir()  # images, say: no module to anybody but Python
    assert resolve("digits").name == "digits"
    (empty / "configs").mkdir()
    (empty / "configs" / "__init__.py").write_text("import module_that_does_not_exist")
    assert resolve("configs.lm.quickstart").name == "quickstart"
    assert "importing configs failed" in message("configs.mine")


def test_a_record_names_no_experiment_of_luthier(empty):
    from luthier.graph import to_json

    resolve("quickstart")
    function = sys.modules["luthier.shipped.configs.lm.quickstart"].experiment
    with pytest.raises(BadInput, match="is in a folder of experiments"):
        to_json(fdl.Config(function))
