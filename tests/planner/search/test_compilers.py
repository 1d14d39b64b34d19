from luthier.planner.search.activity import COMPILERS, Compiler
from luthier.planner.targets import CHIPS


def test_every_platform_has_a_compiler():
    assert set(COMPILERS) == {*(chip.platform for chip in CHIPS.values()), "cpu"}


def test_processors_do_what_the_program_says():
    assert COMPILERS["cpu"] == Compiler()
