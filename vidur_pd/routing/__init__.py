"""Which instance, and which data-parallel rank of it, serves a request."""

from vidur_pd.routing.policy import Candidate, Routing
from vidur_pd.routing.ranks import RankRouter
from vidur_pd.routing.router import BuiltInRouter, Router

__all__ = ["BuiltInRouter", "Candidate", "RankRouter", "Router", "Routing"]
