"""Several optimizers side by side, each for its own subset of the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import optax

from luthier.errors import BadInput, Problem
from luthier.optim.layouts import Layout, Layouts, OptimizerStage, complete
from luthier.optim.masks import ParameterMask
from luthier.optim.optimizer import Optimizer, counted, init_stage
from luthier.optim.schedules import Schedule
from luthier.optim.stages import chain, clip_by_global_norm, pass_through

Claim = Callable[[str, Layout], bool]
"""Whether a part takes the parameter of this name and layout."""


class RoutedState(NamedTuple):
    """The states of the parts by name, each over its own parameters."""

    parts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """A subset of the parameters with its optimizer.

    Args:
      name: The name of the part in the state and in the records.
      mask: The parameters that it takes, of those that no earlier part takes.
      optimizer: The optimizer of these parameters.
    """

    name: str
    mask: ParameterMask
    optimizer: Optimizer


def partition(parts: Sequence[Part], clip_norm: float | None = None) -> Optimizer:
    """Give every parameter to the first part whose mask holds it.

    Each part follows its own learning rate. The first one's is logged as the optimizer's, the
    others' under their part's name.

    Args:
      parts: The parts, in the order in which they choose.
      clip_norm: Limit of the norm of the whole gradient, before it is split; None for no
        limit. A part's own limit applies to the norm of that part's gradients.

    Returns:
      The optimizer. Its `check` lists parameters that no part takes, and parts that take no
      parameter.

    Raises:
      BadInput: There are no parts, or two have the same name; `init` raises it if a parameter is
        left over.

    Example:
      >>> import jax.numpy as jnp
      >>> from luthier import optim
      >>> slow = optim.Part("slow", optim.Matching("^embedding"), optim.sgd(learning_rate=0.01))
      >>> rest = optim.Part("rest", optim.EVERYTHING, optim.sgd(learning_rate=1.0))
      >>> optimizer = optim.partition([slow, rest])
      >>> parameters = {"embedding": jnp.ones(1), "kernel": jnp.ones(1)}
      >>> state = optimizer.init(parameters)
      >>> updates, state = optimizer.update(parameters, state, parameters)
      >>> print(updates["embedding"], updates["kernel"])
      [-0.01] [-1.]
    """
    names = [part.name for part in parts]
    if not parts or len(set(names)) < len(names):
        what = f"parts are called {', '.join(names)}" if parts else "the optimizer has no parts"
        raise BadInput(Problem(what, remedy="give one or more parts with different names"))
    claims: dict[str, Claim] = {part.name: _by_name(part.mask) for part in parts}
    routed = route({part.name: (claims[part.name], part.optimizer) for part in parts})
    clip = pass_through() if clip_norm is None else clip_by_global_norm(clip_norm)
    # The first part's rate stands for the whole, so that logs and sweeps of `learning_rate` read
    # the same with one optimizer or several. Partitions nest: the rates of an inner one get the
    # name of the part that holds it in front.
    rates: dict[str, Schedule] = {}
    for part in parts:
        rates |= {f"{part.name}/{n}": s for n, s in part.optimizer.learning_rates.items()}
        if part is not parts[0]:
            rates[part.name] = part.optimizer.learning_rate
    return Optimizer(
        counted(chain([clip, routed])),
        parts[0].optimizer.learning_rate,
        rates,
        lambda parameters: _check(parts, claims, list(parameters)),
    )


partition.RANGES = {"clip_norm": "0 < x"}  # type: ignore[attr-defined]


def route(
    parts: Mapping[str, tuple[Claim, Optimizer | optax.GradientTransformation]],
) -> OptimizerStage:
    """Return the stage that hands every parameter to the first part that claims it.

    Args:
      parts: For every part its claim, and an `Optimizer` or a transformation.

    Raises:
      BadInput: From `init`: parameters that no part claims, all of them in one line.
    """
    # Every stage sees a mapping of its own parameters and nothing else. `optax.multi_transform`
    # would hand each the whole tree with masked nodes in the place of what is not its own; stages
    # here iterate over names, and their states hold no placeholders that a checkpoint would carry.
    #
    # Claims are evaluated again in every trace of `update` from names and layouts, both static, so
    # that nothing about the split has to be stored in the state.
    claims = {name: claim for name, (claim, _) in parts.items()}
    of = {
        name: part.transformation if isinstance(part, Optimizer) else part
        for name, (_, part) in parts.items()
    }

    def init(parameters: Mapping[str, Any], layouts: Layouts | None = None) -> RoutedState:
        # Each stage gets its own parameters and the layouts of all: stages look layouts up by the
        # names of their parameters, so those of the others are not seen.
        known = complete(parameters, layouts)
        owned = _shares(claims, known)
        if left := owned[None]:
            raise BadInput(_unclaimed(left))
        return RoutedState(
            {
                name: init_stage(stage, {n: parameters[n] for n in owned[name]}, known)
                for name, stage in of.items()
            }
        )

    def update(
        updates: Mapping[str, jax.Array],
        state: RoutedState,
        parameters: Any = None,
        *,
        layouts: Layouts,
        **extra: Any,
    ) -> tuple[Any, RoutedState]:
        # Nothing is left unclaimed here: `init` has refused that.
        owned = _shares(claims, complete(updates, layouts))
        merged: dict[str, jax.Array] = {}
        states = {}
        for name, stage in of.items():
            share = {n: updates[n] for n in owned[name]}
            own = None if parameters is None else {n: parameters[n] for n in owned[name]}
            extended = optax.with_extra_args_support(stage)
            new, states[name] = extended.update(
                share, state.parts[name], own, layouts=layouts, **extra
            )
            merged |= new
        # In the order of the input. (JAX sorts the keys of a dictionary, but sums over `values()`,
        # as that of a global norm, are taken and rounded in its own order.)
        return {name: merged[name] for name in updates}, RoutedState(states)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def matrices_in(mask: ParameterMask) -> Claim:
    """Return the claim to the kernels of linear maps that are in the mask."""
    # By layout and not by the number of dimensions: a scanned bias [layers, dim] has two, and a
    # query kernel [embed, heads, head_dim] three.
    return lambda name, layout: layout.is_matrix and mask(name)


def _shares(claims: Mapping[str, Claim], layouts: Layouts) -> dict[str | None, list[str]]:
    shares: dict[str | None, list[str]] = {name: [] for name in claims}
    shares[None] = []
    for name, layout in layouts.items():
        owner = next((part for part, claim in claims.items() if claim(name, layout)), None)
        shares[owner].append(name)
    return shares


def _by_name(mask: ParameterMask) -> Claim:
    return lambda name, layout: mask(name)


def _unclaimed(names: Sequence[str]) -> Problem:
    what = f"no part takes {', '.join(names)}"
    remedy = "widen a mask, or let the last part take the rest: Matching('')"
    return Problem(what, "parts", remedy=remedy)


def _check(
    parts: Sequence[Part], claims: Mapping[str, Claim], parameters: Iterable[str]
) -> list[Problem]:
    # Claims of masks look at names alone, so an empty layout will do; arrays do not exist yet.
    owned = _shares(claims, {name: Layout(()) for name in sorted(parameters)})
    problems = [_unclaimed(owned[None])] if owned[None] else []
    for index, part in enumerate(parts):
        where = f"parts[{index}]"
        if owned[part.name]:
            inner = part.optimizer.check(owned[part.name])
            problems += [dataclasses.replace(p, path=f"{where}.optimizer.{p.path}") for p in inner]
        else:
            what = f"{part.mask} holds no parameter that earlier parts leave"
            remedy = "remove the part, put it earlier, or change its mask"
            problems.append(Problem(what, f"{where}.mask", remedy=remedy))
    return problems
