"""Several optimizers side by side, each for parameters of its own."""

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
    """The states of the parts by name, each over the parameters of its own."""

    parts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """Some of the parameters, and what optimizes them.

    Args:
      name: What the part is called in the state and in the records.
      mask: The parameters that it takes, of those that no earlier part takes.
      optimizer: What optimizes them.
    """

    name: str
    mask: ParameterMask
    optimizer: Optimizer


def partition(parts: Sequence[Part], clip_norm: float | None = None) -> Optimizer:
    """Give every parameter to the first part whose mask holds it.

    Each part follows its own learning rate. The first one's is logged as the optimizer's, the
    others' under their part's name.

    Args:
      parts: In the order in which they choose.
      clip_norm: Limit of the norm of the whole gradient, before it is split; None for no
        limit. Limits of the parts' own are on the norms of their shares.

    Returns:
      The optimizer. Its `check` tells of parameters that no part takes, and of parts that take
      none.

    Raises:
      BadInput: There are no parts, or two of one name; `init` raises it where parameters are left.
    """
    names = [part.name for part in parts]
    if not parts or len(set(names)) < len(names):
        what = f"parts are called {', '.join(names)}" if parts else "an optimizer of no parts"
        raise BadInput(Problem(what, remedy="give parts, each with a name of its own"))
    claims: dict[str, Claim] = {part.name: _by_name(part.mask) for part in parts}
    routed = route({part.name: (claims[part.name], part.optimizer) for part in parts})
    clip = pass_through() if clip_norm is None else clip_by_global_norm(clip_norm)
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


def route(parts: Mapping[str, tuple[Claim, Any]]) -> OptimizerStage:
    """Return the stage that hands every parameter to the first part that claims it.

    Args:
      parts: For every part its claim, and an `Optimizer` or a transformation.

    Raises:
      BadInput: From `init`: parameters that no part claims, all of them in one line.
    """
    claims = {name: claim for name, (claim, _) in parts.items()}
    of = {
        name: part.transformation if isinstance(part, Optimizer) else part
        for name, (_, part) in parts.items()
    }

    def init(parameters: Mapping[str, Any], layouts: Layouts | None = None) -> RoutedState:
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
        owned = _shares(claims, complete(updates, layouts))
        found: dict[str, jax.Array] = {}
        states = {}
        for name, stage in of.items():
            share = {n: updates[n] for n in owned[name]}
            own = None if parameters is None else {n: parameters[n] for n in owned[name]}
            extended = optax.with_extra_args_support(stage)
            new, states[name] = extended.update(
                share, state.parts[name], own, layouts=layouts, **extra
            )
            found |= new
        return {name: found[name] for name in updates}, RoutedState(states)

    return OptimizerStage(init, update)  # type: ignore[arg-type]


def matrices_in(mask: ParameterMask) -> Claim:
    """Return the claim to the kernels of linear maps that are in the mask."""
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
