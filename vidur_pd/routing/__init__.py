"""Which instance, and which data-parallel rank of it, serves a request."""

from vidur_pd.routing.ranks import RankRouter
from vidur_pd.routing.router import Candidate, Router

__all__ = ["Candidate", "RankRouter", "Router"]
