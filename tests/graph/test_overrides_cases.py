"""The table of the override grammar, tests/graph/grammar/cases.toml, case by case."""

from __future__ import annotations

import tomllib

import pytest
from graph_toys import edited, grammar_cases
from graph_toys.names import case_name

from luthier.cli import translate
from luthier.errors import EXIT_BAD_INPUT, EXIT_FAILED, OverrideError, UserCodeError
from luthier.graph import render

CASES = grammar_cases.cases()
WORDS = [case for case in CASES if "flags" not in case]
FLAGS = [case for case in CASES if "flags" in case]
FORMS = [  # what facts and pages promise: each must be in the table
    *("=", ":=", "+=", "-=", "*=", "~", "reset:", "any:", "**.", "[*]", "class:", "@", "tag:", "#"),
    *("config:", "partial:", "ref:", "$", "alias:", "&", "run:", "@run:", "fiddler:", "file:"),
    *("--fdl.", "--fdl_set", "--fdl_tag.", "--fdl_tags_set", "--fdl_config", "--fdl_config_file"),
    *("--fiddler", "--exp", "--job_log_dir", "--overrides"),
]


def name_of(case):
    return case_name(" ; ".join(case["flags"] if "flags" in case else grammar_cases.words_of(case)))


@pytest.mark.parametrize("case", WORDS, ids=name_of)
def test_words(case):
    expected = case["result"] if "result" in case else case["message"]
    assert grammar_cases.outcome(case) == expected


@pytest.mark.parametrize("case", [c for c in WORDS if "message" in c], ids=name_of)
def test_a_problem_has_its_origin_and_changes_nothing(case):
    graph, words = grammar_cases.graph_of(case), grammar_cases.words_of(case)
    with pytest.raises((OverrideError, UserCodeError)) as caught:
        grammar_cases.apply_words(graph, words)
    is_users = isinstance(caught.value, UserCodeError)
    assert is_users == (case.get("word") == "fiddler:fail")
    assert caught.value.exit_code == (EXIT_FAILED if is_users else EXIT_BAD_INPUT)
    for problem in caught.value.problems:
        origins = [f"argument {number}: {word}" for number, word in enumerate(words, 1)]
        assert problem.origin in origins or problem.origin.startswith("words/")
        assert "\n" not in str(problem)
    assert grammar_cases.changes(grammar_cases.graph_of(case), graph) == {}


@pytest.mark.parametrize("case", FLAGS, ids=name_of)
def test_flags(case, tmp_path, monkeypatch):
    grammar_cases.make_configs(tmp_path)
    monkeypatch.chdir(tmp_path)
    words, problems = translate(case["flags"])
    if "message" in case:
        assert "\n".join(map(str, problems)) == case["message"]
    else:
        assert (words, problems) == (case["reads"], [])


def test_the_table_has_every_form_good_and_bad():
    assert len(CASES) >= 150
    good = [case for case in CASES if "message" not in case]
    assert min(len(good), len(CASES) - len(good)) >= 60
    texts = [" ".join(case.get("flags") or grammar_cases.words_of(case)) for case in CASES]
    assert [form for form in FORMS if not any(form in text for text in texts)] == []


def test_the_graph_at_the_top_is_the_one_that_is_changed():
    table = tomllib.loads(grammar_cases.TABLE.read_text(encoding="utf-8"))
    assert table["graph"].strip() == render(edited.experiment())


def test_no_case_is_listed_twice():
    keys = [(case.get("graph"), "flags" in case, name_of(case)) for case in CASES]
    assert [case for case in keys if keys.count(case) > 1] == []
    for case in CASES:
        assert len({"result", "message", "reads"} & set(case)) == 1
        assert case["says"]
