import dataclasses

import jax
import pytest

from luthier import graph as graphs
from luthier.data.sources import remote
from luthier.errors import DataError, UserCodeError, ValidationError
from luthier.layers import EinsumAttention
from luthier.layers.declared import kernel
from luthier.planner import checked_program, plan_here, planning, targets
from luthier.tasks import count_flops


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


def test_shapes_report_what_needs_no_compiler(graph):
    report = plan_here(graph, targets.read("v5e-8"), level="shapes")
    assert (report.subject.level, report.subject.slice, report.subject.mesh) == (
        "shapes",
        "v5e-8",
        {"data": 8},
    )
    memory = report.memory
    assert memory.needed_bytes == memory.estimated_bytes > sum(memory.bytes_per_device.values())
    assert report.fits is True
    assert sum(report.flops_by_dtype.values()) == report.flops["full"]
    assert set(report.flops) == {"full", "causal", "six_n"}
    assert report.step["binding"] == "compute"
    note = "activations and other temporaries are estimated: --level compile asks the compiler"
    advice = "products are of float32 and attention has no kernel: fiddler:tpu has settings for "
    assert report.notes == [f"{advice}this device", note]
    assert report.subject.parameters["embedding"] == 264 * 128
    assert report.subject.has_attention


@pytest.mark.parametrize(
    ("slice", "words", "advice"),
    [
        ("h100:1", ["fiddler:gpu"], []),
        ("v5e-1", ["fiddler:tpu"], []),
        ("cpu:1", [], []),
        ("h100:1", ["fiddler:bf16"], ["attention has no kernel"]),
        (
            "h100:1",
            ["fiddler:gpu", "model.dtype=float32"],
            ["products are of float32"],
        ),
    ],
    ids=str,
)
def test_settings_for_the_device_are_recommended_where_there_are_none(graph, slice, words, advice):
    changed = graphs.apply(graph, words, shelves=("luthier.recipes",))
    notes = plan_here(changed, targets.read(slice), level="shapes").notes
    fiddler = f"fiddler:{'gpu' if slice.startswith('h') else 'tpu'} has settings for this device"
    found = [note for note in notes if note.endswith("has settings for this device")]
    assert found == [f"{why}: {fiddler}" for why in advice]


def test_a_time_below_the_start_of_a_step_is_not_reported(graph):
    """A v5e takes 4 us for the products of the quickstart, and 100 us to start any program."""
    step = plan_here(graph, targets.read("v5e-8"), level="shapes").to_dict()["step"]
    assert step["reason"].startswith("too small to estimate: starting a step takes about 100")
    times = ("step_seconds", "serial_seconds", "run_seconds", "tokens_per_day")
    assert {name: step[name] for name in times} == dict.fromkeys(times)
    assert step["mfu"] == {}
    large = graphs.apply(graph, ["data.length=8192", "training.global_batch_size=64"])
    step = plan_here(large, targets.read("v5e-8"), level="shapes").step
    assert step["reason"] == ""
    assert 1e-4 <= step["step_seconds"] == step["seconds_by_term"]["compute"]


def test_activations_count_where_nothing_is_compiled(graph):
    """The scores of one layer alone are 8 x 4 x 65,536^2 x 4 bytes: 512 GiB."""
    long = graphs.apply(graph, ["data.length=65536"])
    assert plan_here(long, targets.read("h100:1"), level="shapes").fits is True, "in blocks"
    whole = graphs.apply(long, ["model.block.attention.core=EinsumAttention()"])
    report = plan_here(whole, targets.read("h100:1"), level="shapes")
    assert report.fits is False
    assert report.memory.is_estimated
    assert report.memory.needed_bytes > 2**39


def test_a_mesh_that_does_not_run_across_slices_is_refused_in_one_line(graph):
    with pytest.raises(ValidationError) as raised:
        plan_here(graph, targets.read("2xv5e-4"), level="shapes")
    (problem,) = raised.value.problems
    assert problem.what == "2xv5e-4 has 2 slices, and the mesh runs across 1"
    assert "parallelism.mesh.across_slices.data=2" in problem.remedy
    across = graphs.apply(graph, ["parallelism.mesh.across_slices.data=2"])
    assert plan_here(across, targets.read("2xv5e-4"), level="shapes").subject.mesh == {"data": 8}


