"""Mixtures of experts: routers, dispatch, and the layers that take the place of an MLP."""

from luthier.layers.experts.dispatch import (
    ACTIVE_SHARE,
    AllExperts,
    Capacity,
    Dispatch,
    Dropless,
    apply_each,
    create_each,
)
from luthier.layers.experts.mixture import ExpertChoice, ExpertLayer, Experts, feed_forward
from luthier.layers.experts.routing import (
    RoutedExperts,
    Router,
    RouterLogits,
    RoutingSums,
    TopK,
    as_scored,
    by_site,
    carrying,
    observing,
    renormalized,
    report,
)

__all__ = [
    "ACTIVE_SHARE",
    "AllExperts",
    "Capacity",
    "Dispatch",
    "Dropless",
    "ExpertChoice",
    "ExpertLayer",
    "Experts",
    "RoutedExperts",
    "Router",
    "RouterLogits",
    "RoutingSums",
    "TopK",
    "apply_each",
    "as_scored",
    "by_site",
    "carrying",
    "create_each",
    "feed_forward",
    "observing",
    "renormalized",
    "report",
]
