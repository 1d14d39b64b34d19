import jax
import jax.numpy as jnp
import pytest

from luthier.planner.compiled import device_work, parse

TEXT = """\
HloModule m, is_scheduled=true

%part (p0: f32[1024,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[1024,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %z = s32[] constant(0)
  %s = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %z), dynamic_slice_sizes={1,8}
  ROOT %n = f32[1,8]{1,0} negate(%s)
}

ENTRY %main (a: f32[1024,8], i: s32[]) -> f32[1,8] {
  %a = f32[1024,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %f = f32[1,8]{1,0} fusion(%a, %i), kind=kLoop, calls=%part
}
"""


def test_of_a_slice_the_slice_alone_is_read():
    assert device_work(parse(TEXT)).num_bytes == 32 + 32 + 4


UPDATED = """\
HloModule m, is_scheduled=true

%update (p0: s32[], p1: f32[1,8], p2: f32[64,16,8]) -> f32[1024,8] {
  %p2 = f32[64,16,8]{2,1,0} parameter(2)
  %b = f32[1024,8]{1,0} bitcast(%p2)
  %p1 = f32[1,8]{1,0} parameter(1)
  %p0 = s32[] parameter(0)
  %z = s32[] constant(0)
  %u = f32[1024,8]{1,0} dynamic-update-slice(%b, %p1, %p0, %z)
  ROOT %r = f32[64,16,8]{2,1,0} bitcast(%u)
}

ENTRY %main (i: s32[], a: f32[1,8], x: f32[64,16,8]) -> f32[64,16,8] {
  %i = s32[] parameter(0)
  %a = f32[1,8]{1,0} parameter(1)
  %x = f32[64,16,8]{2,1,0} parameter(2)
  ROOT %f = f32[64,16,8]{2,1,0} fusion(%i, %a, %x), kind=kLoop, calls=%update
}
"""


def test_what_is_updated_by_another_shape_stays_where_it_is():
    assert device_work(parse(UPDATED)).num_bytes == 32 + 32 + 4


TWO = UPDATED.replace(
    "  ROOT %r = f32[64,16,8]{2,1,0} bitcast(%u)",
    "  %r = f32[64,16,8]{2,1,0} bitcast(%u)\n  %n = f32[1,8]{1,0} negate(%p1)\n"
    "  ROOT %t = (f32[1,8]{1,0}, f32[64,16,8]{2,1,0}) tuple(%n, %r)",
).replace(
    "ROOT %f = f32[64,16,8]{2,1,0} fusion", "ROOT %f = (f32[1,8]{1,0}, f32[64,16,8]{2,1,0}) fusion"
)


def test_an_update_beside_other_results_stays_where_it_is_too():
    assert device_work(parse(TWO)).num_bytes == 32 + 32 + 32 + 4


def test_a_loop_moves_as_much_as_its_turns():
    def run(times):
        def turn(x, _):
            return jnp.sin(x), None

        x = jax.ShapeDtypeStruct((1024,), jnp.float32)
        jitted = jax.jit(lambda x: jax.lax.scan(turn, x, None, length=times)[0])
        return device_work(parse(jitted.lower(x).compile().as_text())).num_bytes

    one, two = run(64), run(128)
    assert two == pytest.approx(2 * one, rel=0.05)
    assert one >= 64 * 2 * 4096


KERNEL = """\
HloModule m, is_scheduled=true

%product (p: f32[8,8], q: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %q = f32[8,8]{1,0} parameter(1)
  ROOT %d = f32[8,8]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: f32[8,8]) -> f32[8,8] {
  %t = f32[8,8]{1,0} parameter(0)
  ROOT %copy = f32[8,8]{1,0} copy(%t)
}

%condition (u: f32[8,8]) -> pred[] {
  %u = f32[8,8]{1,0} parameter(0)
  ROOT %c = pred[] constant(false)
}

ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %n = f32[8,8]{1,0} negate(%a)
  %w = f32[8,8]{1,0} while(%n), condition=%condition, body=%body, metadata={op_name="SCOPE/while"}
  ROOT %f = f32[8,8]{1,0} fusion(%w, %n), kind=kCustom, calls=%product
}
"""


@pytest.mark.parametrize(
    ("scope", "others"),
    [
        ("jit(step)/jvp(layer)", 4 * 256),
        ("jit(step)/transpose(jvp(layer))/jit(kernel_of_70_flops_48_bytes_attend)", 2 * 256),
    ],
)
def test_kernels_that_declare_their_bytes_are_left_out_and_products_counted_apart(scope, others):
    found = device_work(parse(KERNEL.replace("SCOPE", scope)))
    assert found[:2] == (3 * 256, others)
    assert (found.kernels, found.scatters) == (2 + (others > 512), 0)


BRANCHES = """\
HloModule m, is_scheduled=true

%small (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  ROOT %n = f32[16]{0} negate(%p)
}

%large (q: f32[16]) -> f32[16] {
  %q = f32[16]{0} parameter(0)
  %w = f32[256]{0} broadcast(%q)
  ROOT %s = f32[16]{0} slice(%w), slice={[0:16]}
}

ENTRY %main (i: s32[], a: f32[16]) -> f32[16] {
  %i = s32[] parameter(0)
  %a = f32[16]{0} parameter(1)
  ROOT %c = f32[16]{0} conditional(%i, %a, %a), branch_computations={%small, %large}
}
"""


def test_of_branches_the_one_that_moves_most_counts():
    assert device_work(parse(BRANCHES)).num_bytes == (64 + 1024) + 2 * 64
    called = BRANCHES.replace("conditional(%i, %a, %a), branch_computations={%small, %large}", "")
    called = called.replace(
        "ROOT %c = f32[16]{0} ", "ROOT %c = f32[16]{0} call(%a), to_apply=%small"
    )
    assert device_work(parse(called)).num_bytes == 2 * 64


PARTS = """\
HloModule m, is_scheduled=true

ENTRY %main (a: f32[1024,8], i: s32[2], u: f32[2,8]) -> f32[1024,8] {
  %a = f32[1024,8]{1,0} parameter(0)
  %i = s32[2]{0} parameter(1)
  %u = f32[2,8]{1,0} parameter(2)
  ROOT %r = INSTRUCTION
}
"""


@pytest.mark.parametrize(
    "instruction",
    [
        "f32[2,8]{1,0} gather(%a, %i), offset_dims={1}, slice_sizes={1,8}",
        "f32[1024,8]{1,0} scatter(%a, %i, %u), update_window_dims={1}, to_apply=%add",
        "f32[1024,8]{1,0} dynamic-update-slice(%a, %u, %i, %i)",
    ],
)
def test_rows_that_are_read_or_written_count_and_not_their_table(instruction):
    found = device_work(parse(PARTS.replace("INSTRUCTION", instruction)))
    assert found.num_bytes == 2 * 64
    assert (found.kernels, found.scatters) == (1, int(" scatter(" in instruction))
