"""What drafts in a pool: the layer or model of its configuration, checked against the model that verifies.

A layer needs the hidden states of prompts. Where these are computed elsewhere, it runs there over them, and its KV is
handed over with the model's.
"""

from __future__ import annotations

import logging
from functools import cache

from aicb import Drafter, Drafting, Model, Partition, Precision, load_model
from aicb.operators.memory import draft_weight_bytes
from boundary.errors import InputError
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.config.speculative import SpeculativeConfig

_log = logging.getLogger(__name__)


def speculation_of(config: SimulationConfig, pool: PoolConfig) -> SpeculativeConfig | None:
    """How the decodes of a pool are drafted; ``None``: they are not."""
    return config.engine_of(pool).speculative if config.decodes(pool) else None


def drafting_of(asked: SpeculativeConfig) -> Drafting:
    return Drafting(asked.drafts, asked.acceptance, asked.method, asked.match)


def layer_fed_by(config: SimulationConfig, pool: PoolConfig) -> SpeculativeConfig | None:
    """What drafts by a layer in pools that get KV from this one, which only prefills."""
    if config.decodes(pool):
        return None
    fed = (speculation_of(config, other) for other in config.cluster.pools if config.hands_over(other))
    return next((asked for asked in fed if asked is not None and drafting_of(asked).is_by_layer), None)


def drafter_of(
    asked: SpeculativeConfig, field: str, target: tuple[Model, Partition, Precision], longest: int
) -> Drafter | None:
    """What drafts on the GPUs of a pool that decodes; ``None``: the host.

    Args:
        asked, field: what it is to draft by, and the field that says so.
        target: the model that verifies, and how it is served.
        longest: most tokens of a request.

    Raises: InputError, where the drafter does not go with the target.
    """
    match asked.method:
        case "ngram":
            return None
        case "mtp":
            if not target[0].draft_layers:
                _warn_of_layer(f"{field}.method", target[0].name)
            return Drafter.mtp(*target)
        case "eagle":
            return Drafter.eagle(*target)
        case "draft_model":
            return _draft_model(asked, field, target, longest)


@cache
def _warn_of_layer(field: str, model: str) -> None:
    """Once in a process, however many configurations it simulates."""
    _log.warning(
        "%s: found mtp, but %s is published without such a layer; one of its last layer's kind is assumed", field, model
    )


def _draft_model(
    asked: SpeculativeConfig, field: str, target: tuple[Model, Partition, Precision], longest: int
) -> Drafter:
    assert asked.draft_model is not None, "checked with the configuration"
    try:
        model = load_model(asked.draft_model)
        drafter = Drafter.of_model(model, *target, tp=asked.draft_tp)
        draft_weight_bytes(drafter, target[1])
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        wrong = name if name in ("draft_model", "draft_tp") else "draft_model"
        raise InputError(f"{field}.{wrong}: {reason if name in (wrong, 'model') else error}") from None
    if model.max_context_tokens < longest:
        raise InputError(
            f"{field}.draft_model: found {model.name} with a context of {model.max_context_tokens} tokens, expected at "
            f"least the {longest} of engine.max_model_len"
        )
    return drafter
