"""What a vLLM engine runs for norms after all-reduces."""

from __future__ import annotations

from typing import Any


def norm_kernel(config: Any) -> str:
    """``flashinfer`` or ``apart`` (``aicb.operators.norm_kernel``) of an engine with this ``VllmConfig``.

    vLLM asks for the fused kernel by default and runs without it where FlashInfer has none.
    """
    if not config.compilation_config.pass_config.fuse_allreduce_rms:
        return "apart"
    try:
        import flashinfer.comm as comm
    except ImportError:
        return "apart"
    return "flashinfer" if hasattr(comm, "allreduce_fusion") else "apart"
