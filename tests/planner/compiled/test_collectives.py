import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from luthier.parallel import make_mesh
from luthier.planner.compiled import collectives, parse, total

SUM = "f32[16] all-reduce(%a), replica_groups"
SIZES = {"data": 2, "fsdp": 4}


def module_of(line):
    return parse(
        "HloModule m\n\nENTRY %main (a: f32[16]) -> f32[16] {\n"
        "  %a = f32[16]{0} parameter(0)\n  ROOT %r = " + line + "\n}\n"
    )


@pytest.mark.parametrize(
    ("line", "kind", "axes", "num_bytes", "wire_bytes"),
    [
        ("f32[64] all-gather(%a), replica_groups=[2,4]<=[8]", "all-gather", "fsdp", 256, 192),
        ("f32[4] reduce-scatter(%a), replica_groups=[2,4]<=[8]", "reduce-scatter", "fsdp", 64, 48),
        ("f32[16] all-reduce(%a), replica_groups=[4,2]<=[2,4]T(1,0)", "all-reduce", "data", 64, 64),
        (f"{SUM}={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}", "all-reduce", "data", 64, 64),
        ("f32[16] all-reduce(%a), replica_groups={}", "all-reduce", "data fsdp", 64, 112),
        ("f32[16] all-to-all(%a), replica_groups=[2,4]<=[8]", "all-to-all", "fsdp", 64, 48),
        (f"{SUM}={{{{0,1}},{{2,3}},{{4,5}},{{6,7}}}}", "all-reduce", "part of fsdp", 64, 64),
        (
            "f32[64] all-gather(%a), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, x=1",
            "all-gather", "fsdp", 256, 192,
        ),
        (
            "f32[16] all-reduce(%a), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}",
            "all-reduce", "data", 64, 64,
        ),
        (
            "f32[16] collective-permute(%a), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
            "collective-permute", "fsdp", 64, 64,
        ),
    ],
)  # fmt: skip
def test_groups_are_reported_as_mesh_axes(line, kind, axes, num_bytes, wire_bytes):
    (found,) = collectives(module_of(line), SIZES, [0] * 8)
    assert (found.kind, " ".join(found.axes), found.count) == (kind, axes, 1)
    assert (found.num_bytes, found.wire_bytes) == (num_bytes, wire_bytes)


def test_groups_of_one_device_exchange_nothing():
    line = "f32[16] all-reduce(%a), replica_groups=[8,1]<=[8]"
    assert collectives(module_of(line), SIZES, [0] * 8) == []


def test_an_axis_that_crosses_slices_is_named_within_and_between_them():
    sizes, slices = {"data": 8}, [0] * 4 + [1] * 4
    for line, across in (
        ("f32[16] all-reduce(%a), replica_groups=[2,4]<=[8]", False),
        ("f32[16] all-reduce(%a), replica_groups=[4,2]<=[2,4]T(1,0)", True),
    ):
        (found,) = collectives(module_of(line), sizes, slices)
        assert (found.axes, found.is_across_slices) == (("part of data",), across)


def test_what_leaves_a_slice_is_counted_apart():
    across = "f32[16] all-reduce(%a), replica_groups=[4,2]<=[2,4]T(1,0)"
    (found,) = collectives(module_of(across), SIZES, [0] * 4 + [1] * 4)
    assert found.is_across_slices
    assert (total([found], True), total([found], False)) == (64, 0)
    within = "f32[64] all-gather(%a), replica_groups=[2,4]<=[8]"
    (found,) = collectives(module_of(within), SIZES, [0] * 4 + [1] * 4)
    assert not found.is_across_slices


