"""Plans for slices that need not be available, by shapes alone or by compiling the step."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from typing import Any, overload

import jax

from luthier import graph as graphs
from luthier import program as programs
from luthier import project
from luthier.data.sources.remote import offline
from luthier.errors import Problem, ValidationError
from luthier.facade import root_function
from luthier.graph import Graph
from luthier.layers.attention import CHOICE_REASONS
from luthier.layers.declared import abstract_forms
from luthier.layers.parameters import outlined
from luthier.parallel import stand_ins_for
from luthier.planner import process
from luthier.planner import report as reports
from luthier.planner.checks import (
    check,
    constant_metrics,
    unsaved_residuals,
    unsplit,
    unused_activation_rules,
)
from luthier.planner.compiled.collectives import Collective, collectives
from luthier.planner.compiled.hlo import parse
from luthier.planner.compiled.memory import CompiledMemory, memory_of, refusal
from luthier.planner.compiled.work import device_work
from luthier.planner.device_facts import cpu_chip
from luthier.planner.flops import attention_cores, trace_forward
from luthier.planner.pipelines import indivisible
from luthier.planner.plan import Plan, make, tokens_per_step
from luthier.planner.process import Estimates, ProgressCallback, silent, timed
from luthier.planner.report import Report
from luthier.planner.roofline import flops_by_dtype, kernel_bytes, roofline
from luthier.planner.search import model
from luthier.planner.search import search as searching
from luthier.planner.search.activity import Activity
from luthier.planner.targets import (
    Chip,
    CpuSlice,
    Slice,
    TpuSlice,
    devices,
    missing_compiler,
    stand_ins,
)
from luthier.tasks.flops import count

SHAPES, COMPILE = "shapes", "compile"
NUM_PROPOSED, NUM_TRIED = 3, 6
# Raise it when compiled programs are read otherwise (`compiled/`): it is part of the key of the
# cache, so what is cached is then compiled and read again. Then install libtpu and
# jax-cuda13-plugin, and run `pytest -m slow tests/planner/compiled/test_process.py`.
READING = "7"
"""Version of the reader of compiled programs, as part of the cache key."""

_DECLARED = (
    "FLOPs and bytes of kernels are those that they declare: the program that was compiled has "
    "their abstract forms instead"
)
_UNDECLARED = (
    "kernels are compiled by their abstract forms, which move more bytes than the kernels: the "
    "memory time is overestimated"
)


@overload
def plan(
    graph: Graph, devices: Sequence[jax.Device] | None = None, *, hoist: Sequence[str] = ()
) -> Plan: ...


@overload
def plan(
    graph: Graph,
    *,
    slice: str,
    level: str = "compile",
    packages: Sequence[str] | None = None,
    search: bool = False,
    on_progress: ProgressCallback = silent,
) -> Report: ...


@root_function("plan")
def plan(
    graph: Graph,
    devices: Sequence[jax.Device] | None = None,
    *,
    hoist: Sequence[str] = (),
    slice: str | None = None,
    level: str = "compile",
    packages: Sequence[str] | None = None,
    search: bool = False,
    on_progress: ProgressCallback = silent,
) -> Plan | Report:
    """Plan an experiment: its costs on local devices, or on a slice that need not be available.

    Args:
      graph: An experiment graph.
      devices: Devices to plan for; None means all devices of the default backend.
      hoist: Paths of numeric leaves that the compiled step takes as arguments (devices only).
      slice: A slice to plan for instead, such as `v5e-16`, `h100:8` or `cpu:8`.
      level: `shapes` or `compile` (slices only).
      packages: The user's modules that a graph may name (slices only); None means those of the
        project (`[tool.luthier] packages`).
      search: Whether to search for better layouts although this one fits (slices only).
      on_progress: Takes messages about the progress (slices only).

    Returns:
      A `Plan`, which `luthier.program` can run; for a slice a `Report`.

    Raises:
      BadInput: The experiment cannot run there; all problems at once.
      TypeError: Both devices and a slice were given.
    """
    if slice is None:
        return make(graph, devices, hoist)
    if devices is not None or hoist:
        raise TypeError("plan() takes devices and hoist, or a slice, not both")
    packages = project.packages_of(packages)
    return process.plan_apart(
        graph, slice, level=level, packages=packages, search=search, on_progress=on_progress
    )


def plan_here(
    graph: Graph,
    slice: Slice,
    *,
    level: str,
    packages: Sequence[str] = (),
    search: bool = False,
    on_progress: ProgressCallback = silent,
) -> Report:
    """Plan an experiment for a slice, in this process.

    It needs as many virtual CPU devices as the slice has; to compile, a process of its own, whose
    environment is `luthier.planner.targets.environment`.

    Args:
      graph: An experiment graph.
      slice: Slice to plan for.
      level: `shapes` or `compile`.
      packages: The user's modules that a graph may name.
      search: Whether to search for other layouts although this one fits.
      on_progress: Takes messages about the progress.

    Returns:
      The report: what fits, memory in bytes on each device, a lower bound of the step's time in
      seconds, and better layouts where they were searched for.

    Raises:
      BadInput: The experiment cannot run on the slice; all problems at once.
    """
    job = _Job(slice, level, packages, on_progress)
    # Kernels cannot be traced where their device is absent. Layers that have a form for a platform
    # must not take the virtual CPU devices of a plan by shapes for the real ones.
    with abstract_forms(), stand_ins_for("" if slice.chip is None else slice.chip.platform):
        return job.report(graph, search)


class _Job:
    """One plan in progress: its request, notes and timings.

    Args:
      slice: Slice to plan for.
      level: `shapes` or `compile`.
      packages: The user's modules that a graph may name.
      on_progress: Takes messages about the progress.
    """

    def __init__(
        self, slice: Slice, level: str, packages: Sequence[str], on_progress: ProgressCallback
    ):
        self._slice, self._packages, self._on_progress = slice, packages, on_progress
        self._about, self._notes = "", list[str]()
        self._timings: dict[str, float] = {}
        missing = missing_compiler(slice) if level == COMPILE else ""
        if missing:
            self._notes.append(f"planned by shapes alone: {missing}")
        self._level = SHAPES if missing else level
        # Whether the request was for shapes: without a compiler a search still runs where nothing
        # fits, by the analytic model.
        self._is_quick = level == SHAPES

    def report(self, graph: Graph, search: bool) -> Report:
        """Return the report of an experiment."""
        # From cheap to expensive: shapes, the traced loss, the analytic model (which traces the
        # gradient), then the compiler, if it is wanted and the estimate leaves hope; last a search,
        # if it is wanted or nothing fits.
        is_compiled = self._level == COMPILE
        with self._timed("shapes"):
            graphs.validate(graph, self._packages)
            _require_slices(graph, self._slice)
            self._devices = devices(self._slice) if is_compiled else stand_ins(self._slice)
            self._chip = self._slice.chip or cpu_chip(self._slice.num_devices)
            program = checked_program(graph, self._devices, self._notes)
            fields = reports.outline(graph, program, self._slice, self._chip)
            notes = unsplit(program), unused_activation_rules(program)
            self._notes += filter(None, [*notes, constant_metrics(program.experiment)])
        with self._timed("trace the loss"):
            forward = trace_forward(program)
            problems = unsaved_residuals(graph, forward)
            if problems:
                raise ValidationError(problems)
            self._tokens = tokens_per_step(program)
            self._flops = reports.flops_of(forward, fields["parameters"], self._tokens)
            self._types = flops_by_dtype(forward)
            chosen = fields["attention_cores"] = attention_cores(forward)
            self._notes += filter(None, [_advice(self._chip.platform, self._types, chosen)])
        with self._timed("estimate"):
            traced = model.trace(program, self._chip.platform)
            fields |= _estimate(program, traced.activity, fields, self._chip)
        fields |= self._stepped(program, fields, traced)
        fields |= {"tokens_per_step": self._tokens, "notes": self._notes}
        # The fields of a compiled step have a `level` of their own, which goes before this one.
        report = Report.of_fields({"level": SHAPES, **fields, "timings": self._timings})
        if search or (report.fits is False and not self._is_quick):
            return self._with_proposals(graph, program, report, traced, search)
        if report.fits is False:
            self._notes.append("--search proposes layouts")
        return dataclasses.replace(report, notes=self._notes)

    def _stepped(
        self, program: programs.Program, fields: Mapping[str, Any], traced: model.Traced | None
    ) -> dict[str, Any]:
        """Return the costs of a step, compiled if that is wanted, as fields of a report."""
        # Compiling a large program takes minutes: what the estimate calls hopeless is not compiled.
        # Times come from the best source there is: the compiled step's traffic and collectives; the
        # analytic model where the step was meant to be compiled and could not be; else FLOPs alone.
        parts: dict[str, Any] = {"flops": dict(self._flops)}
        terms: dict[str, Any] = {}
        # Until the step is traced: that of the gradient, or else of a backward pass with two
        # products for each one of the forward.
        by_type = {dtype: 3 * n for dtype, n in self._types.items()}
        if traced is not None:
            by_type = dict(traced.flops)
        beyond = searching.HOPELESS * (fields["limit_bytes"] or float("inf"))
        # A proposal comes without an estimate here: the search has ranked it as fitting already.
        is_hopeless = fields.get("estimated_bytes", 0) > beyond
        if is_hopeless and self._level == COMPILE:
            self._notes.append("not compiled: by the analytic model it is far from fitting")
        if self._level == COMPILE and not is_hopeless:
            with self._timed("trace the step"):
                jaxpr = program.traced_step.jaxpr
                parts["flops"]["hardware"] = count(jaxpr).total
                by_type = flops_by_dtype(jaxpr)
            compiled, terms = _compiled(program, self._slice, fields, self._timings, self._telling)
            parts |= compiled
            # Those of their abstract forms were left out of the program's.
            moved = kernel_bytes(jaxpr) // self._slice.num_devices
            both = ("traffic", "product_traffic")
            terms = terms | {term: terms[term] + moved for term in both if term in terms}
            if "work" in parts:
                parts["work"] = {"bytes_moved": terms["traffic"], **parts["work"]}
            if traced is not None and (moved or _has_kernels(program.graph)):
                self._notes.append(_DECLARED if moved else _UNDECLARED)
        else:
            parts["needed_bytes"] = fields["estimated_bytes"]
            if self._level == SHAPES:
                start = "activations and other temporaries are estimated: --level compile asks the "
                self._notes.append(f"{start}compiler")
        precision = program.experiment.precision.matmul.value
        # MFU has one peak: that of the dtype with most FLOPs of the loss, compiled or not.
        most = max(self._types, key=lambda dtype: self._types[dtype])
        number = self._slice.num_devices
        bubbles = [p["bubble_fraction"] for p in fields["pipelines"].values()]
        bubble = max(bubbles, default=0.0)
        is_uncompiled = bool(parts.get("refusal")) or is_hopeless
        # Without a trace (a proposal), a refusal needs no times: `_proved` drops that layout.
        if is_uncompiled and self._level == COMPILE and traced is not None:
            known = (traced.activity, model.layout_of(program), self._chip, traced.flops, precision)
            found = model.step_time(*known)
            found = dataclasses.replace(found, bubble_fraction=bubble, is_bound=False)
            self._notes.append("the times of a step are those of the analytic model")
        else:
            found = roofline(
                self._chip, number, by_type, precision=precision, bubble_fraction=bubble, **terms
            )
        peak = self._chip.peak(most, precision) * number
        steps = program.experiment.training.steps
        parts["flops_by_dtype"] = dict(by_type)
        parts["step"] = reports.step_of(found, parts["flops"], self._tokens, steps, peak)
        return parts

    def _with_proposals(
        self,
        graph: Graph,
        program: programs.Program,
        report: Report,
        traced: model.Traced | None,
        search: bool,
    ) -> Report:
        """Return the report with layouts that fit, compiled if a search was requested."""
        # The compiler decides among more candidates (NUM_TRIED) than are shown (NUM_PROPOSED).
        limit, is_proved = report.memory.limit_bytes, search and self._level == COMPILE
        with self._timed("search"):
            number, count = self._slice.num_devices, NUM_TRIED if is_proved else NUM_PROPOSED
            traced = traced or model.trace(program, self._chip.platform)
            make = self._program
            known = (graph, program, self._chip, number, make, traced, limit, count, is_proved)
            rows, notes = searching.find(*known, report.fits)
            rows = rows if is_proved else sorted(rows, key=_seconds)
            self._notes += notes
        if is_proved:
            rows = self._proved_rows(graph, rows, report)
        rows = [reports.proposal_of(row) for row in rows]
        return dataclasses.replace(report, proposals=rows, notes=self._notes)

    def _proved_rows(
        self, graph: Graph, rows: Sequence[dict[str, Any]], report: Report
    ) -> list[dict[str, Any]]:
        """Return proposals that fit by the compiler, up to one that beats the current layout.

        A layout that the compiler refused, or that is far from fitting, has no compiled time: then
        the times of the analytic model are compared, for both.
        """
        # Each takes a compilation, so the first that is no worse in bytes and in time ends it. The
        # others that fit are shown too, as trade-offs. A note says so if none was better.
        fitting: list[dict[str, Any]] = []
        best: list[dict[str, Any]] = []
        # A refusal may lack the bytes: then no layout counts as better, and all are tried.
        own = report.memory.needed_bytes or 0, reports.roofline_seconds(report.step)
        limit = report.memory.limit_bytes
        is_modelled = bool(report.memory.refusal) or report.subject.level != COMPILE
        for number, row in enumerate(rows, 1):
            self._about = f"layout {number} of at most {len(rows)}: "
            proved = self._proved(graph, row)
            if proved is None or (limit is not None and proved["needed_bytes"] > limit):
                continue
            seconds = (row if is_modelled else proved)["step_seconds"]
            if proved["needed_bytes"] <= own[0] and seconds <= own[1]:
                best = [proved]
                break
            fitting.append(proved)
        self._about = ""
        if rows and not best:
            self._notes.append(
                f"of {len(rows)} other layouts that were compiled, none needs no more bytes and "
                "no more time than this one"
            )
        chosen = [*best, *sorted(fitting, key=_seconds)][:NUM_PROPOSED]
        return sorted(chosen, key=_seconds)

    def _proved(self, graph: Graph, row: dict[str, Any]) -> dict[str, Any] | None:
        """Return a proposal with the compiler's numbers; None where it does not fit."""
        changed = graphs.apply(graph, row["overrides"])
        program = self._program(changed)
        fields = reports.outline(changed, program, self._slice, self._chip)
        parts = self._stepped(program, fields, None)
        if parts.get("refusal"):
            return None
        needed = parts.get("needed_bytes", row["needed_bytes"])
        seconds = reports.roofline_seconds(parts["step"])
        return row | {"needed_bytes": needed, "step_seconds": seconds, "is_compiled": True}

    def _program(self, graph: Graph) -> programs.Program:
        return checked_program(graph, self._devices, [*self._notes])

    def _timed(self, phase: str) -> Any:
        return timed(self._timings, phase, self._telling)

    def _telling(self, message: Mapping[str, Any]) -> None:
        self._on_progress({**message, "phase": f"{self._about}{message['phase']}"})