def test_a_plan_needs_no_data(graph, tmp_path):
    """Training needs the vocabulary; a plan notes that it was not compared."""
    absent = tmp_path / "absent.model"
    words = [f"class:Packed.tokenizer=luthier.data.SentencePiece('{absent}')"]
    changed = graphs.apply(graph, words)
    with pytest.raises(DataError, match=r"absent\.model"):
        checked_program(changed, jax.devices()[:8])
    report = plan_here(changed, targets.read("v5e-8"), level="shapes")
    assert report.notes[0].startswith("the vocabulary was not compared with the model's: ")
    assert str(absent) in report.notes[0]


def test_a_plan_asks_no_object_store(graph, monkeypatch):
    monkeypatch.setattr(remote, "_store", lambda *asked: pytest.fail(f"asked {asked}"))
    words = ["class:Packed.tokenizer=luthier.data.SentencePiece('gs://bucket/c4.model')"]
    report = plan_here(graphs.apply(graph, words), targets.read("v5e-8"), level="shapes")
    start = "the vocabulary was not compared with the model's: gs://bucket/c4.model: "
    assert report.notes[0].startswith(start)


def test_without_the_compiler_shapes_are_reported_and_why(graph, monkeypatch):
    monkeypatch.setattr(targets, "_is_installed", lambda module: False)
    report = plan_here(graph, targets.read("h100:8"), level="compile")
    assert report.subject.level == "shapes"
    start = "planned by shapes alone: the GPU compiler is not installed (pip install 'luthier["
    assert report.notes[0].startswith(start)


@pytest.mark.full
def test_a_search_needs_no_compiler_either(graph):
    report = plan_here(graph, targets.read("v5e-8"), level="shapes", search=True)
    assert (
        report.memory.needed_bytes
        == report.memory.estimated_bytes
        > sum(report.memory.bytes_per_device.values())
    )
    assert report.memory.residuals
    assert len(report.proposals) == 3
    for proposal in report.proposals:
        checked_program(graphs.apply(graph, list(proposal["overrides"])), jax.devices()[:8])


@pytest.mark.full
def test_a_plan_that_does_not_fit_comes_with_changes_that_would(graph, monkeypatch):
    tiny = targets.TpuSlice(
        targets.TpuChip(
            name="tiny", device_kind="TPU tiny", memory_bytes=6 * 2**20, memory_bandwidth=1e12,
            peak_flops={"bfloat16": 1e14, "float32": 1e13}, link_bandwidth=1e11,
            network_bandwidth=1e10, source="a test", topology="tiny", dimensions=2,
        ),
        (2, 4),
    )  # fmt: skip
    quick = plan_here(graph, tiny, level="shapes")
    assert quick.fits is False
    assert not quick.proposals
    assert any("--search" in note for note in quick.notes)
    report = plan_here(graph, tiny, level="shapes", search=True)
    assert report.fits is False
    assert report.proposals
    # What is asked of a proposal is whether it fits, not what else would.
    monkeypatch.setattr(planning.searching, "find", lambda *known: ([], []))
    for proposal in report.proposals:
        changed = graphs.apply(graph, list(proposal["overrides"]))
        assert plan_here(changed, tiny, level="shapes", search=True).fits


def test_changes_that_fit_are_listed_with_the_fastest_first(graph, monkeypatch):
    """Whether the model says so, or the compiler, and whatever the search stopped at."""
    rows = [
        {
            "overrides": [f"seed={number}"],
            "needed_bytes": 2**20,
            "step_seconds": seconds,
            "is_compiled": False,
        }
        for number, seconds in enumerate((7.14, 7.18, 7.16))
    ]
    monkeypatch.setattr(planning.searching, "find", lambda *known: (rows, []))
    estimated = plan_here(graph, targets.read("cpu:8"), level="shapes", search=True)
    assert [row["step_seconds"] for row in estimated.proposals] == [7.14, 7.16, 7.18]

    # What is compiled: this layout, a faster one that needs more, and the first that is better.
    programs = iter([(2**24, 8 * 10**15), (2**25, 10**15), (2**20, 4 * 10**15)])

    def compile_for(program, slice, fields, timings, on_progress):
        needed, traffic = next(programs)
        return {"level": "compile", "needed_bytes": needed}, {"traffic": traffic}

    known = dataclasses.replace(planning.cpu_chip(8), memory_bandwidth=1e9)
    monkeypatch.setattr(planning, "cpu_chip", lambda number: known)
    monkeypatch.setattr(planning, "_compiled", compile_for)
    proved = plan_here(graph, targets.read("cpu:8"), level="compile", search=True)
    assert [row["overrides"] for row in proved.proposals] == [["seed=0"], ["seed=1"]]
    times = [row["step_seconds"] for row in proved.proposals]
    assert times == sorted(times)
    assert times[-1] < proved.step["step_seconds"]


