"""Operators at both ends of a model: embedding, final norm, LM head, sampling."""

from __future__ import annotations

from dataclasses import replace

from aicb.model.architecture import Model
from aicb.model.precision import ELEMENT_BYTES, ceil_div
from aicb.operators.build import ACTIVATION_BYTES, RankShape, communicate, elementwise, gemm, tp_all_reduce
from aicb.operators.operator import Operator, Phase


def embedding_operators(model: Model, shape: RankShape, tokens: int) -> list[Operator]:
    """Lookup in a table divided by vocabulary, and the all-reduce that completes the rows."""
    lookup = elementwise("embedding", "embedding", (tokens, model.hidden), 2 * ACTIVATION_BYTES, phase=Phase.HEAD)
    lookup = replace(lookup, weight_elements=ceil_div(model.vocab, shape.tp) * model.hidden)
    return [lookup, *tp_all_reduce("embedding_all_reduce", tokens, shape)]


def head_operators(model: Model, shape: RankShape, rows: int) -> list[Operator]:
    """Final norm, LM head, gather of logits and sampling of ``rows`` rows.

    Gathered logits lie rank by rank; those of several rows are copied so that rows are whole. Sampling casts the bf16
    logits to fp32 and takes the arg-max: 2 + 4 + 4 bytes per logit. A tied head has no weights of its own unless the
    embedding is on another stage.
    """
    norm = elementwise(
        "final_norm",
        "add_rms_norm",
        (rows, model.hidden),
        4 * ACTIVATION_BYTES,
        weights=model.hidden,
        phase=Phase.HEAD,
    )
    columns = ceil_div(model.vocab, shape.tp)
    head = gemm("lm_head", (rows, columns, model.hidden), "bf16", phase=Phase.HEAD)
    if model.has_tied_embeddings and shape.partition.pp == 1:
        head = replace(head, weight_elements=0)
    listed = [norm, head]
    if shape.tp > 1:
        size_bytes = rows * columns * shape.tp * ACTIVATION_BYTES
        listed.append(communicate("logits_all_gather", "all_gather", size_bytes, "tp"))
        if rows > 1:
            size = (rows, model.vocab)
            listed.append(elementwise("logits_join", "logits_join", size, 2 * ACTIVATION_BYTES, phase=Phase.HEAD))
    sampled_bytes = ACTIVATION_BYTES + 2 * ELEMENT_BYTES["fp32"]
    listed.append(elementwise("sampling", "sampling", (rows, model.vocab), sampled_bytes, phase=Phase.HEAD))
    return listed
