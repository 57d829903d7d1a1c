"""Dispatch and combine of DeepEP: flows against the closed form, published figures, and measured tables.

    python -m tests.simccl.expert_agreement

prints the tables of docs/accuracy/network.md, "Dispatch and combine".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from simccl import (
    Algorithm,
    Communicator,
    ExpectedRouting,
    ExpertChoice,
    Phase,
    expert_combine,
    expert_dispatch,
    expert_times_us,
)
from tests.simccl.communicators import run_on_idle, spread

KERNELS = Path(__file__).parents[3] / "shared" / "data" / "kernels"
NORMAL, LOW = Algorithm.HIERARCHICAL, Algorithm.LOW_LATENCY
NORMAL_GBYTES_PER_S = {8: (153, 158), 16: (43, 43), 32: (58, 57), 64: (51, 50)}
"""DeepEP's README (V1), H800, 4,096 tokens of 7168, top-8 within 4 groups, by ranks: NVLink (8 ranks) or RDMA."""
LOW_LATENCY_US = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
"""DeepEP's README (V1), H800, 128 tokens, by ranks."""


def flows_us(
    choice: ExpertChoice, communicator: Communicator, mode: Algorithm, tokens: int
) -> tuple[float, float, float, float]:
    """Dispatch and combine: of flows on the idle fabric, then in closed form."""
    routing = ExpectedRouting(tokens, choice, communicator)
    plans = (
        expert_dispatch(routing, communicator, hidden=7168, mode=mode),
        expert_combine(routing, communicator, hidden=7168, mode=mode),
    )
    at, count = communicator.shape(), np.array([tokens])
    closed = [expert_times_us(mode, phase, count, hidden=7168, choice=choice, at=at)[0] for phase in Phase]
    dispatch, combine = (run_on_idle(plan) / 1e6 for plan in plans)
    return dispatch, combine, float(closed[0]), float(closed[1])


def normal() -> None:
    print("normal, 4,096 tokens: ranks, GB/s published | flows, deviation; flows against the closed form")
    for ranks, published in NORMAL_GBYTES_PER_S.items():
        nodes = ranks // 8
        groups = 8 if nodes == 1 else nodes
        choice = ExpertChoice(256, 8, groups, min(groups, 4))
        each = np.eye(ranks, dtype=np.bool_)
        places = each if nodes == 1 else np.repeat(np.eye(nodes, dtype=np.bool_), 8, axis=1)
        copies = 4096 * choice.reached(places).sum()
        *found, there, back = flows_us(choice, spread(nodes, 8, "h800"), NORMAL, 4096)
        rates = [copies * size / time / 1e3 for size, time in zip((7392, 14336), found, strict=True)]
        off = [f"{rate / known - 1:+.1%}" for rate, known in zip(rates, published, strict=True)]
        agree = f"{found[0] / there - 1:+.1%} {found[1] / back - 1:+.1%}"
        print(f"{ranks:4} {published} | {rates[0]:.1f} {rates[1]:.1f} {off} | {found[0] + found[1]:.0f} µs | {agree}")


def low_latency() -> None:
    print("low latency, 128 tokens: ranks, µs published | closed form, deviation | flows")
    for ranks, published in LOW_LATENCY_US.items():
        found = flows_us(ExpertChoice(256, 8), spread(ranks // 8, 8, "h800"), LOW, 128)
        off = [f"{time / known - 1:+.1%}" for time, known in zip(found[2:], published, strict=True)]
        print(f"{ranks:4} {published} | {found[2]:.0f} {found[3]:.0f} {off} | {found[0]:.0f} {found[1]:.0f}")


def tables() -> None:
    """Transmission alone, in the tables; at each number of nodes the SMs that the fit is for."""
    rows = pd.read_csv(KERNELS / "deepep_normal.csv.gz")
    rows = rows[(rows.hidden_size == 7168) & (rows.num_experts == 256) & (rows.topk == 8)]
    print("normal, tables: system, nodes, SMs, phase, points | median, p90, most of |error| | from 256 tokens")
    for system, nodes, sms in (
        ("h100_sxm", 1, 24),
        ("h200_sxm", 1, 24),
        ("h100_sxm", 2, 20),
        ("h100_sxm", 4, 20),
        ("h100_sxm", 8, 20),
    ):
        found = rows[(rows.system == system) & (rows.node_num == nodes)]
        found = found[(found.dispatch_sms == sms) & (found.combine_sms == sms)]
        at = spread(nodes, 8, system[:4]).shape()
        choice = ExpertChoice(256, 8, 8, 4) if nodes == 8 else ExpertChoice(256, 8)
        for phase in Phase:
            tokens = found.tokens_per_rank.to_numpy()
            times = expert_times_us(NORMAL, phase, tokens, hidden=7168, choice=choice, at=at)
            error = times / found[f"{phase}_transmit_us"].to_numpy() - 1
            large = error[tokens >= 256]
            print(
                f"{system} {nodes} {sms} {phase} {len(error)} | {np.median(np.abs(error)):.1%} "
                f"{np.quantile(np.abs(error), 0.9):.1%} {np.abs(error).max():.1%} | {np.mean(large):+.1%}"
            )


if __name__ == "__main__":
    normal()
    low_latency()
    if KERNELS.is_dir():
        tables()
