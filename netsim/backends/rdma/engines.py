"""Engines: what moves the bytes of a rank, in C++ (``netsim/core/rdma``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from netsim.backends.rdma.extension import load_engine


class Engine(Protocol):
    """Engine of one rank: per graph `load`, `offer`, `connect`, `run`, in this order.

    All but `stop` belong to one thread; `load`, `connect` and `run` raise TransferFailure.
    """

    @property
    def device(self) -> str:
        """The only RDMA device that it uses, ``NAME:PORT``; empty where there may be others."""

    @property
    def done_descriptor(self) -> int:
        """Becomes readable when all of a run is done here."""

    def load(self, columns: Mapping[str, object]) -> None:
        """Prepares the memory for a share of a graph (`netsim.backends.rdma.share.Share.columns`)."""

    def offer(self, out_ranks: Sequence[int], in_ranks: Sequence[int]) -> dict[int, str]:
        """For each rank that it sends to or receives from, what that has to know of it: text for its own kind."""

    def connect(self, offered: Mapping[int, str], timeout_ns: int) -> None:
        """Connects to these ranks by what they offer; what is connected already stays so."""

    def lanes(self, rank: int) -> str:
        """Transports and devices of the connections to a rank."""

    def run(self, t0_ns: int) -> None:
        """Sends from ``t0_ns`` on, and serves the others until `stop`."""

    def stop(self) -> None:
        """From any thread: ends the present run, or the next."""

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """[sends] ready, posted, left; [receives] arrived: ns, -1 for what has not happened."""


def create_engine(settings: Mapping[str, Any], rank: int) -> Engine:
    """The engine of a rank, as the rendezvous has set it up (`netsim.backends.rdma.session`).

    Raises:
        BackendUnavailable: this build does not have it.
        TransferFailure: its device, GPU or address is not as expected.
    """
    place = settings["places"][rank]
    options = {
        "rank": rank,
        "ranks": len(settings["places"]),
        "address": place["address"],
        "device": place["device"],
        **{name: settings[name] for name in ("channels", "spin", "must_verify")},
    }
    module = load_engine(settings["engine"])
    made: Engine
    if settings["engine"] == "verbs":
        made = module.VerbsEngine(options, **settings["verbs"])
    else:
        made = module.UcxEngine(options, **settings["ucx"], key=settings["key"], gpu=place["gpu"])
    return made
