"""What a configuration says of speculative decoding, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo, model_validator

from aicb.iteration.speculative import ACCEPTANCE_OF_MTP, ACCEPTANCES_OF_MTP, MOST_DRAFTS
from boundary.fields import Count, Probability, Section
from boundary.quoting import quoted


def _acceptance(value: object, info: ValidationInfo) -> float | tuple[float, ...]:
    """One probability, or one for each draft."""
    if not isinstance(value, list | tuple):
        return _probability(value)
    drafts = info.data.get("drafts", len(value))
    if len(value) != drafts:
        raise ValueError(f"found {len(value)} values, expected one, or one for each of {drafts} drafts")
    return tuple(_probability(each) for each in value)


def _as_read(value: float | Sequence[float]) -> float | list[float]:
    return value if isinstance(value, float) else list(value)


def _probability(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"found {quoted(value)}, expected a number or a list of numbers")
    if not 0 <= value <= 1:
        raise ValueError(f"found {quoted(value)}, expected {'at least 0' if value < 0 else 'at most 1'}")
    return float(value)


def _only_with(*methods: str) -> AfterValidator:
    """A field that other methods leave at its default."""

    def check(value: Any, info: ValidationInfo) -> Any:
        method, usual = info.data.get("method"), 1.0 if info.field_name == "match" else None
        if method is not None and method not in methods and value != usual:
            raise ValueError(f"found {quoted(value)}, expected it only with method {', '.join(methods)}, not {method}")
        return value

    return AfterValidator(check)


def _stated_with_a_model(value: str | None, info: ValidationInfo) -> str | None:
    if value is None and info.data.get("method") == "draft_model":
        raise ValueError("found none, expected the name or path of a model with method draft_model")
    return value


class SpeculativeConfig(Section):
    """Speculative decoding (`aicb.iteration.speculative`)."""

    method: Literal["mtp", "eagle", "draft_model", "ngram"] = "mtp"
    """What drafts: a multi-token-prediction layer, an EAGLE head, a smaller model, or a lookup of n-grams. A model
    that is published without such a layer gets one of its last layer's kind, and the run says so."""
    drafts: Annotated[int, Field(ge=1, le=MOST_DRAFTS)] = 1
    """Tokens drafted and verified per request and step."""
    acceptance: Annotated[float | tuple[float, ...], PlainValidator(_acceptance), PlainSerializer(_as_read)]
    """Probability that a draft is accepted, given those before it: one for all, or a list of one for each. To be
    stated, as it depends on drafter and text; with ``mtp`` by default what is published of DeepSeek's layer: 0.85 for
    one draft, 0.78, 0.51 and 0.65 for up to three."""
    draft_model: Annotated[
        str | None,
        AfterValidator(_stated_with_a_model),
        _only_with("draft_model"),
        Field(validate_default=True),
    ] = None
    """Name or path of the smaller model."""
    draft_tp: Annotated[Count | None, _only_with("draft_model")] = None
    """Its tensor parallelism: 1, or that of the pool by default. vLLM 0.24 runs the latter alone."""
    match: Annotated[Probability, _only_with("ngram")] = 1.0
    """Probability that the lookup finds drafts for a request in a step."""

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping) or tree.get("method", "mtp") != "mtp":
            return tree
        drafts = tree.get("drafts", 1)
        if drafts == 1:
            return {"acceptance": ACCEPTANCE_OF_MTP, **tree}
        if isinstance(drafts, int) and 1 < drafts <= len(ACCEPTANCES_OF_MTP):
            return {"acceptance": ACCEPTANCES_OF_MTP[:drafts], **tree}
        return tree
