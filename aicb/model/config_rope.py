"""RoPE of a ``config.json``: the longest context, and the share of a head that turns."""

from __future__ import annotations

from aicb.model.config_fields import MOST_CONTEXT_TOKENS, Fields

_LENGTHS = (
    *("n_positions", "max_seq_len", "seq_length", "max_target_positions"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
"""Other names of the stated length."""
_FACTORED = ("linear", "dynamic", "yarn", "llama3")
_PLAIN = ("default", "mrope")
_TYPES = (*_PLAIN, *_FACTORED, "longrope", "su")
_OLD_NAMES = {"longrope": "su", "default": "mrope"}
"""What ``type`` may say where ``rope_type`` says the newer name."""


def max_context_tokens(fields: Fields) -> int:
    """Tokens of a prompt and its output, at most, as vLLM derives them (18ec662, ``_get_and_verify_max_len`` in
    ``vllm/config/model.py``).

    The smallest of the stated lengths, which the factor of linear or dynamic scaling multiplies; with YaRN the length
    before scaling times its factor, whatever is stated. Llama 3's and LongRoPE's scaling is in what is stated: a model
    with LongRoPE starts in vLLM with the length before scaling and takes this one on request.
    """
    stated = _stated_tokens(fields)
    block = _block(fields)
    kind = "default" if block is None else _rope_type(block)
    if block is None or kind not in _FACTORED:
        return stated
    factor = block.number("factor", at_least=1, at_most=MOST_CONTEXT_TOKENS)
    if kind == "llama3":
        return stated
    tokens = factor * (_original_tokens(fields, block) if kind == "yarn" else stated)
    if tokens > MOST_CONTEXT_TOKENS:
        raise block.refuse("factor", f"a context of at most {MOST_CONTEXT_TOKENS} tokens, not {tokens:.0f}")
    return int(tokens)


def partial_rotary_factor(fields: Fields) -> float:
    """Share of a head that turns. Transformers 5 writes it into the block of the scaling."""
    block = _block(fields)
    name = "partial_rotary_factor"
    return (block if block is not None and block.has(name) else fields).fraction(name, default=1.0)


def _stated_tokens(fields: Fields) -> int:
    if fields.has("model_max_length"):
        return fields.integer("model_max_length", at_most=MOST_CONTEXT_TOKENS)
    given = ["max_position_embeddings", *(name for name in _LENGTHS if fields.has(name))]
    return min(fields.integer(name, at_most=MOST_CONTEXT_TOKENS) for name in given)


def _original_tokens(fields: Fields, block: Fields) -> int:
    """Tokens before scaling; a value outside the block has priority (``standardize_rope_params`` of Transformers 5)."""
    name = "original_max_position_embeddings"
    for place in (fields, block):
        if place.has(name):
            return place.integer(name, at_most=MOST_CONTEXT_TOKENS)
    return fields.integer("max_position_embeddings", at_most=MOST_CONTEXT_TOKENS)


def _block(fields: Fields) -> Fields | None:
    """The scaling; ``rope_parameters`` is its name in Transformers 5."""
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.value(name)
        if value is not None and not isinstance(value, dict):
            raise fields.refuse(name, "an object or nothing")
        if value:
            return Fields(value, f"{fields.where}: {name}")
    return None


def _rope_type(block: Fields) -> str:
    for name, value in block.values.items():
        if isinstance(value, dict):
            raise block.refuse(name, "one scaling for all layers, not one for each kind")
    name = "rope_type" if block.has("rope_type") or not block.has("type") else "type"
    kind = block.value(name)
    if kind is None and not block.has("factor"):
        kind = "default"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise block.refuse(name, f"one of {', '.join(_TYPES)}")
    if name == "rope_type" and block.has("type") and block.value("type") not in (kind, _OLD_NAMES.get(kind)):
        raise block.refuse("type", f"{kind}, as rope_type is")
    if kind in _PLAIN and block.has("factor"):
        raise block.refuse("factor", f"nothing with {name} {kind}")
    return kind
