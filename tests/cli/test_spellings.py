from __future__ import annotations

import pytest

from luthier import cli
from luthier.errors import UnknownReference


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    for name in ("configs/lm/small.py", "configs/lm/twin.py", "configs/vision/twin.py"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("def experiment():\n    pass\ndef Big() -> 'Experiment':\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_flags_become_words_at_their_place():
    words = ["a", "x=1", "--fdl.x.y=1", "--fdl_set", "z=2", "--fiddler", "f(1)", "--new", "w~"]
    translated = ["a", "x=1", "x.y=1", "z=2", "fiddler:f(1)", "--new", "w~"]
    assert cli.translate(words) == (translated, [])


def test_commands_of_fiddles_flag_are_the_experiment_and_overrides():
    words = [
        "--fdl_config=set:a.b=1",
        "--fdl_config=config:lm.small",
        "--fdl_config",
        "fiddler:f(1)",
    ]
    assert cli.translate(words) == (["lm.small", "a.b=1", "fiddler:f(1)"], [])
    assert cli.translate(["--cfg=config:small()", "--cfg", "fiddler:g()"])[0] == [
        "small",
        "fiddler:g",
    ]
    _, problems = cli.translate(["--fdl_config=config_file:nowhere.json"])
    assert [p.what for p in problems] == ["--fdl_config_file: there is no file 'nowhere.json'"]
    _, (problem,) = cli.translate(["--fdl_config=config_str:abc"])
    assert problem.remedy == "save it: --fdl_config_file FILE.json"


def test_flags_of_a_config_dict_are_its_keys_or_those_of_the_experiment():
    assert cli.translate(["a", "--config=b.py:x", "--config.lr=1"])[0] == [
        "a",
        "config_dict:b.py:x",
        "config_dict:lr=1",
    ]
    assert cli.translate(["a", "--config", "b.py"])[0] == ["a", "config_dict:b.py"]
    assert cli.translate(["a", "--config.optimizer.b2=0.9"])[0] == ["a", "optimizer.b2=0.9"]


def test_values_may_hold_anything():
    assert cli.translate(["--fdl_set=w=3"]) == (["w=3"], [])
    assert cli.translate(["--fdl_set", "--fdl.x=1"]) == (["--fdl.x=1"], [])
    assert cli.translate(["--overrides", "a b.txt"]) == (["file:a b.txt"], [])


def test_two_dashes_end_the_flags():
    assert cli.translate(["a", "--", "--fdl.x=1"]) == (["a", "--", "--fdl.x=1"], [])
    _, problems = cli.translate(["a", "--fdl_set", "--", "x=1"])
    assert [problem.what for problem in problems] == ["--fdl_set has no value"]


def test_a_command_without_an_experiment_has_no_flags_that_name_one():
    assert cli.translate(["--exp", "a"], names_experiment=False) == (["--exp", "a"], [])
    assert "--exp" not in cli.flag_names(names_experiment=False)
    assert {"--exp", "--fiddler"} <= set(cli.flag_names())


def test_the_experiment_stands_first_and_once():
    assert cli.translate(["a=1", "--fdl_config=b.c:d(e=1)"])[0] == ["b.c:d(e=1)", "a=1"]
    words, problems = cli.translate(["--fdl_config", "a", "--fdl_config", "b"])
    assert words == ["a"]
    assert [str(problem) for problem in problems] == [
        "two experiments are given: a and b; leave out one"
    ]


def test_an_experiment_that_does_not_exist_was_still_named(experiments):
    words, problems = cli.translate(["--exp=lm.smal", "a=1"])
    assert words == ["", "a=1"]
    assert problems[0].nearest == ["configs.lm.small"]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("configs.lm.small", "configs.lm.small"),
        ("lm.small", "configs.lm.small"),
        ("small", "configs.lm.small"),
        ("small.Big", "configs.lm.small:Big"),
        ("small:Big", "configs.lm.small:Big"),
        ("small(layers=2)", "configs.lm.small(layers=2)"),
        ("configs.lm.small.Other", "configs.lm.small:Other"),  # not listed, but it may be there
        ("configs.lm.small:Other(1)", "configs.lm.small:Other(1)"),
        ("vision.twin", "configs.vision.twin"),
    ],
)
def test_names_of_experiments(experiments, name, reference):
    assert cli.find_experiment(name) == reference


@pytest.fixture
def named(experiments):
    (experiments / "configs" / "lm" / "small.py").write_text(
        "def experiment():\n"
        "    '''Small.\n\n    Pax: Small4Replicas\n    Pax: SmallLimitSteps(steps=300)\n    '''\n"
    )
    return experiments


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("Small4Replicas", "configs.lm.small"),
        ("c4.Small4Replicas", "configs.lm.small"),
        ("tasks.lm.params.c4.Small4Replicas", "configs.lm.small"),
        ("SmallLimitSteps", "configs.lm.small(steps=300)"),
        ("Small4Replicas(slices=2)", "configs.lm.small(slices=2)"),
        ("SmallLimitSteps(slices=2)", "configs.lm.small(steps=300, slices=2)"),
    ],
)
def test_names_that_pax_has(named, name, reference):
    assert cli.find_experiment(name) == reference


def test_the_nearest_names_that_pax_has(named):
    with pytest.raises(UnknownReference) as caught:
        cli.find_experiment("tasks.lm.params.c4.Small8Replicas")
    assert str(caught.value) == (
        "there is no experiment 'tasks.lm.params.c4.Small8Replicas', neither importable nor listed "
        "by `luthier list`; did you mean Small4Replicas?"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "twin",
            "'twin' is ambiguous: it may mean configs.lm.twin or configs.vision.twin; "
            "write more of the name",
        ),
        (
            "pax_c4.C4Spmd1BAdam5Replicas",
            "there is no experiment 'pax_c4.C4Spmd1BAdam5Replicas', neither importable nor listed "
            "by `luthier list`; did you mean C4Spmd1BAdam4Replicas or C4Spmd16BAdam32Replicas or "
            "C4Spmd2BAdam4Replicas?",
        ),
        (
            "small.Bigg",
            "there is no experiment 'small.Bigg', neither importable nor listed by `luthier list`; "
            "did you mean configs.lm.small:Big?",
        ),
    ],
)
def test_names_of_no_experiment(experiments, name, message):
    with pytest.raises(UnknownReference) as caught:
        cli.find_experiment(name)
    assert str(caught.value) == message


def test_an_experiment_of_the_project_comes_before_one_of_luthier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    text = 'def experiment():\n    """Mine.\n\n    Pax: C4Spmd1BAdam4Replicas\n    """\n'
    (tmp_path / "configs" / "quickstart.py").write_text(text)
    assert cli.find_experiment("C4Spmd1BAdam4Replicas") == "configs.quickstart"
    assert cli.find_experiment("quickstart") == "configs.quickstart"


def test_names_of_experiments_that_come_with_luthier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.find_experiment("C4Spmd1BAdam4Replicas") == "configs.pax.c4"
    assert cli.find_experiment("pax_c4.decoder_2b") == "configs.pax.c4:decoder_2b"


def test_without_a_folder_of_experiments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownReference):
        cli.find_experiment("a.b")