def _has_kernels(graph: Graph) -> bool:
    # Classes with kernels have a method `lacking`, which says what a device lacks for them.
    places = graphs.walk(graph, defaults=False, once=True)
    return any(hasattr(getattr(p.value, "__fn_or_cls__", None), "lacking") for p in places)


def _advice(platform: str, types: Mapping[str, int], chosen: Mapping[str, str]) -> str:
    """Return a note that names the fiddler for a platform where an experiment has none of it."""
    if platform not in ("gpu", "tpu"):
        return ""
    slow = []
    if types.get("float32", 0) > sum(types.values()) / 2:
        slow.append("products are of float32")
    if any(CHOICE_REASONS["kernels"] in reasons for reasons in chosen.values()):
        slow.append("attention has no kernel")
    how = f"fiddler:{platform} has settings for this device"
    return f"{' and '.join(slow)}: {how}" if slow else ""


def _require_slices(graph: Graph, slice: Slice) -> None:
    """Reject a mesh that does not declare which of its axes run across TPU slices.

    Raises:
      ValidationError: The mesh has another number of slices.
    """
    # Without this, JAX would fail much later, with an assertion over the list of all devices.
    if not isinstance(slice, TpuSlice) or slice.num_slices == 1:
        return
    count = graphs.build(graphs.get(graph, "parallelism.mesh")).across_slices.count
    if count != slice.num_slices:
        path = "parallelism.mesh.across_slices"
        what = f"{slice} has {slice.num_slices} slices, and the mesh runs across {count}"
        remedy = f"set {path}.data={slice.num_slices}, or another axis of it"
        raise ValidationError(Problem(what, path, graphs.origin_of(graph, path), remedy))


