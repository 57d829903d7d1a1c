"""The first-token rule: which side of a KV transfer produces the token that a user sees first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vidur_pd.workload.request import Request


@dataclass(frozen=True, slots=True)
class FirstTokenRule:
    """What becomes of the token that the prefill instance samples at the end of a prompt."""

    waits_for_kv: bool
    """The user does not get it before the KV has arrived at the decode instance."""
    recomputed_tokens: int
    """Last tokens of the context that the decode instance computes again; with one, it samples the first token itself
    and that of the prefill instance is discarded."""

    @property
    def is_delivered_after_prefill(self) -> bool:
        return not self.waits_for_kv

    @property
    def is_delivered_after_transfer(self) -> bool:
        return self.waits_for_kv and self.recomputed_tokens == 0

    def must_travel(self, request: Request) -> bool:
        """A single missing token is sampled by the prefill instance, unless the decode instance computes it again."""
        missing = request.prompt_tokens + request.output_tokens - request.context_tokens
        return missing > 1 or self.recomputed_tokens > 0

    def computed_tokens(self, request: Request) -> int:
        """Tokens of the context that the decode instance need not compute once the KV has arrived."""
        return request.context_tokens - self.recomputed_tokens

    def delivered_tokens(self, request: Request, *, is_prefilled: bool) -> int:
        """Tokens that the user has of a request whose KV is lost before it has arrived."""
        return request.generated_tokens - int(is_prefilled and self.waits_for_kv)


FIRST_TOKEN_RULES: Final = {
    "prefill": FirstTokenRule(waits_for_kv=False, recomputed_tokens=0),
    "decode_after_transfer": FirstTokenRule(waits_for_kv=True, recomputed_tokens=0),
    "decode_recompute": FirstTokenRule(waits_for_kv=True, recomputed_tokens=1),
}
"""By ``kv_transfer.first_token``. Splitwise and DistServe; SGLang; vLLM's connectors."""
