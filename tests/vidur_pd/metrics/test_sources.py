"""What times rest on, and the error that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from aicb.estimators.transfer_reference import Distance
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.sources import (
    ERRORS,
    MEASURED_ERROR,
    OTHER_HOST_ERROR,
    OWN_HOST_ERROR,
    TRANSFER_ERRORS,
    PoolTime,
    Source,
    time_sources,
)

OF_VLLM = {"framework": "vllm", "weights": "fp8"}
HERE = PoolTime(6.0, 2.0, None, Source.MEASURED_HERE)
CARRIED = PoolTime(3.0, 1.0, Distance.SAME_ARCHITECTURE, Source.FORMULA)


def test_seconds_are_split_by_pool_and_contention_is_a_formula() -> None:
    """Of 9 s of compute 4 are flagged, 3 of which are those of the transferred pool. Of 3 s of collectives half a
    second is contention, taken from each source in proportion: 2 and 1 become 5/3 and 5/6.
    """
    found = time_sources([HERE, CARRIED], estimated_s=4.0, simulated=False, contention_s=0.5)
    assert found.compute_s == {Source.MEASURED_HERE: 5.0, Source.TRANSFERRED: 3.0, Source.FORMULA: 1.0}
    assert found.collectives_s[Source.MEASURED_HERE] == pytest.approx(5 / 3)
    assert found.collectives_s[Source.FORMULA] == pytest.approx(5 / 6 + 0.5)
    assert found.estimates == pytest.approx((4.0 + 5 / 6 + 0.5) / 12)
    shares = found.shares(4.0, Source.SIMULATED)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["simulated"] == pytest.approx(4 / 16)


def test_collectives_that_are_flows_are_simulated() -> None:
    found = time_sources([HERE], estimated_s=0.0, simulated=True, contention_s=1.0)
    assert found.collectives_s[Source.SIMULATED] == 2.0
    assert found.estimates == 0.0


def test_the_error_of_a_latency_is_that_of_its_parts() -> None:
    """3 s of compute that was measured, 1 s of collectives by a formula, and a wait in the same proportion."""
    found = time_sources([PoolTime(6.0, 2.0, None, Source.FORMULA)], 0.0, simulated=False, contention_s=0.0)
    parts = {"queue": 5.0, "prefill_compute": 3.0, "prefill_communication": 1.0}
    assert found.error_of(parts) == pytest.approx((3 * MEASURED_ERROR + ERRORS[Source.FORMULA]) / 4)
    assert found.error_of({"queue": 1.0}) is None
    waiting = replace(found, host_shares={"prefill_compute": 0.4}, host_error=OWN_HOST_ERROR)
    of_prefill = 0.6 * MEASURED_ERROR + 0.4 * OWN_HOST_ERROR
    assert waiting.error_of(parts) == pytest.approx((3 * of_prefill + ERRORS[Source.FORMULA]) / 4)
    carried = time_sources([CARRIED], 3.0, simulated=False, contention_s=0.0)
    assert carried.error_of({"decode_compute": 1.0}) == pytest.approx(TRANSFER_ERRORS[Distance.SAME_ARCHITECTURE])


def test_times_carried_to_another_vendor_err_twice_as_much_as_to_another_architecture() -> None:
    found = {
        gpu: simulate(config([pool("m", "mixed", hardware=gpu)]), [(0, 500, 10)]).summary.model_error.tpot
        for gpu in ("h100", "a100", "mi300x")
    }
    assert found["h100"] < found["a100"] < found["mi300x"]
    carried = [PoolTime(3.0, 0.0, distance, Source.FORMULA) for distance in Distance]
    errors = [time_sources([each], 3.0, simulated=False, contention_s=0.0).transferred_error for each in carried]
    assert errors == pytest.approx([math.hypot(MEASURED_ERROR, error) for error in (0.06, 0.25, 0.5)])


def test_runs_say_what_they_rest_on() -> None:
    """An H200 is measured; an H100's times are carried over; a roofline is a formula; two nodes are NCCL's model."""
    rows = [(0, 500, 10), (1000, 800, 10)]
    measured = simulate(config([pool("m", "mixed", tp=2)]), rows).summary
    assert measured.time_sources["measured_here"] == pytest.approx(1.0)
    assert measured.estimates == 0.0
    (server,) = measured.pools
    share = server.prompts_host_share
    assert share is not None
    assert MEASURED_ERROR < measured.model_error.ttft < share * OTHER_HOST_ERROR + (1.0 - share) * MEASURED_ERROR
    carried = simulate(config([pool("m", "mixed", hardware="h100")]), rows).summary
    assert carried.time_sources["transferred"] > 0.9  # launches of the host are as measured
    assert carried.estimates == pytest.approx(carried.time_sources["transferred"])
    formula = simulate(config([pool("m", "mixed")], engine={"estimator": "roofline"}), rows).summary
    assert formula.time_sources["formula"] > 0.9
    experts = simulate(config([pool("m", "mixed", tp=2, ep=2)], model="qwen3-30b-a3b", engine=OF_VLLM), rows).summary
    assert experts.time_sources["transferred"] > 0.1  # FlashInfer's, measured on an H100
    assert experts.time_sources["formula"] == 0.0
    mxfp4 = simulate(config([pool("m", "mixed")], model="gpt-oss-20b", engine={"framework": "vllm"}), rows).summary
    assert mxfp4.time_sources["transferred"] > 0.3  # those as well
    assert mxfp4.time_sources["formula"] == 0.0
    by_sglang = config([pool("m", "mixed")], model="qwen3-30b-a3b", engine={"framework": "sglang", "weights": "fp8"})
    sglang = simulate(by_sglang, [(0, 2000, 10)]).summary
    assert sglang.time_sources["transferred"] == 0.0  # its own kernel of experts
    assert sglang.time_sources["formula"] == 0.0
    lines = config([pool("m", "mixed", tp=2, ep=2)], model="qwen3-30b-a3b", engine=OF_VLLM | {"estimator": "roofline"})
    assert simulate(lines, rows).summary.time_sources["transferred"] == 0.0
    two_nodes = simulate(config([pool("m", "mixed", tp=4)]), rows).summary
    assert two_nodes.time_sources["formula"] > 0.2
    assert two_nodes.estimates == pytest.approx(two_nodes.time_sources["formula"])
    eight = {"kind": "rail_optimized", "gpus_per_node": 8}
    norms = simulate(config([pool("m", "mixed", tp=8)], topology=eight, engine={"norm_kernel": "flashinfer"}), rows)
    apart = simulate(config([pool("m", "mixed", tp=8)], topology=eight, engine={"norm_kernel": "apart"}), rows)
    assert norms.summary.time_sources["formula"] > 0.1  # FlashInfer's kernel was not measured among eight
    assert apart.summary.time_sources["formula"] == 0.0
