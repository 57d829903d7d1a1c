"""Rank of a process that torchrun, MPI, Slurm or Kubernetes has started, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from boundary.errors import InputError
from boundary.numbers import MOST_INT64, whole_number

_NAMES: Final = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH, Intel MPI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("Kubernetes", "JOB_COMPLETION_INDEX", None),
)
"""Launcher, its variable of the rank, and that of the number of ranks, which indexed jobs of Kubernetes do not have."""


def rank_in_environment(environment: Mapping[str, str], ranks: int) -> int:
    """The rank of this process among ``ranks``; the first launcher in `_NAMES` that has set its variable counts.

    Raises:
        InputError: no launcher has, or it has started another number of processes.
    """
    for launcher, rank_name, size_name in _NAMES:
        if rank_name not in environment:
            continue
        if size_name is not None and size_name in environment:
            found = whole_number(environment[size_name], size_name, "a number of ranks", 1, MOST_INT64)
            if found != ranks:
                raise InputError(
                    f"{size_name}: found {found} ({launcher}), expected {ranks}, the agents of the hosts file"
                )
        return whole_number(environment[rank_name], rank_name, "a rank", 0, ranks - 1)
    names = ", ".join(rank_name for _, rank_name, _ in _NAMES)
    raise InputError(f"launcher environment: found none of {names}, expected one of these variables")
