import pytest

from luthier.errors import BadInput
from luthier.study import (
    Choice,
    Gaussian,
    Int,
    Log,
    LogNormal,
    Option,
    Ordinal,
    Pow2,
    Space,
    Uniform,
    Zipped,
    parse_dimension,
    parse_space,
)


def test_every_form_is_read():
    found = parse_space(
        [
            "optimizer.learning_rate.peak=log(1e-4,1e-2)",
            "any:dropout=uniform(0, 0.5)",
            "model.num_layers=int(2,8,step=2)",
            "model.dim=pow2(64,512)",
            "data.length=ordinal(128, 256)",
            "optimizer.b1=uniform(0,0.9,step=0.1)",
            "data.batch=int(1,512,log=True)",
            "optimizer.b2=normal(0.95,std=0.01)",
            "optimizer.eps=lognormal(-18,2)",
            "model.width, model.depth=rows((64, None), (128, 4))",
            "parallelism=choice(@fsdp, fiddler:tensor(2))",
        ]
    ).dimensions
    assert found == {
        "optimizer.learning_rate.peak": Log(1e-4, 1e-2),
        "any:dropout": Uniform(0.0, 0.5),
        "model.num_layers": Int(2, 8, 2),
        "model.dim": Pow2(64, 512),
        "data.length": Ordinal([128, 256]),
        "optimizer.b1": Uniform(0.0, 0.9, 0.1),
        "data.batch": Int(1, 512, log=True),
        "optimizer.b2": Gaussian(0.95, 0.01),
        "optimizer.eps": LogNormal(-18.0, 2.0),
        "model.width, model.depth": Zipped(
            [
                {
                    "model.width": 64,
                    "model.depth": Option(overrides=("model.depth=None",), name="None"),
                },
                {"model.width": 128, "model.depth": 4},
            ]
        ),
        "parallelism": Choice(
            [
                Option(overrides=("fiddler:fsdp",), name="@fsdp"),
                Option(overrides=("fiddler:tensor(2)",), name="fiddler:tensor(2)"),
            ]
        ),
    }


def test_items_that_are_no_numbers_are_words_of_the_grammar_at_the_path():
    _, choice = parse_dimension("task.kind=choice(None, sgd(1e-2, momentum=.9), 'a,b')")
    assert [option.overrides for option in choice.all_options] == [
        ("task.kind=None",),
        ("task.kind=sgd(1e-2, momentum=.9)",),
        ("task.kind='a,b'",),
    ]


def test_conditions_go_into_the_space_of_an_option():
    found = parse_space(
        ["optimizer=choice(adafactor(), @muon)"],
        ["optimizer=adafactor: optimizer.decay=uniform(0.7,0.9)", "optimizer=muon: seed=int(0,3)"],
    )
    first, second = found.dimensions["optimizer"].all_options
    assert first.space == Space({"optimizer.decay": Uniform(0.7, 0.9)})
    assert second.space == Space({"seed": Int(0, 3)})


def test_a_condition_is_cut_outside_of_brackets_and_quotes():
    found = parse_space(
        ["layers['a=b'].norm=choice(rms(), layer())", "x=choice(1, 2)"],
        ["layers['a=b'].norm = rms : n=int(1,2)", "x=2:any:dropout=uniform(0,1)"],
    ).dimensions
    assert found["layers['a=b'].norm"].all_options[0].space == Space({"n": Int(1, 2)})
    assert found["x"].all_options[1].space == Space({"any:dropout": Uniform(0.0, 1.0)})


def test_lists_are_split_outside_of_brackets_and_quotes():
    _, choice = parse_dimension("x=choice(a(1, 2), 'b,c', [d, e],)")
    assert [option.name for option in choice.options] == ["a(1, 2)", "'b,c'", "[d, e]"]
    assert parse_dimension("x=choice()")[1].options == []


