from __future__ import annotations

from typing import ClassVar

import fiddle as fdl
import jax.numpy as jnp
import pytest
from graph_toys import parts

from luthier import data, layers, models, optim, program, tasks
from luthier.errors import ValidationError
from luthier.graph import apply, floor_divide, validate, value


def problems(graph) -> list[str]:
    try:
        validate(graph, ("graph_toys", "test_declared"))
    except ValidationError as error:
        return [str(p).replace(f" [set by {p.origin}]", "") for p in error.problems]
    return []


def decoder(**settings):
    attention = fdl.Partial(layers.Attention, **settings)
    mlp = fdl.Partial(layers.Mlp, hidden_dim=8)
    inner, outer = fdl.Partial(layers.RMSNorm), fdl.Partial(layers.RMSNorm)
    block = fdl.Partial(layers.PreNormBlock, attention=attention, mlp=mlp, norm=inner)
    return fdl.Partial(models.Decoder, vocab_size=8, dim=12, num_layers=1, block=block, norm=outer)


GUARD = "reads it only where spike_factor is not None; leave it out, or change spike_factor"


def test_a_setting_that_nothing_reads_is_refused():
    graph = fdl.Config(optim.Guard, decay=0.5, warmup_steps=3)
    assert problems(graph) == [
        f"decay: 0.5 has no effect: Guard {GUARD}",
        f"warmup_steps: 3 has no effect: Guard {GUARD}",
    ]
    graph.spike_factor = 4.0
    assert problems(graph) == []


def test_a_setting_at_its_default_is_no_mistake():
    assert problems(fdl.Config(optim.Guard, decay=0.99)) == []
    assert problems(fdl.Config(optim.Guard, warmup_steps=value(100, name="warmup"))) == []


def test_the_problem_of_an_unread_setting_has_the_whole_path_and_the_origin():
    graph = fdl.Config(
        program.Training, steps=4, global_batch_size=2, guard=fdl.Config(optim.Guard)
    )
    with pytest.raises(ValidationError) as raised:
        validate(apply(graph, ["guard.decay=0.5"]))
    assert str(raised.value) == (
        "guard.decay: 0.5 has no effect: Guard reads it only where spike_factor is not None "
        "[set by argument 1: guard.decay=0.5]; leave it out, or change guard.spike_factor"
    )


@pytest.mark.parametrize(
    ("graph", "unread", "cure"),
    [
        (
            fdl.Config(optim.WarmupCosine, 1e-3, warmup_steps=0, total_steps=9, start=1e-5),
            "start",
            {"warmup_steps": 1},
        ),
        (
            fdl.Config(optim.Cycles, 1e-3, cycle_steps=5, num_cycles=1, peak_factor=0.5),
            "peak_factor",
            {"num_cycles": 2},
        ),
        (
            fdl.Config(
                program.Evaluation,
                data=fdl.Config(
                    data.Packed, parts.relu, fdl.Config(data.Bytes), 8, fdl.Config(data.Concatenate)
                ),
                global_batch_size=2,
                num_batches=3,
            ),
            "num_batches",
            {},
        ),
    ],
)
def test_components_say_when_a_setting_is_read(graph, unread, cure):
    found = [line for line in problems(graph) if "has no effect" in line]
    assert [line.split(":")[0] for line in found] == [unread]
    if cure:
        fdl.assign(graph, **cure)
        assert problems(graph) == []


def test_a_relation_reaches_what_a_template_inherits():
    message = (
        "block.attention: Attention needs dim % num_heads == 0 or head_dim is not None, and "
        "dim = 12, head_dim = None, num_heads = 5; set head_dim, or change dim or num_heads"
    )
    assert problems(decoder(num_heads=5)) == [message]
    assert problems(decoder(num_heads=4)) == []
    assert problems(decoder(num_heads=5, head_dim=4)) == []


def test_a_relation_that_names_no_value_says_nothing():
    """A template on its own inherits from nobody."""
    assert problems(fdl.Partial(layers.Attention, num_heads=5)) == []
    assert problems(fdl.Partial(layers.Attention, num_heads=4, num_kv_heads=3)) == [
        "Attention needs num_heads % num_kv_heads == 0, and num_heads = 4, num_kv_heads = 3; "
        "set num_kv_heads to a divisor of num_heads"
    ]


def experiment(total_steps=10, **schedule):
    text = fdl.Config(
        data.Packed,
        source=fdl.Config(data.Shakespeare),
        tokenizer=fdl.Config(data.Bytes),
        length=16,
        packing=fdl.Config(data.Concatenate),
    )
    schedule = fdl.Config(
        optim.WarmupCosine, peak=1e-3, warmup_steps=1, total_steps=total_steps, **schedule
    )
    return fdl.Config(
        program.Experiment,
        name="toy",
        model=decoder(num_heads=4),
        task=fdl.Config(tasks.LanguageModelling),
        data=text,
        optimizer=fdl.Config(optim.adamw, learning_rate=schedule),
        training=fdl.Config(program.Training, steps=10, global_batch_size=2),
    )


