"""Options that several commands have, and checks of several together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from boundary.errors import InputError

if TYPE_CHECKING:
    from simccl.engines.all_reduce import AllReduceKernels

Nodes = Annotated[int, typer.Option(help="NVLink domains over which they are spread evenly.")]
Gpu = Annotated[str, typer.Option(help="GPU type, such as h100, h200 or b200.")]
StackName = Annotated[
    str, typer.Option("--stack", help="Whose all_reduce kernels run: nccl, vllm, sglang, trtllm or flashinfer.")
]
Nvls = Annotated[
    bool | None,
    typer.Option("--nvls/--no-nvls", help="Whether NCCL may use NVLS; default: unless the stack, sglang, forbids it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def may_use_nvls(wanted: bool | None, stack: AllReduceKernels) -> bool:
    """What is asked for; else what the engine leaves NCCL."""
    return stack.leaves_nvls_on if wanted is None else wanted


def check_spread(ranks: int, nodes: int, most_ranks: int) -> None:
    """Raises:
    InputError: no rank or too many of them, or ranks that cannot be spread evenly over the nodes.
    """
    if not 1 <= ranks <= most_ranks:
        raise InputError(f"ranks: found {ranks}, expected 1 to {most_ranks}")
    if nodes < 1 or ranks % nodes:
        raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")
