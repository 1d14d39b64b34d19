from luthier.planner.search import Activity, Buffer, ProgramStep


def test_an_activity_starts_empty_and_shares_nothing_with_others():
    one, other = Activity(), Activity()
    one.buffers.append(Buffer(4, ("batch",)))
    one.steps.append(ProgramStep(makes=[0]))
    assert (other.buffers, other.steps, ProgramStep().makes) == ([], [], [])
