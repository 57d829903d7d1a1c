"""Flows of a collective among GPUs: NCCL's, an engine's all-reduce kernel's, or DeepEP's."""

from __future__ import annotations

import simccl
from aicb import Communication
from aicb.operators.operator import TokenExchange, WorkerExchange

BF16_BYTES = 2


def planned(what: Communication, communicator: simccl.Communicator, stack: simccl.Stack) -> simccl.Plan:
    """The plan of a collective; ``stack`` says whose all-reduce kernels run.

    Raises:
        InputError: DeepEP's normal kernels on servers with unequal numbers of ranks.
    """
    if what.exchange is None:
        return simccl.plan_collective(what.op, what.size_bytes, communicator, stack=stack)
    exchange = what.exchange
    if isinstance(exchange, WorkerExchange):
        tokens = what.size_bytes / (BF16_BYTES * exchange.hidden)
        between = simccl.WorkerExchange(
            exchange.attention_workers,
            exchange.hidden,
            exchange.is_fp8,
            exchange.copies,
            None if exchange.by_node is None else simccl.ExpertChoice(*exchange.by_node),
        )
        return simccl.worker_exchange_plan(between, tokens, communicator, is_return=what.op == "combine")
    tokens = what.size_bytes / (BF16_BYTES * exchange.hidden)
    routing = simccl.ExpectedRouting(tokens, _choice(exchange), communicator)
    mode = simccl.Algorithm.LOW_LATENCY if exchange.is_low_latency else simccl.Algorithm.HIERARCHICAL
    if what.op == "combine":
        return simccl.expert_combine(routing, communicator, hidden=exchange.hidden, mode=mode)
    return simccl.expert_dispatch(routing, communicator, hidden=exchange.hidden, mode=mode, fp8=exchange.is_fp8)


def behind_ps(what: Communication, communicator: simccl.Communicator) -> int:
    """What the smaller collectives of the same group of calls add; their bytes are left out."""
    sizes = [max(1, round(share * what.size_bytes)) for share in what.behind]
    return sum(simccl.following_time_ps(what.op, size, communicator) for size in sizes)


def _choice(exchange: TokenExchange) -> simccl.ExpertChoice:
    popularity = exchange.popularity
    return simccl.ExpertChoice(
        experts=exchange.experts,
        top_k=exchange.experts_per_token,
        groups=exchange.groups,
        most_groups=exchange.groups_per_token,
        ranks=None if popularity is None else tuple(simccl.RankPopularity(*rank) for rank in popularity),
    )
