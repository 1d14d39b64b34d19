from luthier.parallel import (
    AXES,
    Mesh,
    Parallelism,
    Rules,
    activation_rules_table,
    axis_product,
    parameter_rules,
)
from luthier.parallel.rules import table_problems

SIZES = {"data": 2, "fsdp": 4, "tensor": 2}


def test_default_rules_name_only_axes_of_the_mesh():
    for table in (parameter_rules(), activation_rules_table()):
        assert {axis for axes in table.values() for axis in axes} <= set(AXES)
        assert table_problems(table, Mesh().sizes(8), "rules") == []


def test_two_rules_do_not_share_their_tables():
    one, other = Rules(), Rules()
    one.parameters["embed"] = ()
    assert other.parameters["embed"] == ("fsdp",)
    assert Parallelism() == Parallelism(Mesh(), other)


def test_axis_product():
    assert axis_product((), SIZES) == 1
    assert axis_product(("data", "fsdp"), SIZES) == 8


def test_every_rule_that_names_no_mesh_axis_is_reported():
    table = {"embed": ("fdsp",), "mlp": "tensor", "heads": ("tensor",), "batch": ("x", "data")}
    lines = [str(problem) for problem in table_problems(table, SIZES, "rules.parameters")]
    assert lines == [
        "rules.parameters.embed: the mesh has no axis 'fdsp'; did you mean fsdp?; "
        "it has data, fsdp, tensor",
        "rules.parameters.mlp: 'tensor' is not a tuple of mesh axes; write ('tensor',)",
        "rules.parameters.batch: the mesh has no axis 'x'; it has data, fsdp, tensor",
    ]