def test_hosts_exchange_between_tpu_slices():
    line = (
        "(f32[16], u32[], token[]) send(%a), is_host_transfer=true, frontend_attributes={"
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    (found,) = collectives(module_of(line), SIZES, [0] * 4 + [1] * 4)
    assert (found.kind, found.axes, found.is_across_slices) == ("all-reduce", ("data",), True)
    assert (found.num_bytes, found.wire_bytes) == (64, 64)
    other = "(f32[16], u32[], token[]) send(%a), channel_id=1"
    assert collectives(module_of(other), SIZES, [0] * 8) == []


def test_loops_of_a_compiled_program_count_as_often_as_they_run():
    mesh = make_mesh(SIZES, jax.devices()[:8])
    whole, cut = (NamedSharding(mesh, PartitionSpec(*s)) for s in ((), (None, "fsdp")))

    def run(x, ws):
        def layer(x, w):
            w = jax.lax.with_sharding_constraint(w, whole)
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), whole), None

        return jax.lax.scan(layer, x, ws)[0]

    x = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=whole)
    ws = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32, sharding=cut)
    module = parse(jax.jit(run, out_shardings=whole).lower(x, ws).compile().as_text())
    found = collectives(module, SIZES, [0] * 8)
    gathered = [c for c in found if c.kind == "all-gather"]
    assert {c.axes for c in gathered} == {("fsdp",)}
    assert sum(c.num_bytes for c in gathered) == 3 * 8 * 8 * 4  # of each layer, or all at once


ASYNCHRONOUS = """HloModule m

%start (p: f32[16]) -> f32[64] {
  %p = f32[16]{0} parameter(0)
  ROOT %g = f32[64]{0} all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8]
}

%beside (p: f32[16]) -> f32[64] {
  %p = f32[16]{0} parameter(0)
  ROOT %g = f32[64]{0} all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8]
}

%done (p: f32[16]) -> f32[64] {
  %p = f32[16]{0} parameter(0)
  ROOT %g = f32[64]{0} all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8]
}

%body (a: f32[16]) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  %f = f32[64]{0} fusion(%a), kind=kCustom, calls=%beside
  ROOT %r = f32[16]{0} all-reduce(%a), channel_id=8, replica_groups=[2,4]<=[8]
}

%condition (a: f32[16]) -> pred[] {
  ROOT %a = f32[16]{0} parameter(0)
}

ENTRY %main (a: f32[16]) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  %async-collective-start = f32[64]{0} fusion(%a), kind=kCustom, calls=%start
  %w = f32[16]{0} while(%a), condition=%condition, body=%body, trips
  %async-collective-done = f32[64]{0} fusion(%a), kind=kCustom, calls=%done
  ROOT %r = f32[16]{0} all-reduce(%w), channel_id=9, replica_groups=[2,4]<=[8]
}
""".replace("trips", 'backend_config={"known_trip_count":{"n":"5"}}')


def test_an_asynchronous_collective_is_one_from_its_start_to_its_end():
    """As the TPU compiler prints it: started, then beside a loop's products, then waited for."""
    found = collectives(parse(ASYNCHRONOUS), SIZES, [0] * 8)
    assert {one.kind: (one.count, one.num_bytes) for one in found} == {
        "all-gather": (1, 256),
        "all-reduce": (5 + 1, 6 * 64),
    }
    # Without the fusion that starts it, as where it is started in the loop's last turn.
    alone = ASYNCHRONOUS.replace("%async-collective-start =", "%fusion.1 =")
    found = collectives(parse(alone), SIZES, [0] * 8)
    assert {one.kind: one.count for one in found} == {"all-gather": 1, "all-reduce": 6}


