"""The table of recipes: each with its settings, away from the defaults, and its references."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from luthier import optim
from luthier.contrib import optimizers
from luthier.optim import DECAYED
from tests.optim import references

LEARNING_RATES = tuple(np.geomspace(1e-5, 1e-1, 8).tolist())
SHARES = (0.0, 0.01, 0.05, 0.1, 0.3, 0.5, 1 / 3, 1.0)
DECAYS = (0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999)
NORMS = (0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.3, 100.0)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A row: ours, its settings, Optax's over unrolled layers, NumPy's, and what to sweep.

    `fixed` adds what is no float to the settings.
    """

    recipe: Callable[..., Any]
    settings: dict[str, float]
    optax: Callable[[dict[str, float]], optax.GradientTransformation] | None
    numpy: Callable[[dict[str, float], Any, Any, int, Any], Any]
    sweeps: dict[str, tuple[float, ...]]
    fixed: Callable[[dict[str, Any]], dict[str, Any]] = lambda settings: settings

    def make(self, **settings):
        return self.recipe(**self.fixed(settings))


def decays(names):
    return {name: DECAYED(name) for name in names}


def clipped_of_optax(s, *stages):
    return optax.chain(optax.clip_by_global_norm(s["clip_norm"]), *stages)


def adamw_of_optax(s):
    adamw = optax.adamw(
        s["learning_rate"],
        b1=s["b1"],
        b2=s["b2"],
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        mask=decays,
    )
    return clipped_of_optax(s, adamw)


def sgd_of_optax(s, nesterov):
    return clipped_of_optax(
        s,
        optax.add_decayed_weights(s["weight_decay"], decays),
        optax.trace(s["momentum"], nesterov),
        optax.scale(-s["learning_rate"]),
    )


def capped_adamw_of_optax(s):
    return clipped_of_optax(
        s,
        optax.scale_by_adam(s["b1"], s["b2"], s["eps"], s["eps_root"]),
        optax.clip_by_block_rms(s["max_update_rms"]),
        optax.add_decayed_weights(s["weight_decay"]),
        optax.scale(-s["learning_rate"]),
    )


def lion_of_optax(s):
    lion = optax.lion(
        s["learning_rate"], s["b1"], s["b2"], weight_decay=s["weight_decay"], mask=decays
    )
    return clipped_of_optax(s, lion)


def lamb_of_optax(s):
    lamb = optax.lamb(
        s["learning_rate"],
        s["b1"],
        s["b2"],
        s["eps"],
        weight_decay=s["weight_decay"],
        mask=decays,
    )
    return clipped_of_optax(s, lamb)


def adafactor_of_optax(s):
    adafactor = optax.adafactor(
        s["learning_rate"],
        min_dim_size_to_factor=3,
        decay_rate=s["exponent"],
        clipping_threshold=s["max_update_rms"],
        momentum=s["momentum"],
        weight_decay_rate=s["learning_rate"] * s["weight_decay"],
        weight_decay_mask=decays,
        eps=s["eps"],
    )
    return clipped_of_optax(s, adafactor)


def adafactor_fixed(settings):
    settings = dict(settings)
    decay = optim.PowerDecay(settings.pop("exponent"), settings.pop("least_share"))
    return settings | {"decay": decay, "least_factored_dim": 3}


def every_other_step(settings, **more):
    return settings | {"every": 2} | more


def spectral(settings):
    return settings | {"scale": optim.SpectralScale()}


def as_adam(settings):
    settings = dict(settings)
    return settings | {"scale": optim.AdamScale(settings.pop("rms"))}


