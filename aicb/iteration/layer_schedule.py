"""Schedule of two half batches within a layer: which compute each dispatch and each combine hides behind.

A half's work between its collectives is of unequal length, and a collective hides behind the piece that the schedule
runs meanwhile, not behind the mean. With P (norms and projections up to the attention), K (attention, its output
projection, router), S (shared expert), E (routed experts), D (dispatch) and C (combine) of the halves a and b:

| schedule | hides D_a | hides D_b | hides C_a | hides C_b | |
|---|---|---|---|---|---|
| ``whole`` | P + K + S of b | E of a | E of b | P + K + S of a | DeepSeek and SGLang in prefills, vLLM always |
| ``split`` | S of a, P of b | S of b, P of a | K of b | K of a | DeepSeek and SGLang in decodes; E hides nothing |

What a piece of a follows is of the next layer: the first layer's P and K of a run alone, as does the last layer's C_b.

Sources: deepseek-ai/profile-data, ``assets/prefill.jpg`` and ``assets/decode.jpg``; SGLang, ``operations_strategy.py``
(``_compute_moe_deepseek_blog_prefill``: ``tbo_delta_stages`` 0, ``…_decode``: 2); vLLM, "Dual batch overlap"
(docs/design/dbo.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Literal, NamedTuple

from aicb.iteration.overlap import TwoBatchOverlap, check_share
from aicb.iteration.pricing import PHASES, IterationCost
from aicb.operators.operator import Operator, Phase

LayerSchedule = Literal["whole", "split"]


class Piece(IntEnum):
    """Place of an operator that depends on tokens alone between the collectives of a layer with experts."""

    PREPARE = 0
    ATTEND = 1
    SHARED = 2
    OTHER = 3
    """Of no such layer."""


_ATTEND = frozenset(
    {"output_gate", "o_quant", "o", "gdn_out_quant", "gdn_out", "post_attention_norm", "router", "topk"}
)


def piece_of(operator: Operator) -> Piece:
    """The piece that an operator belongs to, by its name."""
    if operator.name in _ATTEND:
        return Piece.ATTEND
    if operator.name.startswith("shared_"):
        return Piece.SHARED
    if operator.name == "embedding" or operator.name.startswith("ffn_"):
        return Piece.OTHER
    return Piece.PREPARE


class LayerParts(NamedTuple):
    """Compute of a half batch [ps], all layers with experts together."""

    prepare_ps: float
    attend_ps: float
    shared_ps: float
    experts_ps: float
    other_ps: float
    """Layers without experts, embedding, head: no collective runs meanwhile."""

    @property
    def total_ps(self) -> float:
        return sum(self)


PricedPieces = Mapping[Piece, Mapping[Phase, int]]
"""[pieces][phases] time of the operators that depend on tokens alone, at the reference clock."""


def divide(cost: IterationCost, priced: PricedPieces, layers: tuple[int, int]) -> LayerParts:
    """Parts of an iteration's compute.

    What depends on tokens alone is divided as its kernels are, each phase in proportion to the time that the iteration
    has for it. Attention follows the projections, with the products that absorb latents.

    Args:
        cost: of the iteration.
        priced: of its tokens.
        layers: with experts, and all.
    """
    phase_ps = dict(zip(PHASES, cost.phase_ps, strict=True))
    piece_ps = dict.fromkeys(Piece, 0.0)
    for phase in (Phase.DENSE, Phase.NORM):
        listed_ps = max(sum(priced[piece][phase] for piece in Piece), 1)
        for piece in Piece:
            piece_ps[piece] += priced[piece][phase] * phase_ps[phase] / listed_ps
    share = layers[0] / layers[1]
    router_ps = float(min(priced[Piece.ATTEND][Phase.EXPERTS], phase_ps[Phase.EXPERTS]))
    parts = (
        share * piece_ps[Piece.PREPARE],
        share * (piece_ps[Piece.ATTEND] + phase_ps[Phase.ATTENTION]) + router_ps,
        piece_ps[Piece.SHARED],
        phase_ps[Phase.EXPERTS] - router_ps,
    )
    return LayerParts(*parts, max(cost.compute_ps - cost.host_ps - sum(parts), 0.0))


class Exchange(NamedTuple):
    """Collectives of a half batch on an idle fabric [ps], all layers together."""

    dispatch_ps: float
    combine_ps: float


class HalfBatch(NamedTuple):
    """What a half batch computes and sends."""

    parts: LayerParts
    exchange: Exchange


def layered_overlap(
    halves: tuple[HalfBatch, HalfBatch],
    layers: int,
    schedule: LayerSchedule,
    *,
    host_ps: float = 0.0,
    communication_sm_share: float = 0.0,
    communication_busy_share: float = 0.0,
) -> TwoBatchOverlap:
    """Time of two half batches whose collectives hide behind the pieces that ``schedule`` runs meanwhile.

    Args:
        halves: a and b.
        layers: layers with experts.
        schedule: see the module.
        host_ps: paid once.
        communication_sm_share: SMs that collectives keep from the compute that hides them, which takes 1 / (1 − share)
            as long.
        communication_busy_share: part of a collective in which it has all SMs, so that nothing hides it: sending and
            receiving of low-latency kernels, between which they hold none.

    Raises:
        InputError: a share outside 0 … 1.
    """
    check_share("communication_sm_share", communication_sm_share)
    check_share("communication_busy_share", communication_busy_share)
    place = _split if schedule == "split" else _whole
    alone_ps, hiding = place(*halves, 1.0 / max(layers, 1))
    slowdown = 1.0 / (1.0 - communication_sm_share)
    others_ps = sum(parts.other_ps for parts, _ in halves)
    return TwoBatchOverlap(
        alone_ps + others_ps + host_ps,
        [(slowdown * compute + communication_busy_share * there, there, share) for compute, there, share in hiding],
    )


Segments = list[tuple[float, float, float]]
"""(compute, communication, share of the layers) as in `TwoBatchOverlap`."""


def _split(a: HalfBatch, b: HalfBatch, last: float) -> tuple[float, Segments]:
    """(compute that hides nothing, segments); ``last``: share of one layer."""
    (first, sent), (second, sent_later) = a, b
    segments = [
        (first.shared_ps + second.prepare_ps, sent.dispatch_ps, 1.0),
        (second.attend_ps, sent.combine_ps, 1.0),
        (second.shared_ps + first.prepare_ps, sent_later.dispatch_ps, 1.0 - last),
        (second.shared_ps, sent_later.dispatch_ps, last),
        (first.attend_ps, sent_later.combine_ps, 1.0 - last),
        (0.0, sent_later.combine_ps, last),
    ]
    return first.experts_ps + second.experts_ps + last * (first.prepare_ps + first.attend_ps), segments


def _whole(a: HalfBatch, b: HalfBatch, last: float) -> tuple[float, Segments]:
    (first, sent), (second, sent_later) = a, b
    ahead, behind = (part.prepare_ps + part.attend_ps + part.shared_ps for part in (first, second))
    segments = [
        (behind, sent.dispatch_ps, 1.0),
        (first.experts_ps, sent_later.dispatch_ps, 1.0),
        (second.experts_ps, sent.combine_ps, 1.0),
        (ahead, sent_later.combine_ps, 1.0 - last),
        (0.0, sent_later.combine_ps, last),
    ]
    return last * ahead, segments