def test_kernels_of_absent_devices_stand_by_their_abstract_forms(graph, monkeypatch):
    whole = plan_here(graph, targets.read("v5e-8"), level="shapes")
    attend = EinsumAttention._attend

    def absent(*arrays):
        raise RuntimeError("the device is not here")

    def through_kernel(self, query, key, value, terms):
        def same(*arrays):
            return attend(self, *arrays, terms)

        flops = count_flops(jax.make_jaxpr(same)(query, key, value)).total
        return kernel(absent, same, flops=flops)(query, key, value)

    monkeypatch.setattr(EinsumAttention, "_attend", through_kernel)
    found = plan_here(graph, targets.read("v5e-8"), level="shapes")
    assert found.flops == whole.flops
    with pytest.raises(UserCodeError, match="the device is not here"):
        checked_program(graph, jax.devices()[:8]).traced_step  # noqa: B018


@pytest.mark.full
def test_a_layout_that_is_refused_is_compared_by_the_model(graph, monkeypatch):
    """There is no compiled time of it; that of another layout would always seem longer."""
    own = graphs.apply(graph, ["parallelism.mesh.data=4", "parallelism.mesh.tensor=2"])
    compiled = []

    def compile_for(program, slice, fields, timings, on_progress):
        compiled.append(program)
        if len(compiled) == 1:
            refusal = {"refusal": "Used 1.0T of 1.0G hbm", "needed_bytes": 2**40}
            return {"level": "compile", **refusal}, {}
        return {"level": "compile", "needed_bytes": 2**20}, {"traffic": 10**15}

    slow = dataclasses.replace(planning.cpu_chip(8), memory_bandwidth=1e9)
    monkeypatch.setattr(planning, "cpu_chip", lambda number: slow)
    monkeypatch.setattr(planning, "_compiled", compile_for)
    report = plan_here(own, targets.read("cpu:8"), level="compile", search=True)
    assert report.fits is False
    assert "memory" in report.step["seconds_by_term"]
    assert "the times of a step are those of the analytic model" in report.notes
    assert not any(note.endswith("no more time than this one") for note in report.notes)
    assert len(compiled) == 2
    (row,) = report.proposals
    assert row["is_compiled"]
    assert row["step_seconds"] > report.step["step_seconds"]


def _compiling(monkeypatch, tmp_path, line):
    """Have every compilation fail with an error of XLA."""

    def fail(self, *options, **more):
        raise jax.errors.JaxRuntimeError(line)

    planning.cpu_chip(8)  # measures this CPU, once a process, by a program of its own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)


def test_a_step_that_the_compiler_finds_too_large_does_not_fit(graph, monkeypatch, tmp_path):
    line = "RESOURCE_EXHAUSTED: Ran out of memory. Used 3.00G of 2.00G hbm. Exceeded by 1.00G."
    _compiling(monkeypatch, tmp_path, line)
    monkeypatch.setattr(planning.searching, "find", lambda *known: ([], []))
    report = plan_here(graph, targets.read("cpu:8"), level="compile")
    assert report.fits is False
    memory = report.memory
    assert (memory.needed_bytes, memory.limit_bytes) == (3 * 2**30, 2 * 2**30)
    assert memory.refusal == "Used 3.00G of 2.00G hbm"
    assert "the times of a step are those of the analytic model" in report.notes


def test_another_fault_of_the_compiler_is_raised_as_it_is(graph, monkeypatch, tmp_path):
    _compiling(monkeypatch, tmp_path, "INTERNAL: the compiler is broken")
    with pytest.raises(jax.errors.JaxRuntimeError, match="the compiler is broken"):
        plan_here(graph, targets.read("cpu:8"), level="compile")
