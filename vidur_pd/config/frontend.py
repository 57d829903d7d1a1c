"""What a configuration may say about the frontend: what lies between clients and engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, NotBool, Section
from boundary.yaml_text import read_yaml_mapping

FOLDER: Final = Path(__file__).parent / "data" / "frontend"

Microseconds = Annotated[float, NotBool, Field(ge=0, le=1e7, allow_inf_nan=False)]


@cache
def measured(name: str) -> Mapping[str, Any]:
    """Measured times of a frontend."""
    return read_yaml_mapping(FOLDER / f"{name}.yaml", "times of a frontend")


class NoFrontend(Section):
    """Clients call the engine in its own process; what remains is ``engine.request_latency_ms``."""

    kind: Literal["none"] = "none"


class VllmFrontend(Section):
    """vLLM's OpenAI server: processes with one loop and one tokeniser each; requests take them in turns.

    Fields without a default here are those that were measured of vLLM 0.24.0 (``vidur_pd/config/data/frontend``).
    """

    kind: Literal["vllm"]
    servers: Annotated[Count, Field(le=2**12)] | None = None
    """API server processes; ``None``: one for each instance that requests enter, as ``vllm serve`` has it."""
    prepare_us: Microseconds
    """A request before it is the loop's: parsed and tokenised, one request of a server after another."""
    prepare_token_us: Microseconds
    """The same for each token of its prompt."""
    request_us: Microseconds
    """Loop: a request, up to its message to the engine."""
    delay_us: Microseconds
    """Of a request in sockets and between processes, on both ways together, where nothing waits."""
    message_us: Microseconds
    """Loop: the message of an iteration that has tokens for it."""
    process_token_us: Microseconds
    """Loop: each of these tokens (detokenised, queued), before any of them is sent."""
    send_token_us: Microseconds
    """Loop: each of these tokens on its way to its client, one after another."""

    @model_validator(mode="before")
    @classmethod
    def _with_measured_times(cls, tree: Any) -> Any:
        return {**measured("vllm-0.24.0"), **tree} if isinstance(tree, Mapping) else tree


FrontendConfig = Annotated[NoFrontend | VllmFrontend, Field(discriminator="kind")]


def most_tokens_per_s() -> float:
    """Output tokens that one measured API server of vLLM can pass, in iterations of many."""
    times_us = measured("vllm-0.24.0")
    return 1e6 / (float(times_us["process_token_us"]) + float(times_us["send_token_us"]))
