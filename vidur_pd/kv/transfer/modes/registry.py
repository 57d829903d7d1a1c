"""Modes of KV transfers by name: those that come with the simulator, and classes of the user's own."""

from __future__ import annotations

from typing import Final, cast

from vidur_pd.config.own_classes import load_class
from vidur_pd.kv.transfer.modes.chunked import Chunked
from vidur_pd.kv.transfer.modes.layerwise import Layerwise
from vidur_pd.kv.transfer.modes.mode import TransferMode
from vidur_pd.kv.transfer.modes.pull import Pull
from vidur_pd.kv.transfer.modes.push import Push

MODES: Final[dict[str, type[TransferMode]]] = {
    "pull": Pull,
    "push": Push,
    "chunked": Chunked,
    "layerwise": Layerwise,
}


def mode_class(name: str) -> type[TransferMode]:
    """The class of a mode.

    Raises: InputError, if the class is not there or is not a mode.
    """
    if name in MODES:
        return MODES[name]
    return cast(type[TransferMode], load_class("kv_transfer.mode", name, TransferMode))
