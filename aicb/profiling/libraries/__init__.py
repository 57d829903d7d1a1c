"""One module per kernel library; `all_libraries` lists them for a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aicb.profiling.kernel_library import Library


def all_libraries(device: str, modules: Mapping[str, Path]) -> list[Library]:
    """Libraries that may serve a device, present or not.

    Args:
        device: ``cuda`` or ``cpu``; a CPU has torch's own kernels only.
        modules: paths of compiled modules that are not importable, by module name (``_flashmla_C``).
    """
    from aicb.profiling.libraries.torch_native import TorchNative

    if device == "cpu":
        return [TorchNative(device)]
    from aicb.profiling.libraries.deep_gemm import DeepGemm
    from aicb.profiling.libraries.flash_attention import FlashAttention3
    from aicb.profiling.libraries.flash_attention_captured import FlashAttentionCaptured
    from aicb.profiling.libraries.flash_attention_mixed import FlashAttentionMixed
    from aicb.profiling.libraries.flash_attention_mla import FlashAttentionMla
    from aicb.profiling.libraries.flash_attention_unscheduled import FlashAttentionUnscheduled
    from aicb.profiling.libraries.flash_linear_attention import FlashLinearAttention
    from aicb.profiling.libraries.flash_mla import FlashMla
    from aicb.profiling.libraries.flash_mla_sparse import FlashMlaFp8, FlashMlaSparse
    from aicb.profiling.libraries.flashinfer_experts import FlashInferExperts
    from aicb.profiling.libraries.flashinfer_gemm import FlashInferGemm
    from aicb.profiling.libraries.flashinfer_mla import FlashInferMla
    from aicb.profiling.libraries.sglang_attention import SglangAttention
    from aicb.profiling.libraries.sglang_fused_moe import SglangFusedMoe
    from aicb.profiling.libraries.sglang_ops import SglangOps
    from aicb.profiling.libraries.sparse_indexer import DeepGemmIndexer, VllmIndexer
    from aicb.profiling.libraries.torch_compiled import TorchCompiled
    from aicb.profiling.libraries.triton_own import TritonOwn
    from aicb.profiling.libraries.vllm_cache import VllmCache
    from aicb.profiling.libraries.vllm_fused_moe import VllmFusedMoe
    from aicb.profiling.libraries.vllm_marlin import VllmMarlinExperts
    from aicb.profiling.libraries.vllm_mxfp4 import VllmMxfp4Experts
    from aicb.profiling.libraries.vllm_ops import VllmOps

    core, moe = modules.get("_C_stable_libtorch"), modules.get("_moe_C_stable_libtorch")
    return [
        TorchNative(device),
        DeepGemm(),
        FlashInferGemm(),
        FlashInferExperts(),
        FlashInferMla(),
        FlashMla(modules.get("_flashmla_C")),
        FlashAttention3(modules.get("_vllm_fa3_C")),
        FlashAttentionCaptured(modules.get("_vllm_fa3_C")),
        FlashAttentionMla(modules.get("_vllm_fa3_C")),
        FlashAttentionMixed(modules.get("_vllm_fa3_C")),
        FlashAttentionUnscheduled(modules.get("_vllm_fa3_C")),
        FlashLinearAttention(),
        FlashMlaSparse(modules.get("_flashmla_C")),
        FlashMlaFp8(modules.get("_flashmla_extension_C")),
        DeepGemmIndexer(),
        VllmIndexer(core),
        VllmOps(core, moe),
        VllmCache(core, moe),
        VllmFusedMoe(),
        VllmMxfp4Experts(),
        VllmMarlinExperts(moe),
        SglangFusedMoe(),
        SglangAttention(),
        SglangOps(),
        TorchCompiled(),
        TritonOwn(),
    ]
