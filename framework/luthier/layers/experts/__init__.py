"""Mixtures of experts: routers, dispatch, and the layers that take the place of an MLP."""

from luthier.layers.experts.dispatch import AllExperts, Capacity, Dispatch
from luthier.layers.experts.dropless import Dropless
from luthier.layers.experts.expert_choice import ExpertChoice
from luthier.layers.experts.mixture import Experts, Mixture, feed_forward
from luthier.layers.experts.routing import (
    Choice,
    Router,
    RouterLogits,
    TopK,
    as_scored,
    renormalized,
)
from luthier.layers.experts.stacked import ACTIVE_SHARE, share_of
from luthier.layers.experts.sums import RoutingSums, by_site, carrying, observing, report

__all__ = [
    "ACTIVE_SHARE",
    "AllExperts",
    "Capacity",
    "Choice",
    "Dispatch",
    "Dropless",
    "ExpertChoice",
    "Experts",
    "Mixture",
    "Router",
    "RouterLogits",
    "RoutingSums",
    "TopK",
    "as_scored",
    "by_site",
    "carrying",
    "feed_forward",
    "observing",
    "renormalized",
    "report",
    "share_of",
]