def test_a_relation_reaches_below_the_node():
    assert problems(experiment(total_steps=10)) == []
    assert problems(experiment(total_steps=11)) == [
        "Experiment needs optimizer.learning_rate.total_steps <= training.steps, and "
        "optimizer.learning_rate.total_steps = 11, training.steps = 10; share them, "
        "optimizer.learning_rate.total_steps=ref:training.steps; to end before the schedule does, "
        "set training.stop"
    ]


def test_a_relation_sees_through_value_nodes():
    steps = value(12, name="steps")
    graph = experiment(total_steps=steps)
    graph.training.steps = floor_divide(steps, 2)
    assert len(problems(graph)) == 1
    graph.training.steps = steps
    assert problems(graph) == []


def test_a_relation_below_the_node_ends_where_a_part_has_no_such_setting():
    graph = experiment()
    graph.optimizer.learning_rate = fdl.Config(optim.Constant, 1e-3)
    assert problems(graph) == []
    graph.optimizer.learning_rate = 1e-3
    assert problems(graph) == []


def test_masked_modelling_draws_tokens_that_the_model_knows():
    graph = experiment()
    graph.task = fdl.Config(tasks.MaskedModelling, mask_token=1, vocab_size=9)
    assert problems(graph) == [
        "Experiment needs task.vocab_size <= model.vocab_size, and model.vocab_size = 8, "
        "task.vocab_size = 9; share them: task.vocab_size=ref:model.vocab_size"
    ]


def test_dropout_that_is_never_applied_is_refused():
    graph = fdl.Partial(
        layers.TypedEmbedding,
        norm=fdl.Partial(layers.LayerNorm),
        tokens=fdl.Partial(layers.Embedding, dropout=fdl.Partial(layers.Dropout, rate=0.1)),
    )
    (message,) = problems(graph)
    assert message.startswith("TypedEmbedding needs tokens.dropout is None, and tokens.dropout = ")
    assert message.endswith("that of the tokens is never applied: set dropout beside it")


def broken(a: int = 1) -> int:
    return a


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"RANGES": {"a": "x <"}}, "a: RANGES of broken: 'x <' is not a condition"),
        ({"RANGES": {"b": "x < 3"}}, "RANGES of broken: broken has no argument 'b'"),
        ({"RELATIONS": ("b < 3",)}, "RELATIONS of broken: broken has no argument 'b'"),
        ({"READ_WHEN": {"a": "b > 3"}}, "READ_WHEN of broken: broken has no argument 'b'"),
        (
            {"RELATIONS": ("a / 0 < 3",)},
            "a / 0 < 3 cannot be computed with a = 2: division by zero",
        ),
    ],
)
def test_mistakes_in_what_is_declared_are_reported(monkeypatch, declared, message):
    monkeypatch.setattr(broken, "__module__", "graph_toys.parts")
    for name, conditions in declared.items():
        monkeypatch.setattr(broken, name, conditions, raising=False)
    assert message in problems(fdl.Config(broken, a=2))


class Wide:
    RANGES: ClassVar = {"width": "1 <= x", "rate": "x < 1"}
    RELATIONS: ClassVar = ("width < 9",)
    READ_WHEN: ClassVar = {"rate": "width > 1"}

    def __init__(self, width: int = 2, rate: float = 0.0):
        self.size = width, rate


class Fixed(Wide):
    def __init__(self, rate: float = 0.0):
        super().__init__(3, rate)


def test_conditions_of_a_base_class_bind_only_the_arguments_that_a_subclass_has(monkeypatch):
    for kind in (Wide, Fixed):
        monkeypatch.setattr(kind, "__module__", "graph_toys.parts")
        monkeypatch.setattr(parts, kind.__name__, kind, raising=False)
    assert problems(fdl.Config(Fixed, rate=0.5)) == []
    assert problems(fdl.Config(Fixed, rate=2.0)) == [
        "rate: 2.0 is out of range; Fixed needs rate < 1"
    ]
    assert len(problems(fdl.Config(Wide, width=9, rate=2.0))) == 2


@pytest.mark.parametrize("wrong", [jnp.int8, jnp.dtype("int32"), jnp.complex64])
@pytest.mark.parametrize("name", ["dtype", "param_dtype"])
def test_models_compute_in_floating_point(name, wrong):
    graph = decoder(num_heads=3)
    for kind in (jnp.bfloat16, jnp.float32, jnp.dtype("float16"), jnp.float8_e4m3fn):
        setattr(graph, name, kind)
        assert problems(graph) == []
    setattr(graph, name, wrong)
    (problem,) = problems(graph)
    message = f"{name}: {jnp.dtype(wrong).name} is not a floating-point type"
    assert problem.startswith(message), problem
