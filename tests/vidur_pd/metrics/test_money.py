"""Energy and cost worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from aicb import get_gpu
from aicb.measurements.power import H100, power_law
from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config import PowerConfig, PricesConfig, SimulationConfig
from vidur_pd.config.file import parse_config
from vidur_pd.metrics.costs import PoolPrice, cost_summary, prompts_share
from vidur_pd.metrics.energy import PoolActivity, Surroundings, energy_estimate
from vidur_pd.metrics.utilisation import Work
from vidur_pd.simulation.plan import plan_simulation

NOTHING = Work(0.0, 0.0)
ALONE = Surroundings(nics=0, switch_ports=0)


def activity(work: Work, computing_s: float, communicating_s: float = 0.0, gpus: int = 1) -> PoolActivity:
    """A pool of H100s that only decodes."""
    times = (0.0, computing_s)
    return PoolActivity("d", "h100", H100, gpus, gpus, times, communicating_s, (NOTHING, work))


def test_a_gpu_with_nothing_to_do_draws_125_w() -> None:
    energy = energy_estimate([activity(NOTHING, 0.0)], ALONE, PowerConfig(), 100.0, 0)
    assert energy is not None
    assert (energy.gpu_j, energy.pools_w, energy.gpu_j_per_output_token) == (12_500.0, {"d": 125.0}, None)


def test_a_small_decode_draws_what_its_bytes_do() -> None:
    """Of 10 s, 4 s in kernels that read 2.34 TB/s at 2.4 TFLOP/s (as one request of an 8B model does, which drew 448
    W), and 1 s in collectives: 125·10 + (11 + 0.127·2340 + 1.15·2.4)·4 + 23·1."""
    work = Work(0.0, 0.0, moved_bytes=4 * 2.34e12, flops={"bf16": 4 * 2.4e12})
    energy = energy_estimate([activity(work, 4.0, 1.0)], ALONE, PowerConfig(), 10.0, 50)
    assert energy is not None
    assert energy.gpu_j == pytest.approx(1250 + (11 + 297.18 + 2.76) * 4 + 23)
    assert energy.gpu_j_per_output_token == pytest.approx(energy.gpu_j / 50)


def test_large_products_draw_the_limit_and_not_more() -> None:
    """700 TFLOP/s would be 805 W beyond the rest."""
    work = Work(0.0, 0.0, flops={"bf16": 2 * 700e12})
    energy = energy_estimate([activity(work, 2.0, gpus=8)], ALONE, PowerConfig(), 2.0, 1)
    assert energy is not None
    assert energy.gpu_j == pytest.approx(8 * 700 * 2)


def test_nics_switches_servers_and_the_building_count_if_stated() -> None:
    """10 s of one GPU at 125 W, 8 NICs of 20 W, 16 ports of 12 W, 50 W of its server, times 1.25."""
    power = PowerConfig(nic_w=20, switch_port_w=12, host_w_per_gpu=50, pue=1.25)
    energy = energy_estimate([activity(NOTHING, 0.0)], Surroundings(8, 16), power, 10.0, 1)
    assert energy is not None
    assert (energy.network_j, energy.host_j) == (3520.0, 500.0)
    assert energy.total_j == pytest.approx((1250 + 3520 + 500) * 1.25)


def test_the_nics_and_ports_of_a_fabric_are_counted() -> None:
    """16 GPUs on two servers, a NIC each, on eight rails: 16 ends of NICs; a rail's leaf may have more to the spine."""
    tree = {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps", "nodes": 2}
    around = Surroundings.of(plan_simulation(config([pool("m", "mixed", instances=8)], topology=tree)).topology)
    assert around.nics == 16
    assert around.switch_ports >= 16


def test_a_gpu_of_unknown_power_leaves_energy_open() -> None:
    unknown = PoolActivity("d", "mine", None, 1, 1, (0.0, 1.0), 0.0, (NOTHING, NOTHING))
    assert energy_estimate([unknown], ALONE, PowerConfig(), 1.0, 1) is None


def test_input_tokens_bear_prefill_and_output_tokens_decode() -> None:
    """2 H200s prefill and 6 decode at 3.6 an hour for 1000 s: 2 and 6 in all; over 4 million and 0.5 million tokens."""
    pools = [PoolPrice("p", 7.2, prompts_share("prefill", 0.9)), PoolPrice("d", 21.6, prompts_share("decode", 0.1))]
    cost = cost_summary(PricesConfig(gpu_hour={"h200": 3.6}), pools, None, 1000.0, 4_000_000, 500_000)
    assert (cost.per_hour, cost.gpus_per_hour, cost.electricity_per_hour) == pytest.approx((28.8, 28.8, 0.0))
    assert cost.total == pytest.approx(8.0)
    assert cost.per_million_input_tokens == pytest.approx(0.5)
    assert cost.per_million_output_tokens == pytest.approx(12.0)
    assert cost.all_per_million_output_tokens == pytest.approx(16.0)


def test_electricity_is_divided_as_the_energy_of_pools_is() -> None:
    """Two pools of one GPU: 125 W and 700 W for an hour, 0.825 kWh at 0.20."""
    busy = activity(Work(0.0, 0.0, flops={"bf16": 3600 * 990e12}), 3600.0)
    idle = PoolActivity("p", "h100", H100, 1, 1, (0.0, 0.0), 0.0, (NOTHING, NOTHING))
    energy = energy_estimate([idle, busy], ALONE, PowerConfig(), 3600.0, 1)
    pools = [PoolPrice("p", 1.0, 1.0), PoolPrice("d", 1.0, 0.0)]
    prices = PricesConfig(gpu_hour={"h100": 1.0}, electricity_kwh=0.2)
    cost = cost_summary(prices, pools, energy, 3600.0, 1_000_000, 1_000_000)
    assert cost.per_hour == pytest.approx(2 + 0.165)
    assert cost.per_million_input_tokens == pytest.approx(1 + 0.025)
    assert cost.per_million_output_tokens == pytest.approx(1 + 0.14)
    unknown = cost_summary(prices, pools, None, 3600.0, 1, 1)
    assert (unknown.per_hour, unknown.gpus_per_hour) == (None, 2.0)


def test_a_run_costs_what_its_price_list_says(tmp_path: Path) -> None:
    """From a file, beside the configuration; the same run without a list has no cost."""
    (tmp_path / "list.yaml").write_text("gpu_hour: {H200: 3.6}\ncurrency: EUR\nas_of: 2026-11\n")
    tree = config([pool("p", "prefill"), pool("d", "decode")]).model_dump(mode="json", exclude_none=True)
    priced = parse_config({**tree, "prices": "list.yaml"}, tmp_path, "c.yaml")
    rows = [(1_000_000 * index, 1_000, 20) for index in range(4)]
    summary = simulate(priced, rows).summary
    assert summary.cost is not None
    assert (summary.cost.currency, summary.cost.as_of) == ("EUR", "2026-11")
    gpus = sum(each.gpus for each in summary.pools)
    assert summary.cost.total == pytest.approx(3.6 * gpus * summary.makespan_s / 3600)
    prefill = next(each for each in summary.pools if each.name == "p")
    expected = 3.6 * prefill.gpus * summary.makespan_s / 3600 / 4_000 * 1e6
    assert summary.cost.per_million_input_tokens == pytest.approx(expected)
    assert simulate(SimulationConfig.model_validate(tree), rows).summary.cost is None


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ({"gpu_hour": {"h100": 2.0}}, "prices: found none for h200, expected the price of each GPU per hour"),
        ({}, "prices: gpu_hour: missing, expected the price of each GPU per hour, as {h200: 3.5}"),
        ({"gpu_hour": {"h200": -1}}, "prices.gpu_hour.h200: found -1, expected at least 1e-09"),
        ("none.yaml", "none.yaml"),
    ],
)
def test_a_price_list_that_says_too_little_is_refused(prices: object, expected: str, tmp_path: Path) -> None:
    tree = config([pool("m", "mixed")]).model_dump(mode="json", exclude_none=True)
    with pytest.raises(InputError) as error:
        plan_simulation(parse_config({**tree, "prices": prices}, tmp_path, "c.yaml"))
    assert expected in str(error.value)


def test_idle_decode_of_a_run_is_nowhere_near_the_limit() -> None:
    """One request of 400 tokens a second on a GPU of its own."""
    law = power_law(get_gpu("h200"))
    rows = [(5_000_000 * index, 200, 100) for index in range(3)]
    energy = simulate(config([pool("p", "prefill", tp=1), pool("d", "decode", tp=1)]), rows).summary.energy
    assert law is not None
    assert energy is not None
    assert energy.pools_w["p"] < 1.05 * law.ready_w
    assert energy.pools_w["d"] < 1.5 * law.ready_w
