"""What a vLLM engine runs for norms after all-reduces."""

from __future__ import annotations

from typing import Any


def norm_kernel(config: Any) -> str:
    """Whether an engine of this configuration normalises in the kernel that reduces among its ranks: what it was asked,
    and whether FlashInfer has the kernel, without which it goes on by itself."""
    if not config.compilation_config.pass_config.fuse_allreduce_rms:
        return "apart"
    try:
        import flashinfer.comm as comm
    except ImportError:
        return "apart"
    return "flashinfer" if hasattr(comm, "allreduce_fusion") else "apart"
