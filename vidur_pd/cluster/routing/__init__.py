"""Which instance, and which data-parallel rank of it, serves a request."""

from vidur_pd.cluster.routing.policy import Candidate, Routing, RoutingContext
from vidur_pd.cluster.routing.ranks import RankRouter, RoutingKnowledge
from vidur_pd.cluster.routing.router import BuiltInRouter, Router
from vidur_pd.cluster.routing.routes import Routes, SeparateRoutes
from vidur_pd.cluster.routing.splitwise import SplitwiseRoutes

__all__ = [
    "BuiltInRouter",
    "Candidate",
    "RankRouter",
    "Router",
    "Routes",
    "Routing",
    "RoutingContext",
    "RoutingKnowledge",
    "SeparateRoutes",
    "SplitwiseRoutes",
]