CLIPPED_AND_DECAYED = {
    "learning_rate": LEARNING_RATES,
    "weight_decay": SHARES,
    "clip_norm": NORMS,
}
SGD = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 1.0}
ADAM = {"b1": 0.8, "b2": 0.97, "eps": 1e-7, "weight_decay": 0.3, "clip_norm": 0.9}
FEW_ADAM = {"b1": (0.0, 0.85, 0.99), "b2": (0.5, 0.95, 0.9999), "eps": (1e-12, 1e-7, 1e-2)}
FEW = {
    "learning_rate": (1e-4, 1 / 3, 0.1),
    "weight_decay": (0.0, 0.05, 1 / 3),
    "clip_norm": (0.1, 0.7, 100.0),
}
MUON = {"learning_rate": 0.02, "adam_learning_rate": 0.01, "momentum": 0.9, **ADAM}
FEW_MUON = {"momentum": (0.0, 0.9, 0.95), "adam_learning_rate": (1e-4, 1 / 3, 0.1)}
KRONECKER = {"learning_rate": 0.02, "statistics_decay": 0.8, **ADAM}
FEW_KRONECKER = {**FEW, **FEW_ADAM, "statistics_decay": (0.0, 0.9, 0.99)}
RECIPES = {
    "adamw": Recipe(
        recipe=optim.adamw,
        settings={
            "learning_rate": 1e-2,
            "b1": 0.9,
            "b2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
        },
        optax=adamw_of_optax,
        numpy=references.adamw,
        sweeps={
            **CLIPPED_AND_DECAYED,
            "b1": DECAYS,
            "b2": (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999),
            "eps": tuple(np.geomspace(1e-16, 1e-2, 8).tolist()),
        },
    ),
    "sgd": Recipe(
        recipe=optim.sgd,
        settings=SGD,
        optax=functools.partial(sgd_of_optax, nesterov=False),
        numpy=functools.partial(references.sgd, nesterov=False),
        sweeps={**CLIPPED_AND_DECAYED, "momentum": DECAYS},
    ),
    "nesterov": Recipe(
        recipe=optim.nesterov,
        settings=SGD,
        optax=functools.partial(sgd_of_optax, nesterov=True),
        numpy=functools.partial(references.sgd, nesterov=True),
        sweeps={**CLIPPED_AND_DECAYED, "momentum": DECAYS},
    ),
    "capped_adamw": Recipe(
        recipe=optim.capped_adamw,
        settings={"learning_rate": 0.02, "eps_root": 1e-6, "max_update_rms": 0.7, **ADAM},
        optax=capped_adamw_of_optax,
        numpy=references.capped_adamw,
        sweeps={**FEW, **FEW_ADAM, "eps_root": (0.0, 1e-6, 0.1), "max_update_rms": (0.3, 0.9, 9.0)},
    ),
    "lion": Recipe(
        recipe=optim.lion,
        settings={
            "learning_rate": 0.02,
            "b1": 0.8,
            "b2": 0.97,
            "weight_decay": 0.3,
            "clip_norm": 0.9,
        },
        optax=lion_of_optax,
        numpy=references.lion,
        sweeps={**FEW, "b1": (0.0, 0.85, 0.99), "b2": (0.5, 0.95, 0.9999)},
    ),
    "lamb": Recipe(
        recipe=optimizers.lamb,
        settings={"learning_rate": 0.02, **ADAM},
        optax=lamb_of_optax,
        numpy=references.lamb,
        sweeps={**FEW, **FEW_ADAM},
    ),
    "adafactor": Recipe(
        recipe=optim.adafactor,
        settings={
            "learning_rate": 0.05,
            "exponent": 0.7,
            "least_share": 0.0,
            "eps": 1e-6,
            "max_update_rms": 0.8,
            "least_parameter_rms": 1e-3,
            "momentum": 0.6,
            "weight_decay": 0.3,
            "clip_norm": 0.9,
        },
        optax=adafactor_of_optax,
        numpy=references.adafactor,
        sweeps={
            **FEW,
            "exponent": (0.5, 0.8, 1.0),
            "least_share": (0.0, 0.3, 1.0),
            "eps": (1e-30, 1e-8, 0.1),
            "max_update_rms": (0.3, 0.9, 9.0),
            "least_parameter_rms": (0.0, 1e-3, 3.0),
            "momentum": (0.0, 0.6, 0.95),
        },
        fixed=adafactor_fixed,
    ),
    "muon": Recipe(
        recipe=optim.muon,
        settings=MUON | {"rms": 0.3},
        optax=None,
        numpy=functools.partial(
            references.muon, scale=lambda s, m, n: s["rms"] * np.sqrt(max(m, n))
        ),
        sweeps={**FEW, **FEW_ADAM, **FEW_MUON, "rms": (0.1, 0.2, 1 / 3)},
        fixed=as_adam,
    ),
    "muon, spectral": Recipe(
        recipe=optim.muon,
        settings=MUON,
        optax=None,
        numpy=functools.partial(references.muon, scale=lambda s, m, n: np.sqrt(max(1.0, n / m))),
        sweeps={"learning_rate": (1e-4, 1 / 3, 0.1)},
        fixed=spectral,
    ),
    "soap": Recipe(
        recipe=optimizers.soap,
        settings=KRONECKER,
        optax=None,
        numpy=references.soap,
        sweeps=FEW_KRONECKER,
        # Both sides of a square kernel, one side of others: a side longer than the other has
        # directions that no gradient has been in, whose eigenvectors are arbitrary.
        fixed=functools.partial(every_other_step, largest_dim=6),
    ),
    "shampoo": Recipe(
        recipe=optimizers.shampoo,
        settings=KRONECKER | {"eps": 0.01},
        optax=None,
        numpy=references.shampoo,
        sweeps=FEW_KRONECKER,
        fixed=every_other_step,
    ),
}
