import jax
import jax.numpy as jnp
import pytest

from luthier.planner.compiled import arrays_of, parse

TEXT = """\
HloModule jit_step, is_scheduled=true

%body (p.1: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p.1 = (s32[], f32[4,8]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[] get-tuple-element(%p.1), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p.1), index=1
  %y = f32[4,8]{1,0} all-reduce(%x), replica_groups={{0,1}}, metadata={op_name="jit(step)/body/add"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, /*index=1*/%y)
}

%condition (p.2: (s32[], f32[4,8])) -> pred[] {
  %p.2 = (s32[], f32[4,8]{1,0}) parameter(0)
  %n = s32[] constant(13)
  %j = s32[] get-tuple-element(%p.2), index=0
  ROOT %lt = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %in = (s32[], f32[4,8]{1,0}) tuple(%zero, %a)
  %loop = (s32[], f32[4,8]{1,0}) while(%in), condition=%condition, body=%body
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_instructions_are_read_with_their_operands_and_scopes():
    module = parse(TEXT)
    assert module.entry == "main"
    found = module.tables["body"]["y"]
    assert (found.opcode, found.operands, found.num_bytes) == ("all-reduce", ("x",), 128)
    assert found.scope == "jit(step)/body/add"
    assert module.tables["body"]["t"].operands == ("i", "y")
    assert module.tables["body"]["t"].is_root
    assert module.tables["main"]["loop"].called == {"condition": ("condition",), "body": ("body",)}


def test_a_loop_without_a_known_trip_count_is_counted_by_its_condition():
    module = parse(TEXT)
    assert module.trips(module.tables["main"]["loop"]) == 13
    annotated = TEXT.replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    )
    module = parse(annotated)
    assert module.trips(module.tables["main"]["loop"]) == 7
    times = {i.name: n for i, n, _ in module.walk()}
    assert (times["a"], times["y"]) == (1, 7)


@pytest.mark.parametrize(
    ("text", "shapes", "sizes", "space"),
    [
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(5)}", [(2, 3)], [12], 5),
        ("(f32[], (s4[8], pred[3]{0}))", [(), (8,), (3,)], [4, 4, 3], 0),
        ("f8e4m3fn[16]{0}", [(16,)], [16], 0),
    ],
)
def test_shapes_are_read(text, shapes, sizes, space):
    arrays = arrays_of(text)
    assert [a.shape for a in arrays] == shapes
    assert [a.num_bytes for a in arrays] == sizes
    assert arrays[0].space == space


def test_what_the_compiler_prints_here_is_read():
    def run(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    shapes = (jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((5, 8, 8), "float32"))
    module = parse(jax.jit(run).lower(*shapes).compile().as_text())
    loops = [i for i, _, _ in module.walk() if i.opcode == "while"]
    assert [module.trips(loop) for loop in loops] == [5]


@pytest.mark.parametrize(
    ("condition", "turns"),
    [
        (
            "%n = s32[] constant(13)\n"
            "  ROOT %lt = pred[] fusion(%j, %n), kind=kLoop, calls=%compare",
            13,
        ),
        ("ROOT %lt = pred[] fusion(%j), kind=kLoop, calls=%compare", 1),
        ("ROOT %lt = pred[] compare(%j, %j), direction=LT", 1),
    ],
    ids=["fused with its bound", "fused without a bound", "no constant"],
)
def test_a_bound_is_also_found_behind_a_fusion_and_else_a_turn_is_counted(condition, turns):
    start = TEXT.index("  %n = s32[] constant(13)")
    end = TEXT.index("}", start)
    counter = "  %j = s32[] get-tuple-element(%p.2), index=0\n  "
    module = parse(TEXT[:start] + counter + condition + "\n" + TEXT[end:])
    assert module.trips(module.tables["main"]["loop"]) == turns