def _estimate(
    program: programs.Program, activity: Activity, fields: Mapping[str, Any], chip: Chip
) -> dict[str, Any]:
    """Return the analytic model's bytes on one device, and the residuals by name."""
    layout = model.layout_of(program)
    held = sum(n for kind, n in fields["bytes_per_device"].items() if kind != "gradients")
    has_guard = program.experiment.training.guard is not None
    guarded = fields["bytes_per_device"].get("optimizer", 0) if has_guard else 0
    within = model.temporary_bytes(activity, layout, chip.platform, guarded)
    return {
        "residuals": model.residual_bytes(activity, layout),
        "estimated_bytes": held + within,
    }


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row["step_seconds"])


def checked_program(
    graph: Graph, devices: Sequence[Any], unread: list[str] | None = None
) -> programs.Program:
    """Return the program of an experiment on devices, checked as a whole; makes no parameters.

    Args:
      graph: A validated experiment graph.
      devices: The devices.
      unread: Takes a note for each check that is skipped because the data, which a plan does not
        need, is not available; None means that it is needed.

    Returns:
      The program.

    Raises:
      BadInput: Sizes are not divisible, or settings are incompatible; all problems at once.
    """
    problems = indivisible(graph, len(devices))
    if problems:
        raise ValidationError(problems)
    with outlined():  # of parameters that are never made, shapes are enough
        program = programs.make(graph, devices)
    # The vocabulary may be in an object store: a plan must not wait for it, nor need credentials.
    with contextlib.nullcontext() if unread is None else offline():
        problems = check(graph, program, unread)
    if problems:
        raise ValidationError(problems)
    return program


