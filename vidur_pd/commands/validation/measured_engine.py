"""What a user has recorded of an engine of vLLM or SGLang (``aicb profile engine``): the file, checked field by field.

JSON, plain or gzip: the engine's arguments and model, times of its prompts, decodes and loads [s], those of its host
[us], and the time of a launch in each phase. Phases are ``prefill``, ``decode`` and the names of loads, which begin
with ``serve_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from aicb import get_gpu, known_gpus, load_model
from aicb.iteration.host import MOST_US, OF_WORKERS, HostModel
from aicb.measurements.gpu import gpu_of_device
from aicb.model.architecture import GatedDeltaNet, Model
from aicb.model.hugging_face import model_from_config
from aicb.operators.norm_kernel import NormKernel
from boundary.errors import InputError
from boundary.fields import MOST_COUNT, MOST_SECONDS, Number
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text
from simccl import Stack
from vidur_pd.config.file import describe
from vidur_pd.config.speculative import SpeculativeConfig

EXPECTED: Final = "a file of aicb profile engine"
PROMPTS, DECODES, LOAD = "prefill", "decode", "serve_"
"""Phases; the last begins the names of loads."""
BETWEEN_WORKERS: Final = ("hand_over_us", "agree_us", "logits_us")
"""Times of a host that pass between workers, and are as slow as what passes in them."""
MOST_STEPS: Final = 40
"""Of a decode, the last before the first request ends."""
EARLY_DECODE: Final = {"n_out": 40, "compared_steps": 12}
"""Of ``decode``, as which recordings up to 2026-11 have what is ``steady``."""
_FLASHINFER = "Initialized FlashInfer Allreduce"
"""In an engine's log where its norms run in FlashInfer's all-reduce."""

Tree = dict[str, Any]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST_COUNT)]
Arrival = Annotated[float, Field(strict=True, ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Microseconds = Annotated[float, Field(strict=True, ge=0, lt=MOST_US, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Times = Annotated[tuple[Seconds, ...], Field(min_length=1)]
Prompts = Annotated[tuple[tuple[Count, Times], ...], Field(min_length=1)]
"""Tokens of prompts alone, and times to their first tokens."""


class _Part(BaseModel):
    """A part of the file; what it has besides is for other readers."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Arguments(_Part):
    """Engine arguments by vLLM's names, as far as they are simulated; what is absent is as in the engine's profile."""

    model: str | None = None
    tensor_parallel_size: Count = 1
    data_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    enable_expert_parallel: Flag | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Of vLLM only the KV blocks are taken."""
    enable_prefix_caching: Flag | None = None
    enable_chunked_prefill: Flag | None = None
    async_scheduling: Flag | None = None
    prompt_graph_sizes: tuple[Count, ...] | None = None

    @property
    def partition(self) -> dict[str, int]:
        """Degrees of a pool; vLLM spreads experts over all ranks, or over none."""
        tp, dp, pp = self.tensor_parallel_size, self.data_parallel_size, self.pipeline_parallel_size
        return {"tp": tp, "dp": dp, "pp": pp, "ep": tp * dp if self.enable_expert_parallel else 1}

    @property
    def engine(self) -> Tree:
        """Fields of ``engine`` that are stated."""
        stated = {
            "max_batched_tokens": self.max_num_batched_tokens,
            "max_seqs": self.max_num_seqs,
            "prefix_caching": self.enable_prefix_caching,
            "chunked_prefill": self.enable_chunked_prefill,
            "async_scheduling": self.async_scheduling,
            "prompt_graph_sizes": self.prompt_graph_sizes,
        }
        return {name: value for name, value in stated.items() if value is not None}


class Steady(_Part):
    """Requests of equal prompts that decode together."""

    prompt_tokens: Count = Field(alias="L")
    requests: Count = Field(alias="B")
    output_tokens: Annotated[int, Field(strict=True, ge=2, le=MOST_COUNT, alias="n_out")]
    step_s: Seconds = Field(alias="itl_p50")
    """Median of a step."""
    tokens_per_step: Annotated[float, Field(strict=True, gt=0, le=MOST_COUNT)] | None = None
    """Of a request, with drafts."""
    compared_steps: Count = MOST_STEPS

    @property
    def steps(self) -> int:
        """The last of a request that are compared."""
        return min(self.compared_steps, self.output_tokens - 1)


class Sent(_Part):
    """A request as it was sent."""

    model_config = ConfigDict(populate_by_name=True)

    arrival_s: Arrival = Field(0.0, alias="arrival")
    prompt_tokens: Count = Field(alias="n_in")
    output_tokens: Count = Field(alias="n_out")
    prefix: Annotated[Number, Field(strict=True)] | None = None
    """Which of the prefixes its prompt begins with."""
    prefix_tokens: Annotated[Number, Field(strict=True)] = Field(0, alias="n_prefix")


def _of_several_tokens(time_s: float | None, info: ValidationInfo) -> float | None:
    """A TPOT, which one token has not."""
    if info.data.get("output_tokens", 1) == 1:
        return None
    if not time_s:
        raise ValueError(f"found {'none' if time_s is None else quoted(time_s)}, expected seconds above 0")
    return time_s


class Request(Sent):
    """A request of a load and its times."""

    ttft_s: Seconds = Field(alias="ttft")
    e2e_s: Seconds = Field(alias="e2e")
    tpot_s: Annotated[Arrival | None, AfterValidator(_of_several_tokens)] = Field(alias="tpot")
    """``None`` of one token."""

    @model_validator(mode="before")
    @classmethod
    def _with_tpot(cls, tree: Any) -> Any:
        return {"tpot": None, **tree} if isinstance(tree, Mapping) else tree


class Launch(_Part):
    """The time of one launch, over those of a phase."""

    median_us: Microseconds


class Launches(_Part):
    """Launches of a phase; ``None`` where it had none of the kind."""

    eager: Launch | None = None
    piecewise: Launch | None = None


def _host(found: object) -> object:
    """Times of a host by fields of `HostModel`, without those that are none."""
    if not isinstance(found, Mapping):
        return found
    known = [field.name for field in fields(HostModel)]
    for name in found:
        if name not in known:
            raise ValueError(f"found field {quoted(name)}, expected some of {', '.join(known)}")
    if not found.get("eager_launch_us"):
        raise ValueError(f"found eager_launch_us {quoted(found.get('eager_launch_us'))}, expected microseconds above 0")
    return {name: time for name, time in found.items() if time is not None}


class MeasuredEngine(_Part):
    """A recorded engine."""

    format: Literal[1] = 1
    framework: Literal["vllm", "sglang"] = "vllm"
    where: str
    """The file, for messages."""
    args: Arguments
    config: Tree | None = None
    """The model's ``config.json``; ``None``: ``args.model`` is one of the built-in models."""
    kv_blocks: tuple[Count, Count]
    """KV blocks of a data-parallel rank, and tokens of each."""
    gpu: str
    collectives: Stack | None = None
    norm_kernel: NormKernel
    prompts: Prompts | None = Field(None, alias="prefill")
    decodes: Annotated[tuple[Steady, ...], Field(min_length=1)] | None = Field(None, alias="steady")
    loads: dict[str, Annotated[tuple[Request, ...], Field(min_length=1)]]
    compiling_s: dict[str, Seconds] = Field(default_factory=dict)
    """Longest steps of loads in which kernels were compiled, which is not simulated."""
    launches: dict[str, Launches] = Field(default_factory=dict)
    host: Annotated[dict[str, Microseconds], BeforeValidator(_host)] | None = None
    speculative: SpeculativeConfig | None = None
    draft_config: Tree | None = None
    """The ``config.json`` of a draft model."""

    @cached_property
    def model(self) -> Model:
        """The model that ran.

        Raises: InputError, where it is none that is simulated.
        """
        if self.config is not None:
            name = self.args.model or "model"
            return model_from_config(self.config, name=name, source=self.where, where=f"{self.where}: config")
        if self.args.model is None:
            raise InputError(f"{self.where}: config: found none, expected the model's config.json")
        try:
            return load_model(self.args.model)
        except InputError as error:
            raise InputError(f"{self.where}: args.{error}") from None

    @property
    def kv(self) -> Tree:
        """Fields of ``engine`` on KV blocks; models with delta rules, whose blocks differ, get the memory model's, and
        so do engines of SGLang, which state their share of memory."""
        if self.framework == "sglang":
            return {"block_tokens": self.kv_blocks[1]}
        if any(isinstance(kind.attention, GatedDeltaNet) for kind in self.model.kinds):
            return {}
        blocks, block_tokens = self.kv_blocks
        return {"num_kv_blocks": blocks, "block_tokens": block_tokens}

    @property
    def comparable_loads(self) -> list[str]:
        """Names of the loads in which no kernel was compiled."""
        return [name for name in self.loads if name not in self.compiling_s]

    def host_in(self, phase: str) -> dict[str, float] | None:
        """Times of the host, as fast as it launched in the median of a phase; ``None`` where that is not recorded."""
        found = self.launches.get(phase)
        if self.host is None or found is None or found.eager is None:
            return None
        slower = found.eager.median_us / self.host["eager_launch_us"]
        then = {
            name: time * slower if name in (*OF_WORKERS, *BETWEEN_WORKERS) else time for name, time in self.host.items()
        }
        return then if found.piecewise is None else {**then, "piece_launch_us": found.piecewise.median_us}


