from luthier.errors import BadInput, OverrideError, Problem


def test_a_problem_is_one_line_with_what_where_and_remedy():
    problem = Problem(
        "'abc' is not\na number", "optimizer.b2", "argument 2", "give a float", ["optimizer.b1"]
    )
    line = str(problem)
    assert "\n" not in line
    assert line.startswith("optimizer.b2: 'abc' is not a number")
    assert "[set by argument 2]" in line
    assert "did you mean optimizer.b1?" in line
    assert line.endswith("give a float")


def test_bad_input_holds_all_problems_and_asks_for_exit_code_two():
    error = OverrideError([Problem("one"), Problem("two")])
    assert isinstance(error, BadInput)
    assert str(error).splitlines() == ["one", "two"]
    assert error.exit_code == 2
    assert [str(p) for p in BadInput("three").problems] == ["three"]
