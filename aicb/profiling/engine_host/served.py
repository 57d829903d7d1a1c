"""What is asked of an engine that is measured, whichever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, Literal, Protocol

Framework = Literal["vllm", "sglang"]
Recording = dict[str, Any]
FOLDER_VARIABLE = "AICB_HOST_STAMPS"
"""Environment variable: the folder that an engine's processes leave their stamps in."""


@dataclass(frozen=True, slots=True)
class DraftsUnderTest:
    """Speculative decoding whose drafts are kept at random (vLLM's synthetic rejection), whatever the weights are."""

    method: str
    """As vLLM names it: ``mtp``, ``eagle``, ``draft_model``."""
    acceptance: tuple[float, ...]
    """[drafts] probability of each, given that those before it are kept."""
    folder: str | None = None
    """Of the ``config.json`` of what drafts; ``None``: the model has it."""

    def arguments(self) -> dict[str, Any]:
        """``speculative_config``."""
        kept = [float(rate) for rate in accumulate(self.acceptance, mul)]
        return {
            "method": self.method,
            "num_speculative_tokens": len(self.acceptance),
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": kept,
            **({"model": self.folder} if self.folder else {}),
        }

    @property
    def tokens_per_step(self) -> float:
        return 1.0 + float(sum(accumulate(self.acceptance, mul)))


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """What runs: a model's configuration with random weights, on so many GPUs."""

    folder: str
    """Of the model's ``config.json``."""
    tp: int = 1
    dp: int = 1
    """Data-parallel ranks, each with a core of its own."""
    shares_experts: bool = False
    """Whether all ranks divide the experts among them (``enable_expert_parallel``)."""
    arguments: dict[str, Any] | None = None
    """More of the engine's own arguments."""
    drafts: DraftsUnderTest | None = None
    framework: Framework = "vllm"


class ServedEngine(Protocol):
    """An engine with stamps inside, whose client is in this process."""

    packages: tuple[str, ...]
    """Whose versions tell what ran; the engine's first."""

    def outputs(self, prompt: Sequence[int], tokens: int, name: str) -> AsyncIterator[int]:
        """A request with so many tokens of answer; yields the tokens of each output as it comes."""

    async def call(self, what: str) -> list[Any]:
        """What each worker answers to ``start_stamps``, ``leave_stamps``, ``start_trace`` or ``end_trace``."""

    def read_back(self) -> Recording:
        """What the engine has made of its arguments: ``args``, ``kv_blocks``, ``collectives``, ``norm_kernel``."""

    def shutdown(self) -> None: ...
