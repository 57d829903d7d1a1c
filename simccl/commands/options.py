"""Options that several commands have, and checks of several together."""

from __future__ import annotations

from typing import Annotated

import typer

from boundary.errors import InputError

Nodes = Annotated[int, typer.Option(help="NVLink domains over which they are spread evenly.")]
Gpu = Annotated[str, typer.Option(help="GPU type, such as h100, h200 or b200.")]
StackName = Annotated[
    str, typer.Option("--stack", help="Whose all_reduce kernels run: nccl, vllm, sglang, trtllm or flashinfer.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def check_spread(ranks: int, nodes: int, most_ranks: int) -> None:
    """Raises:
    InputError: no rank or too many of them, or ranks that cannot be spread evenly over the nodes.
    """
    if not 1 <= ranks <= most_ranks:
        raise InputError(f"ranks: found {ranks}, expected 1 to {most_ranks}")
    if nodes < 1 or ranks % nodes:
        raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")
