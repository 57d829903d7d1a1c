"""The power of a GPU against what was measured, and against what must hold of any law."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from aicb import get_gpu, known_gpus
from aicb.measurements.power import H100, power_law
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import iteration_operators
from aicb.operators.operator import Communication
from scripts.fit_power_law import fitted, measured, powers_w

DATA = Path(__file__).parents[2] / "data" / "engine"


def test_the_joules_are_those_that_the_measurements_give() -> None:
    rows = measured()
    again = fitted(rows[rows["is_fitted"]])
    assert H100.j_per_byte == pytest.approx(again.j_per_byte, rel=0.01)
    assert dict(H100.j_per_flop) == pytest.approx(dict(again.j_per_flop), rel=0.01)


def test_loads_that_were_not_fitted_draw_what_the_law_says() -> None:
    """Decode steps and prompts of a whole model, launched as graphs and one by one, and products with pauses."""
    rows = measured()
    others = rows[rows["load"].str.match("decode|prefill|product, then")]
    assert len(others) == 12
    assert not others["is_fitted"].any()
    assert abs(powers_w(H100, others) / others["power_w"] - 1).max() < 0.07


def test_at_the_power_limit_the_limit_is_drawn() -> None:
    """Products whose joules at the full clock would pass 700 W: the clock falls until they do not."""
    rows = measured()
    limited = rows[(rows["load"] == "product") & (rows["sm_clock_mhz"] < 1700)]
    assert len(limited) > 20
    assert (powers_w(H100, limited) == H100.limit_w).all()
    assert limited["power_w"].min() > 0.98 * H100.limit_w


def test_a_gpu_that_waits_draws_little_and_one_that_polls_a_little_more() -> None:
    rows = measured().set_index("load")
    ready = rows.loc["ready", "power_w"]
    assert ready.min() < H100.ready_w < ready.max()
    spinning = rows.loc["spinning"]
    polling_w = float(spinning[spinning["m"] == 24]["power_w"].iloc[0])
    assert H100.communicating_w - H100.ready_w == pytest.approx(polling_w - ready.iloc[0], abs=0.5)
    assert H100.computing_w(0.0, {}) == H100.ready_w + H100.kernels_w


def test_an_engine_on_h200s_draws_what_the_h100s_joules_say() -> None:
    """Llama-3.1-70B in vLLM with TP 2, steady decodes, boards read while it ran: 2 to 10 % less where no limit
    binds; the limit where the law has it, too."""
    with gzip.open(DATA / "vllm-h200-tp2-llama-3.1-70b.json.gz", "rt") as file:
        found = json.load(file)
    law, model, precision = power_law(get_gpu("h200")), load_model("llama-3.1-70b"), Precision()
    assert law is not None
    limited = []
    for row, steady in zip(found["power"]["steady"], found["steady"], strict=True):
        assert (row["L"], row["B"]) == (steady["L"], steady["B"])
        batch = Batch.decode([steady["L"] + steady["n_out"] // 2] * steady["B"])
        listed = iteration_operators(model, Partition(tp=2), precision, batch)
        costs = [(each.count, each.cost) for each in listed if not isinstance(each.kernel, Communication)]
        flops, moved = (sum(count * getattr(cost, of) for count, cost in costs) for of in ("flops", "moved_bytes"))
        said_w = law.computing_w(moved / steady["itl_p50"], {"bf16": flops / steady["itl_p50"]})
        limited.append(said_w == law.limit_w)
        if not limited[-1]:
            assert 1.0 < said_w / row["power_w"] < 1.11
            assert row["sm_mhz"] == 1980
        else:
            assert row["power_w"] > 0.98 * law.limit_w
            assert row["sm_mhz"] < 1980
    assert limited == [False, False, False, True, True, True, False, False, False, True]


@pytest.mark.parametrize("name", known_gpus())
def test_no_gpu_draws_more_than_its_limit_and_all_rise_with_load(name: str) -> None:
    gpu = get_gpu(name)
    law = power_law(gpu)
    assert law is not None
    assert law.limit_w == gpu.power_w
    assert 0.1 * law.limit_w < law.ready_w < law.communicating_w < 0.5 * law.limit_w
    streaming = law.computing_w(0.8 * gpu.hbm_bytes_per_s, {})
    assert law.computing_w(0.0, {}) < streaming <= law.limit_w
    assert streaming <= law.computing_w(0.8 * gpu.hbm_bytes_per_s, {"bf16": gpu.peak_bf16_flops}) <= law.limit_w


def test_gpus_of_one_architecture_share_joules_and_others_shares_of_their_limit() -> None:
    """The H200's bytes cost what the H100's do; an L40S at its full bandwidth draws the same part of its 350 W."""
    h200, l40s = (power_law(get_gpu(name)) for name in ("h200", "l40s"))
    assert h200 is not None
    assert l40s is not None
    assert (h200.j_per_byte, h200.law_as) == (H100.j_per_byte, "h100")
    part = l40s.j_per_byte * get_gpu("l40s").hbm_bytes_per_s / l40s.limit_w
    assert part == pytest.approx(H100.j_per_byte * get_gpu("h100").hbm_bytes_per_s / H100.limit_w)