def read_engine(path: Path) -> MeasuredEngine:
    """A recorded engine.

    Raises:
        InputError: naming the file and the field, what was found and what was expected.
    """
    tree = parse_json(read_text(path, EXPECTED), str(path), EXPECTED)
    if not isinstance(tree, dict):
        raise InputError(f"{path}: found a JSON {type(tree).__name__}, expected {EXPECTED}")
    return parse_engine(tree, str(path))


def parse_engine(tree: Tree, where: str) -> MeasuredEngine:
    """A recorded engine; ``where`` names the file in messages.

    Raises:
        InputError: as `read_engine`.
    """
    loads = {name: found for name, found in tree.items() if name.startswith(LOAD)}
    rows = {"steady": _early_decodes(tree["decode"])} if "decode" in tree and "steady" not in tree else {}
    rows |= {"steady": None} if tree.get("steady") == [] else {}  # no decode went into the KV cache
    rows |= {"speculative": _speculative(tree)}
    named = {"gpu": _gpu(tree, where), "norm_kernel": _norm_kernel(tree), "loads": loads, "where": where}
    try:
        engine = MeasuredEngine.model_validate({**tree, **rows, **named})
    except ValidationError as error:
        raise InputError(f"{where}: {describe(error, MeasuredEngine).removeprefix('loads.')}") from None
    for name in sorted(engine.compiling_s.keys() - loads.keys()):
        raise InputError(
            f"{where}: compiling_s: found {quoted(name)}, expected some of {', '.join(loads) or 'no load'}"
        )
    if engine.prompts is None and engine.decodes is None and not engine.loads:
        raise InputError(f"{where}: found none of prefill, steady and {LOAD}…, expected at least one of them")
    _ = engine.model  # refused here, not where it is first simulated
    return engine


