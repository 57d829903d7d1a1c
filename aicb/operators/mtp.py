"""Multi-token prediction: one more layer that drafts tokens (DeepSeek-V3 report, arXiv 2412.19437, section 2.2).

The layer joins the last hidden state with the embedding of the newest token: two norms, a projection of ``[2h]`` to
``[h]``, one decoder layer as the last of the model. Embedding and LM head are the model's own; the final norm is not.
"""

from __future__ import annotations

from dataclasses import replace

from aicb.model.architecture import Model
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise, gemm, quant
from aicb.operators.operator import Operator


def draft_model(model: Model) -> Model:
    """The draft layer as a model of its own: embedding, one layer of the model's last kind, norm and head."""
    return replace(model, name=f"{model.name} draft layer", kinds=(model.layers[-1],), pattern=(0,))


def draft_parameters(model: Model) -> int:
    """Weights of the draft layer; embedding and head, which it shares, not counted again."""
    layer = model.layers[-1]
    norms = 5 * model.hidden
    projection = 2 * model.hidden**2
    return layer.attention.parameters(model.hidden) + layer.ffn.parameters(model.hidden) + norms + projection


def joining_operators(shape: RankShape, tokens: int) -> list[Operator]:
    """Norms of hidden state and embedding, and the projection of both, replicated on every rank."""
    hidden, count = shape.hidden, shape.count
    size = (tokens, hidden)
    listed = [
        elementwise(name, "rms_norm", size, 2 * ACTIVATION_BYTES, count=count, weights=hidden)
        for name in ("draft_hidden_norm", "draft_embedding_norm")
    ]
    if shape.is_fp8:
        listed.append(quant("draft_quant", tokens, 2 * hidden, count=count))
    return [*listed, gemm("draft_projection", (tokens, hidden, 2 * hidden), shape.precision.dense, count=count)]
