import jax
import jax.numpy as jnp

from luthier.planner.compiled import at_peak, memory_of, parse

TEXT = """\
HloModule m, is_scheduled=true

ENTRY %main (a: f32[256]) -> f32[1024] {
  %a = f32[256]{0} parameter(0)
  %big = f32[4096]{0} custom-call(%a), custom_call_target="x", metadata={op_name="jit(step)/first"}
  %small = f32[256]{0} custom-call(%big), custom_call_target="x"
  %other = f32[2048]{0} custom-call(%small), custom_call_target="x"
  %seen = f32[2048]{0} bitcast(%other)
  %host = f32[9999]{0:S(5)} custom-call(%a), custom_call_target="x"
  ROOT %r = f32[1024]{0} custom-call(%seen, %host), custom_call_target="x"
}
"""


def test_the_peak_is_where_most_is_alive():
    found = at_peak(parse(TEXT))
    assert [(str(t.array), t.scope) for t in found] == [
        ("f32[4096]", "jit(step)/first"),
        ("f32[256]", ""),
    ]
    assert [t.num_bytes for t in found] == [16_384, 1024]


STARTED = """\
HloModule m, is_scheduled=true

ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %big = f32[4096]{0} custom-call(%a), custom_call_target="x"
  %start = (f32[4096]{0:S(1)}, f32[4096]{0}, u32[]{:S(2)}) copy-start(%big)
  %done = f32[4096]{0:S(1)} copy-done(%start)
  ROOT %r = f32[256]{0} custom-call(%done), custom_call_target="x"
}
"""


def test_what_a_copy_reads_is_there_once():
    assert [(str(t.array), t.opcode) for t in at_peak(parse(STARTED))] == [
        ("f32[4096]", "custom-call")
    ]


SEVERAL = """\
HloModule m, is_scheduled=true

ENTRY %main (a: f32[256]) -> f32[256] {
  %a = f32[256]{0} parameter(0)
  %both = (f32[4096]{0}, f32[256]{0}) custom-call(%a), custom_call_target="x"
  %big = f32[4096]{0} get-tuple-element(%both), index=0
  %next = f32[512]{0} custom-call(%big), custom_call_target="x"
  %other = f32[4000]{0} custom-call(%next), custom_call_target="x"
  %small = f32[256]{0} get-tuple-element(%both), index=1
  ROOT %r = f32[256]{0} custom-call(%other, %small), custom_call_target="x"
}
"""


def test_each_result_of_an_instruction_ends_with_its_own_readers():
    # `%small` is named late, when `%big` is no more.
    assert [str(t.array) for t in at_peak(parse(SEVERAL))] == ["f32[4096]", "f32[512]", "f32[256]"]


def test_it_is_near_the_compilers_own_sum():
    def loss(ws, x):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)

    ws = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    compiled = jax.jit(jax.grad(loss)).lower(ws, x).compile()
    found = at_peak(parse(compiled.as_text()))
    stacked = [t for t in found if t.array.shape == (16, 512, 256)]
    assert stacked  # what every layer keeps for the backward pass
    expected = memory_of(compiled).temporaries
    assert 0.7 * expected < sum(t.num_bytes for t in found) < 1.3 * expected
