"""What drafts in a pool: the layer or model of its configuration, checked against the model that verifies."""

from __future__ import annotations

from aicb import Drafter, Drafting, Model, Partition, Precision, load_model
from aicb.operators.memory import draft_weight_bytes
from boundary.errors import InputError
from vidur_pd.config import EngineConfig, PoolConfig
from vidur_pd.config.speculative import SpeculativeConfig


def drafting_of(pool: PoolConfig, engine: EngineConfig) -> Drafting | None:
    """Speculative decoding, where the pool decodes."""
    asked = engine.speculative
    if asked is None or pool.role == "prefill":
        return None
    return Drafting(asked.drafts, asked.acceptance, asked.method, asked.match)


def drafter_of(
    pool: PoolConfig, asked: SpeculativeConfig, field: str, target: tuple[Model, Partition, Precision], longest: int
) -> Drafter | None:
    """What drafts on the GPUs of a pool that decodes; ``None``: the host.

    Args:
        pool, asked, field: the pool, what it is to draft by, and the field that says so.
        target: the model that verifies, and how it is served.
        longest: most tokens of a request.

    Raises: InputError, where the drafter does not go with target and pool.
    """
    match asked.method:
        case "ngram":
            return None
        case "mtp":
            return Drafter.mtp(*target)
    if pool.role == "decode":
        raise InputError(
            f"{field}.method: found {asked.method} in pool {pool.name}, expected mtp or ngram where KV comes from "
            "another pool, as that of a drafter is not handed over"
        )
    return Drafter.eagle(*target) if asked.method == "eagle" else _draft_model(asked, field, target, longest)


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
