"""Prices of collectives: whose kernels run, and on which GPUs."""

import numpy as np
import pytest

import simccl
from aicb import Communication
from netsim import rail_optimized
from netsim.topologies.defaults import LinkRates
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.assembly import assemble
from vidur_pd.execution.communication import CommunicationPricer

DECODE = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
ROWS = [(3_000 * index, 200, 40) for index in range(8)]


def topology() -> object:
    nvlink_bps = round(simccl.gpu_named("h100").nvlink_gbytes_per_s * 8e9)
    return rail_optimized(1, 8, rates=LinkRates(nvlink_bps=nvlink_bps))


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
@pytest.mark.parametrize("stack", list(simccl.Stack))
def test_an_all_reduce_takes_the_time_of_the_stack_that_runs_it(backend: str, stack: simccl.Stack) -> None:
    """64 KiB between 8 H100s: 14 buffers of an eighth, twice with LL, by NCCL; seven whole ones by one-shot kernels."""
    fabric, gpus = topology(), tuple(range(8))
    cost = CommunicationPricer(fabric, backend, "h100", stack).cost(Communication("all_reduce", 64 << 10, "tp"), gpus)
    communicator = simccl.Communicator(gpus, fabric, "h100")
    expected = simccl.collective_time("all_reduce", 64 << 10, communicator, stack=stack)
    assert cost.duration_ps == pytest.approx(expected.time_ps, rel=0.01, abs=150_000)
    assert (expected.algorithm is simccl.Algorithm.ONE_SHOT) == (stack is not simccl.Stack.NCCL)
    assert np.unique(cost.link_bytes).tolist() == ([229_376] if stack is simccl.Stack.NCCL else [458_752])


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_an_engines_all_reduce_makes_decoding_with_tensor_parallelism_faster(coupling: str) -> None:
    """Two H200s, batches of 1 to 8 tokens of 8 KiB, two all-reduces in each of 36 layers: 2.4 µs less than NCCL each,
    and up to 0.4 µs less on the way, as one-shot has one hop instead of two."""
    share_s = {}
    for stack in ("nccl", "vllm"):
        result = simulate(config(DECODE, network={"coupling": coupling, "collectives": stack}), ROWS)
        columns = result.iterations.columns()
        decodes = columns["prefill_tokens"] == 0
        assert decodes.any()
        share_s[stack] = np.median(columns["communication_s"][decodes]) / 72
    assert 2.3e-6 < share_s["nccl"] - share_s["vllm"] < 2.8e-6


def test_a_gpu_without_measured_kernels_is_refused_before_the_run() -> None:
    with pytest.raises(simccl.InputError, match="stack: found sglang on a100, whose kernels were measured on"):
        CommunicationPricer(topology(), "fluid", "a100", simccl.Stack.SGLANG)
    assert assemble(config(DECODE, network={"collectives": "sglang"})).config.network.collectives == "sglang"
