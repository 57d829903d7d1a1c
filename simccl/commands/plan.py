"""``simccl plan`` and ``simccl verify``: the flows of a collective, written or proved."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, get_type_hints

import typer

from boundary.command_line import print_summary
from boundary.errors import InputError
from boundary.output_files import check_output
from simccl.commands.options import Gpu, Json, Nodes, Nvls, StackName, check_spread, may_use_nvls

if TYPE_CHECKING:
    from netsim.topologies.defaults import LinkRates
    from simccl.communicator.communicator import Communicator
    from simccl.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Which plan a command is about: its options, in the order of the help."""

    op: Annotated[
        str, typer.Option(help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv.")
    ]
    size: Annotated[
        str,
        typer.Option(
            "--bytes",
            help="Size as in nccl-tests, e.g. 1048576 or 1MiB: the full buffer for all_gather and reduce_scatter, "
            "what one rank sends in total for all_to_all.",
        ),
    ]
    ranks: Annotated[int, typer.Option(help="GPUs that take part.")]
    nodes: Nodes = 1
    gpu: Gpu = "h100"
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="ring, tree, nvls, nvls_tree, pat, or an engine's one_shot, two_shot, multimem; default: NCCL's "
            "choice."
        ),
    ] = None
    protocol: Annotated[str | None, typer.Option(help="ll, ll128 or simple instead of NCCL's choice.")] = None
    root: Annotated[int, typer.Option(help="Rank that a broadcast starts from, or a reduce ends on.")] = 0
    coarsen: Annotated[
        int | None,
        typer.Option(
            help="Rings, trees, NVLS: show loops, chunks and FIFO credits, so many loops merged into one; else all."
        ),
    ] = None
    stack: StackName = "nccl"
    nvls: Nvls = None

    def plan(self) -> Plan:
        """Raises:
        InputError: an option that is wrong, or does not fit the others.
        """
        from simccl.engines.all_reduce import AllReduceKernels
        from simccl.formats.tables import read_size_bytes
        from simccl.planning.planner import plan_collective

        stack, size_bytes = AllReduceKernels.parse(self.stack), read_size_bytes(self.size)
        communicator = self._communicator(may_use_nvls=may_use_nvls(self.nvls, stack))
        return plan_collective(
            self.op,
            size_bytes,
            communicator,
            algorithm=self.algorithm,
            protocol=self.protocol,
            root=self.root,
            coarsen=self.coarsen,
            stack=stack,
        )

    @property
    def rates(self) -> LinkRates:
        """Links of systems with GPUs of this type."""
        from netsim.topologies.defaults import LinkRates
        from simccl.communicator.gpus import gpu_named

        found = gpu_named(self.gpu)
        return LinkRates(nic_bps=round(found.nic_gbytes_per_s * 8e9), nvlink_bps=round(found.nvlink_gbytes_per_s * 8e9))

    @property
    def fabric(self) -> str:
        """Arguments of ``netsim topology`` that build the system."""
        from netsim.units import format_rate_bps

        nic, nvlink = format_rate_bps(self.rates.nic_bps), format_rate_bps(self.rates.nvlink_bps)
        per_node = self.ranks // self.nodes
        return f"rail_optimized --nodes {self.nodes} --gpus-per-node {per_node} --nic {nic} --nvlink {nvlink}"

    def _communicator(self, *, may_use_nvls: bool) -> Communicator:
        """Ranks spread evenly over equal nodes, with the link rates of the GPU type."""
        from netsim import rail_optimized
        from simccl.collective import MAX_PLAN_RANKS
        from simccl.communicator.communicator import Communicator

        check_spread(self.ranks, self.nodes, MAX_PLAN_RANKS)
        fabric = rail_optimized(self.nodes, self.ranks // self.nodes, rates=self.rates)
        return Communicator(tuple(range(self.ranks)), fabric, self.gpu, may_use_nvls=may_use_nvls)


def _about_a_plan(command: Callable[Concatenate[PlanOptions, ...], None]) -> Callable[..., None]:
    """The command with the fields of `PlanOptions`, in place of its first parameter, before its other options."""

    def parameters(of: Callable[..., object]) -> list[inspect.Parameter]:
        hints = get_type_hints(of, include_extras=True)
        return [p.replace(annotation=hints[p.name]) for p in inspect.signature(of).parameters.values()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        shared = {field.name: given.pop(field.name) for field in fields(PlanOptions)}
        command(PlanOptions(**shared), **given)

    vars(run)["__signature__"] = inspect.Signature([*parameters(PlanOptions), *parameters(command)[1:]])
    return run


@_about_a_plan
def write_plan_file(
    wanted: PlanOptions,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the flows go: .csv or .parquet.")],
    columns: Annotated[
        str, typer.Option("--format", help="netsim, or simccl for SimCCL's 15 columns (.csv).")
    ] = "netsim",
    as_json: Json = False,
) -> None:
    """Write the flows of a collective, one row each, on a rail-optimised fabric.

    A .csv goes into ``netsim run`` with the topology that the printed command builds.
    """
    from simccl.formats.flow_model_csv import write_flow_model_csv
    from simccl.formats.tables import check_plan_file, write_plan

    check_plan_file(output)
    if columns not in ("netsim", "simccl") or (columns == "simccl" and output.suffix != ".csv"):
        raise InputError(
            f"format: found {columns!r} for {output}, expected netsim, or simccl and a name that ends in .csv"
        )
    check_output(output)
    plan = wanted.plan()
    if columns == "simccl":
        write_flow_model_csv(plan, output)
    else:
        write_plan(plan, output)
    result = {
        "op": str(plan.op),
        "bytes": plan.size_bytes,
        "algorithm": str(plan.algorithm),
        "protocol": str(plan.protocol),
        "channels": plan.channels,
        "base_latency_us": plan.base_latency_ps / 1e6,
        "flows": len(plan),
        "payload_bytes": int(plan.flows.payload_bytes.sum()),
        "wire_bytes": int(plan.flows.wire_bytes.sum()),
        "output": str(output),
        "topology": f"netsim topology {wanted.fabric}",
    }
    print_summary(result, as_json)


@_about_a_plan
def verify_flows(wanted: PlanOptions, *, as_json: Json = False) -> None:
    """Prove by symbolic execution that the plan of a collective leaves the right data on every rank."""
    from simccl.planning.verify import verify_plan

    plan = wanted.plan()
    proof = verify_plan(plan)
    result = {
        "op": str(plan.op),
        "correct": True,
        "flows": proof.flows,
        "ranges": proof.ranges,
        "depth": proof.depth,
        "payload_bytes": proof.payload_bytes,
    }
    print_summary(result, as_json)
