"""Host of SGLang, on hosts whose times are those of vLLM.

SGLang's scheduler works as `aicb.iteration.host` has it: one thread prepares a batch, launches its forward pass with
sampling, and then takes the result of the batch before, so that first tokens wait for the launch of the next batch.
What differs is what launching takes. Measured in four engines of SGLang 0.5.17 on one H200 each, stamped inside
(2026-11-30, ``tests/data/engine/sglang-h200-*.json.gz``), a pass of one prompt of up to 2,500 tokens:

================================ ======== ========
milliseconds                       fast     slow
================================ ======== ========
Qwen3-8B, graphs between attention   8.2     13.1
Qwen3-30B-A3B, likewise              8.0     11.6
Qwen3-30B-A3B in fp8, likewise       8.1     11.3
DeepSeek-V3, 8 layers, eager        20.8     29.6
decodes, one graph             0.5 to 0.65
================================ ======== ========

Its processes had two speeds, as those of vLLM on machines of this kind; the fast one is taken for that of the default
host, whose launches take as long as those of the fastest machines there, and all times are in its proportion on others.
Ignored: SGLang prepares batches and takes results in times of its own, which differ less (0.4 ms to the pass of a
decode, 1.1 to 1.5 of a prompt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from aicb.iteration.host import HostModel
from aicb.iteration.launches import Launches

HostEngine = Literal["vllm", "sglang"]
"""Whose host it is; other engines' was not measured, and vLLM's stands for theirs."""

LAUNCH_US, SAMPLE_US = 640.0, 250.0
"""On the default host: a pass that replays one graph, with its inputs and what samples (the table above), and what
follows it: 238 us after decodes of Qwen3-30B-A3B in bf16, 303 to 374 in the three other engines."""
EAGER = 2.48
"""An eager launch, in mean ones of vLLM: a prompt of DeepSeek-V3 with 8 layers, 20.75 ms for 201 launches as counted
here and 41.7 us each; 264 were traced, so that one takes 79 us. One model; with other kernels it is taken to be so."""
BETWEEN_GRAPHS = {"attention": 7.6, "attention_without_writing": 5.6, "latent_attention": 15.4, "delta_rule": 31.6}
"""A layer where graphs replay what lies between attentions, in launches there (27.5 us): 8.17 - 0.64 ms in 36 layers of
Qwen3-8B, 8.02 - 0.64 in 48 of Qwen3-30B-A3B, whose KV is written with the rotary embedding, within graphs. Neither
latent attention nor the delta rule was measured: of the one vLLM's 8.1 times 1.9, as attention that writes takes 7.6
for vLLM's 4.0, of the other vLLM's own."""


def host_of(engine: HostEngine, host: HostModel) -> HostModel:
    """Times of an engine on a host, given those of vLLM."""
    if engine == "vllm":
        return host
    slower = host.eager_launch_us / HostModel().eager_launch_us
    return replace(host, launch_us=LAUNCH_US * slower, sample_us=SAMPLE_US * slower)


def launches_of(engine: HostEngine, vllm: Launches, calls: Mapping[str, int], *, writes_apart: bool) -> Launches:
    """Launches of a stage in an engine, given vLLM's, which stand for attention of other kinds (sparse).

    Args:
        calls: of attention in the stage, by kind (`aicb.iteration.launches.count_calls`).
        writes_apart: whether KV is written outside graphs.
    """
    if engine == "vllm":
        return vllm
    own = {**BETWEEN_GRAPHS, **({} if writes_apart else {"attention": BETWEEN_GRAPHS["attention_without_writing"]})}
    between = sum(own[call] * number for call, number in calls.items() if call in own)
    return replace(vllm, eager_time=EAGER * vllm.eager, pieces_time=between or vllm.pieces_time)
