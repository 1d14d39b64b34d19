from __future__ import annotations

import random

import fiddle as fdl
import pytest
from graph_toys import parts

from luthier import graph as graphs
from luthier.errors import BadInput, OverrideError
from luthier.graph.formats.gin import from_gin, make_root

TOYS = ["graph_toys"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    write("base.gin", "DIM = 4\nModel:\n  dim = %DIM  # few\n  num_heads = 2\n")
    write("more/rates.gin", "Cosine.peak = 0.5\n")
    write("small.gin", "include 'base.gin'\ninclude 'rates.gin'\nDIM = 8\n")
    return write


def apply(*words):
    return graphs.apply(parts.experiment(), list(words), packages=TOYS)


def errors(*words):
    with pytest.raises(OverrideError) as caught:
        apply(*words)
    return [str(problem) for problem in caught.value.problems]


def test_files_bindings_and_search_paths(folder):
    words = ["gin_file:small.gin", "gin_bindings:DIM = 16", "gin_search_paths:nowhere,more"]
    graph = apply(*words)
    assert graphs.evaluate(graph.model.dim) == 16
    assert graph.model.num_heads == 2
    assert graph.optimizer.learning_rate.peak == 0.5


def test_where_each_value_was_set(folder):
    graph = apply("gin_file:small.gin", "gin_search_paths:more", "gin_bindings:Mlp.hidden = 3")
    assert graphs.origin_of(graph, "model.dim") == "small.gin:3: DIM = 8"
    assert graphs.origin_of(graph, "model.num_heads") == "base.gin:4: Model.num_heads = 2"
    assert graphs.origin_of(graph, "optimizer.learning_rate.peak") == (
        "more/rates.gin:1: Cosine.peak = 0.5"
    )
    assert graphs.origin_of(graph, "model.layers[0].hidden") == (
        "argument 3: gin_bindings:Mlp.hidden = 3"
    )


def test_words_apply_at_their_place_among_the_overrides(folder):
    before = apply("model.num_heads=8", "gin_file:base.gin")
    after = apply("gin_file:base.gin", "model.num_heads=8")
    assert (before.model.num_heads, after.model.num_heads) == (2, 8)
    graph = apply("gin_file:base.gin", "model.num_heads=$model.dim", "gin_bindings:DIM = 3")
    assert graphs.evaluate(graph.model.num_heads) == 3


def test_a_macro_is_one_constant_that_can_be_named(folder):
    graph = apply("gin_file:base.gin", "gin_bindings:Mlp.hidden = %DIM", "gin:DIM=32")
    assert graph.model.dim is graph.model.layers[0].hidden
    assert graphs.evaluate(graph.model.dim) == 32
    assert graphs.origin_of(graph, "model.dim") == "argument 3: gin:DIM=32"
    assert errors("gin_file:base.gin", "gin:DIN=3") == [
        "no constant is called 'DIN' [set by argument 2: gin:DIN=3]; did you mean gin:DIM?"
    ]
    assert errors("gin:DIM=3") == [
        "no constant is called 'DIM' [set by argument 1: gin:DIM=3]; the graph has no named "
        "constants"
    ]
    assert errors("gin:DIM:=3")[0].endswith("; write gin:DIM=VALUE")


def test_a_constant_inside_of_arithmetic_can_be_named():
    graph = graphs.apply(parts.experiment(), ["model.num_heads=$model.dim * 2"])
    graph.model.dim = 5
    assert graphs.evaluate(graphs.apply(graph, ["gin:dim=3"]).model.num_heads) == 6


def test_all_problems_are_reported_with_file_and_line(folder):
    folder("bad.gin", "Model.dimm = 3\n\nModle.dim = 4\nModel:\n  dim = 'a'\n")
    assert errors("gin_file:bad.gin", "steps=x", "gin_file:none.gin") == [
        "Model has no argument 'dimm' [set by bad.gin:1: Model.dimm = 3]; did you mean dim?",
        "there is nothing called 'Modle' [set by bad.gin:3: Modle.dim = 4]; did you mean Model?",
        "'a' is not an int [set by bad.gin:5: Model.dim = 'a']",
        "steps: 'x' is not an int [set by argument 2: steps=x]",
        "there is no gin file 'none.gin' in . [set by argument 3: gin_file:none.gin]; "
        "--gin_search_paths names folders to look in",
    ]


def test_a_root_without_a_graph():
    words = ["gin_bindings:import graph_toys.gin_parts\nTrainer.steps = 3"]
    root = make_root("Trainer", words, TOYS)
    graph = graphs.apply(root, words, packages=TOYS)
    assert graph.__fn_or_cls__.__name__ == "Trainer"
    assert graph.steps == 3
    with pytest.raises(BadInput, match=r"nothing called 'Trainr' \[set by --gin_root\]"):
        make_root("Trainr", words, TOYS)


def test_a_file_that_says_what_it_describes():
    text = "# luthier: root @Model()\nModel.dim = %DIM\nDIM = '7'\nimport graph_toys.parts\n"
    text = text.replace("@Model", "@graph_toys.parts.Model").replace("\nModel", "\nparts.Model")
    text = text.replace("import graph_toys.parts", "from graph_toys import parts")
    graph = from_gin(text.replace("'7'", "7"), TOYS)
    assert isinstance(graph, fdl.Config)
    assert graphs.evaluate(graph.dim) == 7
    with pytest.raises(BadInput, match=r"'7' is not an int"):
        from_gin(text, TOYS)
    with pytest.raises(BadInput, match=r"config.gin does not name its root; add a line"):
        from_gin("A = 3")


def test_nothing_is_imported_that_is_not_on_the_list():
    with pytest.raises(BadInput, match="'off_list' may not be imported"):
        from_gin("# luthier: root @off_list.A()\nimport off_list\n")
    with pytest.raises(BadInput, match=r"'os\.system' may not be imported"):
        from_gin("# luthier: format 1\n# luthier: root @os.system()\n")


WORDS = (
    *("Model", "Mlp", "Cosine", "graph_toys.parts.Mlp", "Evaluation", "Nothing", "a", "a/b"),
    *("held_out/Source", "M", "N", "%M", "%N", "%gin.REQUIRED", "@Mlp", "@Mlp()", "@a/Model()"),
    *("@a/gin.singleton()", "a/gin.singleton.constructor", "M/macro.value", "@relu", "@", "%"),
    *(".dim", ".hidden", ".data", ".layers", ".peak", ".", "=", " = ", " = ", ":", "\n", "\n"),
    *("\n  ", "\n  dim = ", "1", "-1", "1e999", "0.5", "'x'", '"', "'''", "[", "]", "(", ")"),
    *("{", "}", ",", "{1: 2}", "None", "True", "nan", "import ", "from ", "include ", "'a.gin'"),
    *("graph_toys.gin_parts", "os", "as ", "# luthier: tag Mlp.hidden graph_toys.parts.Rate\n"),
    *("# luthier: shared M\n", "# luthier: root @Mlp()\n", "# luthier: value N {}\n", "\\", "\t"),
    *("# luthier: instance Mlp\n", "# luthier: called M 3\n", "# x\n", "\x00", "ü", "\ud800", "$"),
)
WHOLE = (
    *("M = 1", "N = %M", "M = %N", "M = @Mlp()", "Model.dim = %M", "Mlp.hidden = 2", "M = [%N]"),
    *("Model.layers = [@Mlp(), %M]", "Mlp.dtype = 'bf16'", "Evaluation.data = @Evaluation()"),
    *("Experiment.extra = {%M: @a/Mlp}", "a/Mlp.hidden = %N", "include 'a.gin'", "Mlp.x = 1"),
    *("Model:\n  dim = 3\n  num_heads = 'x'", "Experiment.extra = %nothing.At.all"),
)


def random_text(chooser):
    lines = []
    for _ in range(chooser.randrange(1, 8)):
        if chooser.random() < 0.6:
            lines.append(chooser.choice(WHOLE))
        else:
            lines.append("".join(chooser.choices(WORDS, k=chooser.randrange(1, 10))))
    return "\n".join(lines)


@pytest.mark.full
def test_any_text_of_a_file_is_read_or_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chooser = random.Random(1)
    (tmp_path / "a.gin").write_text("Mlp.hidden = 5\ninclude 'b.gin'\n")
    (tmp_path / "b.gin").write_text("N = 5\n")
    base, read, num_rejected = parts.experiment(), 0, 0
    for _ in range(2000):
        text = random_text(chooser)
        try:
            graphs.apply(base, [f"gin_bindings:{text}"], packages=TOYS)
            read += 1
        except BadInput:
            num_rejected += 1
    assert read > 100
    assert num_rejected > 1000
