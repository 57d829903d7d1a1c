"""SGLang's fused MoE GEMM: the Triton kernel of bf16 and block-scaled fp8 experts, as SGLang launches it.

It differs from vLLM's (`aicb.profiling.libraries.vllm_fused_moe`) in its tuned files and rules of thumb, in what it
does with scales, and in the down projection, for which some files have tiles of its own: then the up projection
writes its rows in the order of experts, padded to whole tiles, and the down projection reads them by TMA
(``moe_runner/triton_utils/fused_moe.py``). All pairs are sorted, however few. Tokens come quantised.

Points may hold a shared expert among the routed ones, which every token chooses, and experts of which a rank has some:
pairs of others' are sorted before the rank's, and their tiles write zeros (``filter_expert``).

Signatures of SGLang 0.5.17 are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from aicb.kernels.expert_points import SGLANG_OPERATION, experts_of_all_ranks
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, FP8_TOLERANCE, Kernel, relative_error, some_rows
from aicb.profiling.libraries.gathered_experts import BLOCK, Routing, expert_operands, pairs_of
from aicb.profiling.libraries.modules import import_modules

_TILES = "sglang.srt.layers.moe.moe_runner.triton_utils"
_KERNELS = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
_SETTINGS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class Launch:
    """What SGLang launches for a projection."""

    config: dict[str, int]
    sorted_to: int
    """Rows of a tile to which pairs are sorted and padded: the up projection's, for both."""
    is_tuned: bool
    by_tma: bool
    """Rows between the projections lie in the order of experts, and the down projection reads them by TMA."""


class SglangFusedMoe:
    """``fused_moe_kernel`` of an installed SGLang."""

    def __init__(self) -> None:
        names = f"{_TILES}.fused_moe_triton_config", f"{_TILES}.moe_align_block_size", _KERNELS
        found, self._missing = import_modules("sglang", names)
        if self._missing:
            return
        self._tiles, align, self._kernels = found
        self._align = align.moe_align_block_size
        # Without a server there are no settings to ask whether inference is to be deterministic.
        default = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
        setattr(self._tiles, "get_exec", lambda: default)  # noqa: B010

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"sglang {version('sglang')}, fused_moe_kernel"

    def refusal(self, point: Point) -> str | None:
        if point.op != SGLANG_OPERATION:
            return "SGLang's grouped GEMMs only"
        if point.dtype == "fp8" and (point["n"] % BLOCK[0] or point["k"] % BLOCK[1]):
            return "widths that are no multiple of the scale block"
        return None

    def launch(self, point: Point) -> Launch:
        """What is launched for this point."""
        tokens, experts = point["batch"], point["groups"]
        is_up = point["experts_per_token"] > 1
        width, hidden = (point["n"] // 2, point["k"]) if is_up else (point["k"], point["n"])
        shapes = (experts, 2 * width, hidden), (experts, hidden, width)
        dtype, block = ("fp8_w8a8", BLOCK) if point.dtype == "fp8" else (None, None)
        up, (down, _) = self._tiles.try_get_optimal_moe_config(
            *shapes, pairs_of(point) // tokens, dtype, tokens, block_shape=block, return_down_config=True
        )
        own = dict(up if is_up or down is None else down)
        own.pop("USE_TMA", None)
        is_tuned = self._tiles.get_moe_configs(experts, width, dtype, *(block or (0, 0))) is not None
        return Launch(own, up["BLOCK_SIZE_M"], is_tuned, bool((down or {}).get("USE_TMA")))

    def kernel(self, point: Point) -> Kernel:
        launch, pairs, per_row = self.launch(point), pairs_of(point), point["experts_per_token"]
        groups, is_shared, is_up = point["groups"], experts_of_all_ranks(point) > point["groups"], per_row > 1
        chosen = Routing.of(point).experts
        chosen = torch.where(chosen < groups, chosen, -1)
        weights = torch.rand(chosen.shape, device="cuda")
        sorted_ids, owners, padded = self._align(chosen, launch.sorted_to, groups)
        between = pairs + (min(pairs, groups + 1) * (launch.sorted_to - 1) if launch.by_tma else 0)
        place = _places(sorted_ids, pairs) if launch.by_tma else torch.arange(pairs, device="cuda")
        x, w = expert_operands(point, pairs // per_row if is_up else between)
        shape = (between, point["n"]) if is_up else (*chosen.shape, point["n"])
        out = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        inputs, outputs = (torch.arange(pairs, device="cuda") // per_row, place) if is_up else (place, None)

        def run() -> None:
            self._kernels.invoke_fused_moe_kernel(
                x.values,
                w.values,
                None,
                out,
                x.scales,
                w.scales,
                None,
                weights,
                chosen,
                sorted_ids,
                owners,
                padded,
                not is_up,
                per_row,
                launch.config,
                compute_type=self._kernels.tl.bfloat16,
                use_fp8_w8a8=point.dtype == "fp8",
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=False,
                block_shape=BLOCK if point.dtype == "fp8" else None,
                a_use_tma=launch.by_tma and not is_up,
                b_use_tma=launch.by_tma and not is_up,
                c_sorted=launch.by_tma and is_up,
                filter_expert=is_shared,
            )

        def error() -> float:
            expert = max(range(groups), key=lambda index: point.lengths[index])
            own = (chosen.flatten() == expert).nonzero()[:, 0]
            own = own[some_rows(len(own))]
            expected = x.rows(inputs[own]) @ w.expert(expert).T
            if not is_up:
                expected = expected * weights.flatten()[own, None]
            return relative_error(out.view(-1, point["n"])[own if outputs is None else outputs[own]], expected)

        settings = {name.lower(): int(launch.config[name]) for name in _SETTINGS if name in launch.config}
        settings |= {"is_tuned": int(launch.is_tuned), "by_tma": int(launch.by_tma)}
        tolerance = FP8_TOLERANCE if point.dtype == "fp8" else BF16_TOLERANCE
        return Kernel("sglang/fused_moe", run, [out], error, tolerance, settings)


def _places(sorted_ids: torch.Tensor, pairs: int) -> torch.Tensor:
    """[pairs] row of each pair in the order of experts."""
    rows = (sorted_ids < pairs).nonzero()[:, 0]
    places = torch.empty(pairs, dtype=torch.int64, device=sorted_ids.device)
    places[sorted_ids[rows].long()] = rows
    return places
