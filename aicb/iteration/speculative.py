"""Speculative decoding: what a step costs and how many tokens it yields.

A step of k drafts verifies k + 1 tokens per request with the model (the newest token and k drafts), then drafts k
tokens for the next step, one pass after another: the first runs over all tokens that were verified, so that the
drafter's KV follows, the others over one token per request. Draft i is accepted with probability a_i, given that those
before it were; one number stands for all positions:

    E[tokens per step] = 1 + m · (a_1 + a_1·a_2 + … + a_1·…·a_k), with one a and m = 1: (1 − a^(k+1)) / (1 − a)

m is the share of steps with drafts. A layer or a model always drafts; n-grams (prompt lookup) draft where the last
tokens of a request occur before in it.

| method | drafts by | passes | KV |
|---|---|---|---|
| ``mtp`` | a multi-token-prediction layer | over prompts and decodes | one layer |
| ``eagle`` | an EAGLE head (`aicb.operators.drafter`) | over prompts and decodes | one layer |
| ``draft_model`` | a smaller model | over prompts and decodes, one token more per request in the first | its own |
| ``ngram`` | the host, while it prepares the next step | none | none |

Source of passes: vLLM 0.24.0, ``vllm/v1/spec_decode/llm_base_proposer.py`` (`propose`, `set_inputs_first_pass`):
rejected tokens stay in the first pass, and chunks of prompts that sample nothing take part in all passes. Its drafters
replay piecewise graphs at most (`initialize_cudagraph_keys`).

Assumes that verification attends to all KV with every query (the causal mask among k + 1 tokens is ignored), that the
host hides behind all passes of a step together, and greedy drafts without a tree. The lookup of
n-grams costs no time here: no measurement of it is at hand. Tokens beyond the end of a request and the KV of rejected
drafts are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from aicb.iteration.pricing import IterationCost, in_turn
from aicb.operators.batch import Batch
from boundary.errors import InputError

MOST_DRAFTS = 16
"""Engines draft one to eight."""
ACCEPTANCE_OF_MTP = 0.85
"""DeepSeek-V3 report, section 5.4.3: 0.85 to 0.90 for one draft of its multi-token-prediction layer."""
ACCEPTANCES_OF_MTP = (0.78, 0.51, 0.65)
"""Where that one layer drafts two or three tokens, each given those before: 2.18 and 2.44 tokens per step (LMSYS,
"Accelerating SGLang with Multiple Token Prediction", 2025-07-17: DeepSeek-V3, windows of 3 and 4 tokens), of which the
first draft has 0.78 (vLLM pull request 41044: DeepSeek-V4, two drafts, 76 to 79 % and then 36 to 38 %)."""
DraftMethod = Literal["mtp", "eagle", "draft_model", "ngram"]


def acceptance_of_mtp(drafts: int) -> float | tuple[float, ...]:
    """What is published of DeepSeek's multi-token-prediction layer with so many drafts.

    Raises:
        InputError: nothing is.
    """
    if drafts == 1:
        return ACCEPTANCE_OF_MTP
    if drafts <= len(ACCEPTANCES_OF_MTP):
        return ACCEPTANCES_OF_MTP[:drafts]
    raise InputError(
        f"acceptance: found none for {drafts} drafts, expected it to be stated: published are those of 1 to "
        f"{len(ACCEPTANCES_OF_MTP)} drafts"
    )


@dataclass(frozen=True, slots=True)
class Drafting:
    """k drafts per step and how often the target model agrees.

    Raises:
        InputError: no drafts, an acceptance that is no probability, or not one of them per draft.
    """

    drafts: int = 1
    acceptance: float | tuple[float, ...] | None = None
    """Probability that a draft is accepted, given those before it; one for all, or one for each. ``None``:
    `acceptance_of_mtp`."""
    method: DraftMethod = "mtp"
    match: float = 1.0
    """Probability that n-grams find drafts for a request in a step."""

    def __post_init__(self) -> None:
        if not 1 <= self.drafts <= MOST_DRAFTS:
            raise InputError(f"Drafting.drafts: found {self.drafts}, expected 1 to {MOST_DRAFTS}")
        if self.acceptance is None:
            object.__setattr__(self, "acceptance", acceptance_of_mtp(self.drafts))
        if isinstance(self.acceptance, tuple) and len(self.acceptance) != self.drafts:
            raise InputError(
                f"Drafting.acceptance: found {len(self.acceptance)} values, "
                f"expected one for each of {self.drafts} drafts"
            )
        for name, value in (*(("acceptance", each) for each in self.acceptances), ("match", self.match)):
            if not 0.0 <= value <= 1.0:
                raise InputError(f"Drafting.{name}: found {value}, expected 0 to 1")
        if self.method != "ngram" and self.match != 1.0:
            raise InputError(f"Drafting.match: found {self.match}, expected 1 with {self.method}, which always drafts")

    @property
    def acceptances(self) -> tuple[float, ...]:
        """[drafts]"""
        assert self.acceptance is not None, "set when it is made"
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.drafts

    @property
    def queries(self) -> int:
        """Tokens per request that a step verifies."""
        return self.drafts + 1

    @property
    def expected_tokens(self) -> float:
        """Tokens per request and step, the one that verification itself yields included."""
        return 1.0 + self.match * float(np.cumprod(self.acceptances).sum())

    @property
    def covers_prompts(self) -> bool:
        """The drafter has KV of prompts, from passes of its own over them."""
        return self.method != "ngram"

    @property
    def extra_inputs(self) -> int:
        """Tokens per request of the first pass in addition to those of the step: a model that sees no hidden state
        takes the sampled token behind them (vLLM: `net_num_new_slots_per_request`)."""
        return 1 if self.method == "draft_model" else 0

    @property
    def lookahead_tokens(self) -> int:
        """KV slots that a scheduler keeps for the passes that follow a step (vLLM: `num_lookahead_tokens`)."""
        return self.drafts if self.covers_prompts else 0

    @property
    def is_by_layer(self) -> bool:
        """A layer behind the model drafts, from its hidden states (vLLM: ``use_eagle``)."""
        return self.method in ("mtp", "eagle")

    @property
    def drops_last_hit(self) -> bool:
        """The last block of a prefix hit is computed again for its hidden states, which no cache keeps."""
        return self.is_by_layer


@dataclass(frozen=True, slots=True)
class SpeculativeCost:
    """One step: verification by the model, then the passes that draft, all on the device."""

    verification: IterationCost
    draft_passes: tuple[IterationCost, ...]
    """Empty on pipeline stages before the last, and with n-grams."""
    expected_tokens: float
    """Per request."""

    @property
    def compute_ps(self) -> int:
        """All passes among steps like it, communication apart; what the host takes longer is in it."""
        passes = (self.verification, *self.draft_passes)
        return in_turn(passes, host_ps=sum(cost.host_ps for cost in passes)).in_sequence().compute_ps

    @property
    def compute_ps_per_token(self) -> float:
        """Per request and token it keeps: what plain decoding's ``compute_ps`` compares with."""
        return self.compute_ps / self.expected_tokens


def later(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """Decodes after ``tokens`` more tokens each."""
    return [replace(batch, kv_tokens=batch.kv_tokens + tokens) for batch in batches]


def first_inputs(batch: Batch, extra: int) -> Batch:
    """The batch whose tokens the first pass takes, decodes with as many queries as were verified and ``extra`` more:
    ``extra`` tokens more of each request, which at a prompt's end are one chunk with it."""
    return Batch(batch.new_tokens + np.where(batch.is_decode, 0, extra), batch.kv_tokens + extra, batch.logit_rows)