def _early_decodes(rows: object) -> object:
    """Decodes that were submitted together, with what all of them had."""
    return [EARLY_DECODE | row if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else rows


def _speculative(tree: Tree) -> object:
    """With a name of the draft model, whose configuration is in the file."""
    found = tree.get("speculative")
    return {"draft_model": "draft_config", **found} if isinstance(found, dict) and "draft_config" in tree else found


def _norm_kernel(tree: Tree) -> object:
    """As the file says, or the engine's log."""
    if "norm_kernel" in tree:
        return tree["norm_kernel"]
    log = tree.get("log")
    return "flashinfer" if isinstance(log, list) and any(_FLASHINFER in str(line) for line in log) else "apart"


def _gpu(tree: Tree, where: str) -> str:
    """The GPU as in ``hardware``: as the file says, or the known one that is in the driver's name for it."""
    found = tree.get("gpu")
    if found is not None:
        if not isinstance(found, str):
            raise InputError(f"{where}: gpu: found {quoted(found)}, expected the name of a GPU")
        try:
            get_gpu(found)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return found
    environment = tree.get("environment")
    listed = environment.get("gpus") if isinstance(environment, dict) else None
    driver_name = listed[0] if isinstance(listed, list) and listed else None
    name = gpu_of_device(driver_name) if isinstance(driver_name, str) else None
    if name is not None:
        return name
    known = f"expected one of {', '.join(known_gpus())}, or a folder with gpu.yaml"
    if driver_name is None:
        raise InputError(f"{where}: gpu: found none, {known}")
    raise InputError(f"{where}: environment.gpus: found {quoted(driver_name)}, {known} under gpu")
