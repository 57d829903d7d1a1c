"""What drafts in a pool: the layer or model of its configuration, checked against the model that verifies."""

from __future__ import annotations

from aicb import Drafter, Model, Partition, Precision, load_model
from aicb.operators.memory import draft_weight_bytes
from boundary.errors import InputError
from vidur_pd.config.speculative import SpeculativeConfig


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
            return Drafter.mtp(*target)
        case "eagle":
            return Drafter.eagle(*target)
        case "draft_model":
            return _draft_model(asked, field, target, longest)


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
