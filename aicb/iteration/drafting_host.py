"""Host of an engine that drafts: what vLLM 0.24 does for drafts besides launching their passes.

Two runners of models draft in vLLM (``vllm/config/vllm.py``, ``use_v2_model_runner``). The first replays a layer's
passes in piecewise graphs and waits, before it samples, for what the step before has kept
(``vllm/v1/worker/gpu_model_runner.py``, ``vllm/v1/spec_decode/llm_base_proposer.py``); a model of its own drafts there
outside graphs. The second, which dense models get, replays them in full graphs
(``vllm/v1/worker/gpu/spec_decode/autoregressive``).

Times are in launches outside graphs of the same host, from stamps in four engines on one virtual machine with two
H200s, each engine on one (``tests/data/engine/vllm-h200-tp1-*-{mtp1,mtp3,eagle2,draft3}.json.gz``, 2026-11-29), where a
launch took 54 to 122 us by eager prompts. What drafting took in all, of decodes with 1 and 8 requests and of prompts:

=============================== =============== ================= ================
engine                          decodes         prompts in pieces prompts, eager
=============================== =============== ================= ================
DeepSeek-V3, MTP, one draft     21.5 to 27.3    20.7, 21.4        56.4 to 60.7
the same, three drafts          50.5 to 58.0    49.9 to 60.2      84.5 to 99.0
Qwen3-8B, EAGLE, two drafts     5.4 to 7.8      13.7 to 18.3      22.3 to 26.2
Qwen3-8B by Qwen3-0.6B, three   546 to 589      580 to 692        566, 584
=============================== =============== ================= ================

Less what passes launch themselves, as `aicb.iteration.launches` counts it. That is 3.8 of the layer in pieces and 46.4
outside graphs, 2.8 and 6.8 of the head of Qwen3-8B, 0.6 of a full graph, and 191 of a pass of Qwen3-0.6B, whose three
passes leave nothing else. Preparing a step that verifies drafts took 27 to 34 launches in the first runner with a
layer, 25 to 28 with a model, and 13 to 16 in the second, as any step of decodes; from 1 to 256 requests 0.4 to 0.5 more
for each, and sampling 0.2, in the first runner. Not measured: several workers, which gather logits in each pass and
agree on padding and graphs before the first two (`_determine_batch_execution_and_padding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aicb.iteration.host import GraphMode
from aicb.model.architecture import DenseFfn, GroupedQueryAttention, Model

Replayed = Literal["full", "pieces", "nothing"]


@dataclass(frozen=True, slots=True)
class DraftingHost:
    """What drafts take on a host besides the launches of their passes, in launches outside graphs."""

    replayed: Replayed = "pieces"
    """Of passes within the captured sizes, where all requests decode; else pieces at most."""
    first: float = 0.0
    """More for the first pass of a step of decodes."""
    first_in_pieces: float = 0.0
    """And of one with prompts."""
    first_eager: float = 0.0
    """And of one outside graphs."""
    further: float = 0.0
    """More for each pass after it."""
    preparing: float = 0.0
    """More to prepare a step that verifies drafts."""
    request: float = 0.0
    """And for each request of it, sampling included."""

    def mode(self, mode: GraphMode) -> GraphMode:
        """How a pass is launched where the model's would be replayed so."""
        match self.replayed, mode:
            case "nothing", _:
                return GraphMode.EAGER
            case "pieces", GraphMode.FULL:
                return GraphMode.PIECEWISE
            case _:
                return mode

    def besides(self, mode: GraphMode) -> float:
        """More for the first pass of a step whose own is launched so."""
        found = {
            GraphMode.FULL: self.first,
            GraphMode.PIECEWISE: self.first_in_pieces,
            GraphMode.EAGER: self.first_eager,
        }
        return found[mode]


AGREED_PASSES = 2
"""Before which data-parallel ranks agree."""
UNMEASURED = DraftingHost()
"""Of engines whose drafting was not measured: pieces, and nothing besides."""
BY_LAYER = DraftingHost(first=20.0, first_in_pieces=17.5, first_eager=12.0, further=11.5, preparing=16.0, request=0.4)
BY_MODEL = DraftingHost(replayed="nothing", preparing=12.0, request=0.15)
BY_LAYER_IN_GRAPHS = DraftingHost(replayed="full", first=2.7, first_in_pieces=10.0, first_eager=14.0, further=2.7)


def drafting_of_vllm(model: Model, method: str) -> DraftingHost:
    """Of vLLM 0.24, for drafts by ``method`` behind a model; n-grams are not measured."""
    match method:
        case "mtp" | "eagle":
            return BY_LAYER_IN_GRAPHS if has_second_runner(model) else BY_LAYER
        case "draft_model":
            return BY_MODEL
        case _:
            return UNMEASURED


def has_second_runner(model: Model) -> bool:
    """Whether vLLM runs it in its second runner: Llama, Mistral and dense Qwen3. DeepSeek-V2 and MoE models of Qwen2
    and Granite, which it lists as well, are taken for the first's."""
    return all(
        isinstance(layer.ffn, DenseFfn)
        and isinstance(layer.attention, GroupedQueryAttention)
        and layer.attention.span is None
        and not (layer.attention.has_qkv_bias or layer.attention.has_sinks or layer.attention.has_output_gate)
        for layer in model.kinds
    )
