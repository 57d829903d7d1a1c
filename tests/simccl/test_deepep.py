"""DeepEP's kernels in closed form against published and measured times."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simccl import Algorithm, ExpertChoice, InputError
from simccl.engines.deepep import expert_times_us
from simccl.engines.expert_mode import Phase
from tests.simccl.arrangements import arranged

LOW, NORMAL = Algorithm.LOW_LATENCY, Algorithm.HIERARCHICAL
V3 = ExpertChoice(experts=256, top_k=8)
KERNELS = Path(__file__).parents[3] / "shared" / "data" / "kernels"


def times(mode: Algorithm, phase: Phase, tokens: list[int], nodes: int = 1) -> list[float]:
    at = arranged("h100", nodes, 8)
    return expert_times_us(mode, phase, np.array(tokens), hidden=7168, choice=V3, at=at).tolist()


# One node of 8 H100, hidden 7168, top-8 of 256 experts, µs (aiconfigurator 095f58a).
@pytest.mark.parametrize(
    ("mode", "phase", "measured_us"),
    [
        (LOW, Phase.DISPATCH, {1: 13.2, 128: 36.7, 1024: 224.1}),
        (LOW, Phase.COMBINE, {1: 14.4, 128: 67.0, 1024: 489.4}),
        (NORMAL, Phase.DISPATCH, {1: 26.2, 128: 48.6, 1024: 154.2, 4096: 498.4}),
        (NORMAL, Phase.COMBINE, {1: 48.2, 128: 82.3, 1024: 296.0, 4096: 960.6}),
    ],
)
def test_one_node_takes_about_the_published_times(mode: Algorithm, phase: Phase, measured_us: dict[int, float]) -> None:
    tokens = [t for t in measured_us if t > 1 or phase is Phase.DISPATCH]
    np.testing.assert_allclose(times(mode, phase, tokens), [measured_us[t] for t in tokens], rtol=0.12)


def test_large_low_latency_dispatches_between_nodes_are_bound_by_the_nic() -> None:
    """Two nodes, 10⁶ tokens: half of 8 messages of 7,408 bytes each at 48.0 GB/s are 617 µs per thousand tokens."""
    (time_us,) = times(LOW, Phase.DISPATCH, [1_000_000], nodes=2)
    assert time_us == pytest.approx(4 * 7408 * 1e6 / 48.0e3, rel=0.01)


def test_tokens_for_one_node_are_copied_once_between_nodes() -> None:
    """Two nodes never need more than one copy over the NIC, and NVLink binds: of 16 ranks with 16 of the 256 experts
    each, 16 · (1 − C(240, 8) / C(256, 8)) = 6.5235 are distinct."""
    (time_us,) = times(NORMAL, Phase.DISPATCH, [10**8], nodes=2)
    assert time_us == pytest.approx(1e8 * 7472 * 6.5235 / 250.6e3, rel=0.001)


def test_no_tokens_take_no_time_and_more_take_longer() -> None:
    for mode in (LOW, NORMAL):
        for nodes in (1, 2, 8):
            found = times(mode, Phase.COMBINE, [0, 1, 2, 64, 4096], nodes)
            assert found[0] == 0
            assert found == sorted(found)


def test_what_was_not_measured_is_refused() -> None:
    options = {"hidden": 7168, "choice": V3}
    with pytest.raises(InputError, match="gpu: found b200, expected a Hopper GPU"):
        expert_times_us(LOW, Phase.DISPATCH, np.array([1]), at=arranged("b200", 1, 8), **options)
    with pytest.raises(InputError, match="mode: found ring"):
        expert_times_us(Algorithm.RING, Phase.DISPATCH, np.array([1]), at=arranged("h100", 1, 8), **options)
    with pytest.raises(InputError, match="tokens: found -1"):
        expert_times_us(LOW, Phase.DISPATCH, np.array([-1]), at=arranged("h100", 1, 8), **options)


@pytest.mark.skipif(not KERNELS.is_dir(), reason=f"no measurements at {KERNELS.name}")
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("several", [False, True])
def test_low_latency_times_are_near_all_measured_ones(phase: Phase, several: bool) -> None:
    """H100, from 128 experts and four per token; 1 or 2, 4 and 8 nodes."""
    rows = pd.read_csv(KERNELS / "deepep_ll.csv.gz")
    rows = rows[(rows.system == "h100_sxm") & (rows.topk >= 4) & (rows.num_experts >= 128)]
    rows = rows[(rows.node_num > 1) == several]
    errors = []
    for (nodes, hidden, top_k), group in rows.groupby(["node_num", "hidden_size", "topk"]):
        at, tokens = arranged("h100", int(nodes), 8), group.tokens_per_rank.to_numpy()
        choice = ExpertChoice(256, int(top_k))  # no matter how many, as each gets its own message
        found = expert_times_us(LOW, phase, tokens, hidden=int(hidden), choice=choice, at=at)
        errors.append((found / group[f"{phase}_us"] - 1).abs())
    error = pd.concat(errors)
    assert len(error) > 70
    assert error.median() < (0.03 if several else 0.07)
    assert error.quantile(0.9) < (0.08 if several else 0.22)


@pytest.mark.skipif(not KERNELS.is_dir(), reason=f"no measurements at {KERNELS.name}")
@pytest.mark.parametrize(
    ("nodes", "sms", "median", "most"), [(1, 24, 0.08, 0.25), (2, 20, 0.03, 0.08), (4, 20, 0.04, 0.14)]
)
def test_normal_times_are_near_the_measured_ones(nodes: int, sms: int, median: float, most: float) -> None:
    """H100, hidden 7168, top-8 of 256 experts; transmission alone, as notification is not modelled."""
    rows = pd.read_csv(KERNELS / "deepep_normal.csv.gz")
    rows = rows[(rows.system == "h100_sxm") & (rows.node_num == nodes) & (rows.hidden_size == 7168)]
    rows = rows[(rows.num_experts == 256) & (rows.topk == 8) & (rows.dispatch_sms == sms) & (rows.combine_sms == sms)]
    assert len(rows) > 20
    for phase in Phase:
        found = np.array(times(NORMAL, phase, rows.tokens_per_rank.tolist(), nodes))
        error = (found / rows[f"{phase}_transmit_us"] - 1).abs()
        assert error.median() < median
        assert error.max() < most