SCHEDULE = """\
HloModule m, is_scheduled=true

%product (p: f32[16], q: f32[16]) -> f32[] {
  %p = f32[16]{0} parameter(0)
  %q = f32[16]{0} parameter(1)
  ROOT %d = f32[] dot(%p, %q), lhs_contracting_dims={0}, rhs_contracting_dims={0}
}

%starting (r: f32[16]) -> (f32[16], f32[64]) {
  %r = f32[16]{0} parameter(0)
  %g = f32[64]{0} all-gather(%r), channel_id=7, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %t = (f32[16]{0}, f32[64]{0}) tuple(%r, %g)
}

%ending (s: f32[64]) -> f32[64] {
  %s = f32[64]{0} parameter(0)
  ROOT %n = f32[64]{0} copy(%s)
}

ENTRY %main (a: f32[16]) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  LINES
}
"""
PRODUCTS = (
    "%f = f32[] fusion(%a, %a), kind=kOutput, calls=%product",
    "%f = f32[] conditional(%i, %a, %a), branch_computations={%ending, %product}",
    "%f = f32[] while(%a), condition=%ending, body=%product",
)
PRODUCT = PRODUCTS[0]
RECV, SEND = (
    f"%{name} = (f32[16]{{0}}, u32[], token[]) {name}({of}), is_host_transfer=true, "
    'frontend_attributes={_xla_host_transfer_rendezvous="sum.1_0",'
    '_xla_megascale_transfer_type="ALL_REDUCE"}'
    for name, of in (("recv", ""), ("send", "%a"))
)
ON_GPU = (
    "%s = (f32[16]{0}, f32[64]{0}) all-gather-start(%a), replica_groups=[2,4]<=[8]",
    "%e = f32[64]{0} all-gather-done(%s)",
)
ON_TPU = (
    "%async-collective-start.1 = (f32[16]{0}, f32[64]{0}) fusion(%a), calls=%starting",
    "%x = f32[64]{0} get-tuple-element(%async-collective-start.1), index=1",
    "%async-collective-done.1 = f32[64]{0} fusion(%x), calls=%ending",
)
BETWEEN_SLICES = (
    RECV,
    SEND,
    "%w = (token[]) send-done(%send)",
    "%e = (f32[16]{0}, token[]) recv-done(%recv)",
)


@pytest.mark.parametrize(
    ("lines", "num_bytes"), [(ON_GPU, 256), (ON_TPU, 256), (BETWEEN_SLICES, 64)]
)
@pytest.mark.parametrize("product", PRODUCTS)
def test_collectives_with_no_product_beside_them_are_exposed(lines, num_bytes, product):
    for place in range(len(lines) + 1):
        schedule = [*lines[:place], product, *lines[place:]]
        module = parse(SCHEDULE.replace("LINES", "\n  ".join(schedule)))
        (found,) = collectives(module, SIZES, [0] * 4 + [1] * 4)
        starts = lines.index(SEND) + 1 if SEND in lines else 1
        is_beside = starts <= place < len(lines)
        assert found.num_bytes == num_bytes
        assert found.exposed_bytes == (0 if is_beside else num_bytes), schedule


IN_A_LOOP = (
    ON_GPU[1].replace("%s", "%a"),  # ends what the turn before has started
    "%u = f32[16]{0} copy(%a)",
    ON_GPU[0],
)


@pytest.mark.parametrize(("place", "is_beside"), [(0, True), (1, False), (2, False), (3, True)])
def test_a_collective_may_end_in_the_next_turn_of_a_loop(place, is_beside):
    lines = [*IN_A_LOOP[:place], PRODUCT, *IN_A_LOOP[place:]]
    text = SCHEDULE.replace("LINES", "\n  ".join(lines)).replace("ENTRY %main", "%turn")
    text += "ENTRY %main (b: f32[16]) -> f32[16] {\n  %b = f32[16]{0} parameter(0)\n"
    text += "  ROOT %l = f32[16]{0} while(%b), condition=%ending, body=%turn\n}\n"
    (found,) = collectives(parse(text), SIZES, [0] * 8)
    assert found.exposed_bytes == (0 if is_beside else 256)


def test_a_collective_that_is_no_start_is_exposed():
    lines = "%g = f32[64]{0} all-gather(%a), replica_groups=[2,4]<=[8]", PRODUCT
    (found,) = collectives(parse(SCHEDULE.replace("LINES", "\n  ".join(lines))), SIZES, [0] * 8)
    assert found.exposed_bytes == found.num_bytes == 256
