"""Options that say a load as users do: ``--rate 10/s`` or ``--clients 64``."""

from __future__ import annotations

from typing import Annotated

import typer

from boundary.errors import InputError

Rate = Annotated[str | None, typer.Option("--rate", help="Mean rate of arrivals, as 10/s: sets workload.rate.")]
Clients = Annotated[
    int | None,
    typer.Option("--clients", min=1, help="So many clients, each with one request at a time: sets workload.arrivals."),
]


def load_settings(rate: str | None, clients: int | None) -> list[str]:
    """Overrides ``a.b=value`` for these options. Raises: InputError, where both are given."""
    if rate is not None and clients is not None:
        raise InputError(f"--clients: found {clients} with --rate {rate}, expected one of them")
    if rate is not None:
        return [f"workload.rate={rate}"]
    return [] if clients is None else [f"workload.arrivals={{kind: closed, clients: {clients}}}"]
