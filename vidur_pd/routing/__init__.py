"""Which instance, and which data-parallel rank of it, serves a request."""

from vidur_pd.routing.ranks import RankRouter
from vidur_pd.routing.router import Router

__all__ = ["RankRouter", "Router"]
