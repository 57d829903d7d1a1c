"""Weights that engines under measurement get."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from aicb.profiling.engine_host.weights import draw_weights  # noqa: E402


class GemmaNorm(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 7.0))


def test_parameters_are_as_spread_as_those_of_a_model() -> None:
    model = torch.nn.Module()
    model.embed_tokens = torch.nn.Embedding(400, 50)
    model.o_proj, model.up_proj = torch.nn.Linear(200, 100), torch.nn.Linear(200, 100)
    model.input_layernorm, model.q_norm = torch.nn.RMSNorm(16), GemmaNorm()
    stored = torch.zeros(3, 64, 64, dtype=torch.float8_e4m3fn)
    model.w13_weight = torch.nn.Parameter(stored, requires_grad=False)
    model.register_buffer("w13_weight_scale_inv", torch.zeros(3, 1, 1))
    model.register_buffer("k_scale", torch.tensor(5.0))
    model.register_buffer("expert_ids", torch.arange(3))
    model.register_buffer("expert_mask", torch.ones(3, dtype=torch.uint8))
    draw_weights(model)
    assert model.embed_tokens.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert model.o_proj.weight.std().item() == pytest.approx(0.002, rel=0.05)
    assert model.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.o_proj.bias.abs().max().item() == 0.0
    assert model.input_layernorm.weight.unique().tolist() == [1.0]
    assert model.q_norm.weight.unique().tolist() == [0.0]
    weights = model.w13_weight.float() * model.w13_weight_scale_inv
    assert weights.std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(model.w13_weight.float()[0], model.w13_weight.float()[1])
    assert (model.k_scale.item(), model.expert_ids.tolist()) == (5.0, [0, 1, 2])
    assert model.expert_mask.tolist() == [1, 1, 1]


def test_experts_in_mxfp4_are_as_spread() -> None:
    """Codes of e2m1, two a byte, times powers of two."""
    codes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    model = torch.nn.Module()
    for name, shape in (("w2_weight", (2, 64, 256)), ("w2_weight_scale", (2, 64, 16))):
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.uint8), requires_grad=False))
    draw_weights(model)
    halves = torch.stack([model.w2_weight & 15, model.w2_weight >> 4]).long()
    values = codes[halves % 8] * (1 - 2 * (halves // 8)) * 2.0 ** (model.w2_weight_scale.unique().item() - 127)
    assert (values.mean().item(), values.std().item()) == (
        pytest.approx(0.0, abs=1e-3),
        pytest.approx(0.0229, rel=0.02),
    )
    assert not torch.equal(model.w2_weight[0], model.w2_weight[1])


def test_the_same_name_has_the_same_weights() -> None:
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    draw_weights(first)
    draw_weights(second)
    assert torch.equal(first.weight, second.weight)
