from luthier.planner import targets
from luthier.planner.search import COMPILERS, Compiler


def test_every_platform_has_a_compiler():
    assert set(COMPILERS) == {*(chip.platform for chip in targets.CHIPS.values()), "cpu"}


def test_processors_do_what_the_program_says():
    assert COMPILERS["cpu"] == Compiler()