def _compiled(
    program: programs.Program,
    slice: Slice,
    fields: Mapping[str, Any],
    timings: dict[str, float],
    on_progress: ProgressCallback,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compile a step, or read it from the cache: fields of a report, and terms of the roofline."""
    # The key is the lowered program with its target, not the graph: a setting that does not change
    # the program, such as a name, finds the same entry.
    with timed(timings, "lower", on_progress):
        lowered = program.traced_step.lower()
        text = lowered.as_text()
    target = f"{slice!r} {program.mesh.devices.shape}"
    versions = _versions() | {"options": json.dumps(program.compiler_options, sort_keys=True)}
    key = process.key_of(text, target, versions)
    cached = process.read(key)
    if cached is None:
        estimates = Estimates(slice)
        with timed(timings, "compile", on_progress, estimates.seconds(text)):
            cached = _compile(program, lowered, slice, fields)
        estimates.keep(text, timings["compile"])
        process.write(key, cached)
    return cached["parts"], cached["terms"]


def _compile(
    program: programs.Program, lowered: jax.stages.Lowered, slice: Slice, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Compile a step and read its memory, collectives and traffic; plain values for the cache."""
    # That a program does not fit is a result, and cached like any other. CPUs have no links, so
    # their collectives take no part in the roofline.
    try:
        compiled = lowered.compile(program.compiler_options)
    except jax.errors.JaxRuntimeError as error:
        reason = refusal(error)
        if reason is None:
            raise  # not about memory: a fault of the program or of the compiler
        parts: dict[str, Any] = {"level": COMPILE, "refusal": reason.line}
        parts |= {"needed_bytes": reason.needed} if reason.needed else {}
        parts |= {"limit_bytes": reason.limit} if reason.limit else {}
        return {"parts": parts, "terms": {}}
    text = compiled.as_text()
    assert text is not None  # some backends of JAX have no text; those that plans compile for do
    module = parse(text)
    memory: CompiledMemory | None = memory_of(compiled)
    of = reports.slices_of(slice, list(program.mesh.devices.flat))
    found: list[Collective] = collectives(module, dict(program.sizes), of)
    parts = reports.compiled_parts(module, memory, found, fields["bytes_per_device"])
    work = device_work(module)
    parts["work"] = {"kernels": work.kernels, "scatters": work.scatters}
    terms: dict[str, Any] = {"traffic": work.num_bytes, "product_traffic": work.product_bytes}
    if not isinstance(slice, CpuSlice):
        terms |= reports.wire_bytes(found)
    return {"parts": parts, "terms": terms}


def _versions() -> dict[str, str]:
    versions = {"reading": READING}
    for package in ("luthier", "jax", "jaxlib", "libtpu", "jax-cuda13-plugin"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