@pytest.mark.parametrize(
    ("words", "when", "line"),
    [
        (
            ["rate"],
            [],
            "'rate' is not a space [set by --space rate]; write PATH=log(LOW,HIGH), "
            "uniform(LOW,HIGH,step=0.1), int(LOW,HIGH,step=1), int(LOW,HIGH,log=true), "
            "normal(MEAN,STD), lognormal(MEAN,STD), pow2(LOW,HIGH), ordinal(A,B), choice(A,B), "
            "choice(@FIDDLER,@FIDDLER(1)), or PATH,PATH=rows((A,B),(C,D))",
        ),
        (
            ["rate=log(1,2,3)"],
            [],
            "log takes low, high, not '3' [set by --space rate=log(1,2,3)]",
        ),
        (
            ["rate=logg(1,2)"],
            [],
            "there is no logg(...) [set by --space rate=logg(1,2)]; did you mean log?",
        ),
        (
            ["rate=loguniform(1e-4,1e-2)"],
            [],
            "there is no loguniform(...) [set by --space rate=loguniform(1e-4,1e-2)]; did you mean "
            "rate=log(1e-4,1e-2)?",
        ),
        (["rate=log(1)"], [], "log needs high [set by --space rate=log(1)]"),
        (
            ["n=int(2,8.5)"],
            [],
            "high of int: '8.5' is not a whole number [set by --space n=int(2,8.5)]",
        ),
        (
            ["n=int(2,8,stepp=2)"],
            [],
            "int takes low, high, step, log, not 'stepp=2' [set by --space n=int(2,8,stepp=2)]; "
            "did you mean step?",
        ),
        (
            ["n=int(2,8,log=yes)"],
            [],
            "log of int: 'log=yes' is not true or false [set by --space n=int(2,8,log=yes)]",
        ),
        (["x=normal(1)"], [], "normal needs std [set by --space x=normal(1)]"),
        (
            ["x=log_normal(-7,1)"],
            [],
            "there is no log_normal(...) [set by --space x=log_normal(-7,1)]; did you mean "
            "x=lognormal(-7,1)?",
        ),
        (
            ["x=q_uniform(0,1,0.1)"],
            [],
            "there is no q_uniform(...) [set by --space x=q_uniform(0,1,0.1)]; did you mean "
            "x=uniform(0,1,0.1)?",
        ),
        (
            ["a=rows((1,2),(3,4))"],
            [],
            "rows sets several paths together, and 'a' is one [set by --space "
            "a=rows((1,2),(3,4))]; write PATH,PATH=rows((A,B),(C,D)), or a=choice(...)",
        ),
        (
            ["a,a=rows((1,2),(3,4))"],
            [],
            "a: is given twice [set by --space a,a=rows((1,2),(3,4))]",
        ),
        (
            ["a,b=rows((1,2))"],
            [],
            "a table needs two rows or more [set by --space a,b=rows((1,2))]; write "
            "PATH,PATH=rows((A,B),(C,D))",
        ),
        (
            ["a,b=rows((1,2),(3))"],
            [],
            "the row (3) has 1 values for 2 paths [set by --space a,b=rows((1,2),(3))]; write "
            "PATH,PATH=rows((A,B),(C,D))",
        ),
        (
            ["a,b=rows([1,2],[3,4])"],
            [],
            "'[1,2]' is not a row in parentheses [set by --space a,b=rows([1,2],[3,4])]; write "
            "PATH,PATH=rows((A,B),(C,D))",
        ),
        (["n=int(1,2)", "n=int(1,3)"], [], "n: is given twice [set by --space n=int(1,3)]"),
        (
            ["n=int(1,2)"],
            ["m=a: n=int(1,2)"],
            "there is no choice at m [set by --when m=a: n=int(1,2)]; add a choice there",
        ),
        (
            ["m=choice(a,b)"],
            ["m=a: n=int(1,2)", "m=a: n=int(1,3)"],
            "n: is given twice [set by --when m=a: n=int(1,3)]",
        ),
        (
            ["m=choice(a,b)"],
            ["m=c: n=int(1,2)"],
            "there is no option 'c' at m [set by --when m=c: n=int(1,2)]; the options are a, b",
        ),
        (
            ["m=choice(a,b)"],
            ["m"],
            "'m' is not a condition [set by --when m]; write --when 'optimizer=adafactor: "
            "optimizer.decay=uniform(0.7,0.9)'",
        ),
    ],
)
def test_unreadable_overrides_are_reported_in_one_line(words, when, line):
    with pytest.raises(BadInput) as caught:
        parse_space(words, when)
    assert str(caught.value) == line


def test_all_problems_are_reported_at_once():
    with pytest.raises(BadInput) as caught:
        parse_space(["a", "b=log(1)"], ["c"])
    assert len(caught.value.problems) == 3
