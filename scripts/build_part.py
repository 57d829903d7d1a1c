#!/usr/bin/env python3
"""Makes one part of a GPU's table, ``aicb/data/GPU/…/PART.parquet``, of profiles of an engine's kernels.

    aicb profile --model deepseek-v3 --tp 1,2,4,8 --ep 1 --weights fp8 --only grouped_gemm_gathered -o ds …
    aicb profile --model deepseek-v3 --weights fp8 --only mla_decode_fa3 -o mla …
    aicb profile --model qwen3-8b --tp 1,2 --weights bf16 --only decode_attention_captured -o captured …
    aicb profile --model gpt-oss-120b --weights bf16 --only decode_attention_captured -o captured …
    aicb profile --model gpt-oss-120b --model llama-3.1-8b --only decode_attention_unscheduled -o unscheduled …
    python scripts/measure_sliding_decodes.py -o sliding
    aicb profile --model qwen3-8b … --kv bf16,fp8 --only prefill_attention -o prompts …
    aicb profile --model deepseek-v3 --only rope_latent -o rope …
    aicb profile --model deepseek-v3 --weights fp8 --only gemm_swapped --max-tokens 31 -o swapped …
    aicb profile --model minimax-m2 --weights fp8 --ep 2,4,8,16 --only fused_experts -o experts …
    aicb profile --model deepseek-v3 --model glm-4.5 --only router_few,router_fp32,router_fp32_few -o routers …
    (vllm_experts_shared: run_plan of aicb.kernels.grouped_gemm.shared_points; vllm_experts_sliced, vllm_experts_h100:
    run_plan of the gathered points of these models under uniform routing, the latter with shared_points, too)
    aicb profile --model qwen3-30b-a3b --tp 1,2,4,8 --weights bf16 --only decode_attention_sglang -o attention …
    aicb profile --model deepseek-v3 --tp 1,2,4,8 --weights bf16 --only mla_decode_sglang -o latents …
    aicb profile --model deepseek-v3 --tp 1,2,4,8 --weights bf16 --only mla_decode_flashinfer -o flashinfer …
    aicb profile --model qwen3-30b-a3b --tp 1,2,4,8 --weights bf16 --only qk_norm,rope_write,sglang_rope,… -o small …
    python scripts/measure_sglang_experts.py -o sglang
    python scripts/measure_marlin_experts.py -o marlin
    python scripts/build_part.py PART PROFILE_DIRECTORY… [--revision REVISION]

No time is changed; of a shape that several directories have, the last counts. Of the launch costs of a run, only the
floor of cold times is kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aicb.kernels.elementwise import SGLANG
from aicb.kernels.point import SHAPE_COLUMNS
from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, Row, read_table, write_table

DATA = Path(__file__).resolve().parent.parent / "aicb" / "data"
DISTINGUISHING = ("op", "dtype", "distribution", "lengths", "queries", *SHAPE_COLUMNS)
VLLM_OPS = "vLLM extension modules _C, _moe_C (stable ABI)"
STRIPPED = "compiled modules of vLLM 0.24.0, of which only code for SM90 was kept"
CLOCKS = "clocks were not locked; graph_clock_mhz and rotated_clock_mhz say at which SM clock each replay ran"


@dataclass(frozen=True, slots=True)
class Part:
    """What a part holds."""

    operation: str | Collection[str]
    kernel_library: str
    """End of the name of the library that ran it."""
    points: str
    cautions: Sequence[str]
    folder: str = "h200"
    """In ``aicb/data``, named after the GPU."""

    @property
    def operations(self) -> Collection[str]:
        return (self.operation,) if isinstance(self.operation, str) else self.operation

    @property
    def gpu(self) -> str:
        return self.folder.partition("/")[0]


PARTS: Mapping[str, Part] = {
    "vllm_experts_fp8": Part(
        "grouped_gemm_gathered",
        "fused_moe_kernel",
        "fused MoE GEMM of fp8 experts with 128x128 weight scales and activations quantised per row and 128 columns, "
        "gate_up and down apart, with the configuration vLLM chooses (settings; is_tuned: from a file it ships for "
        "this device). "
        "DeepSeek-V3 (TP 1, 2, 4, 8), Qwen3-30B-A3B (TP 1, 2), Qwen3-235B-A22B (TP 1, 2, 4), Qwen3-Next-80B-A3B (TP 1, "
        "2); 1 to 16384 tokens; operands normal before quantisation",
        [
            "distribution multinomial: every token draws its experts with equal chance; one draw per token count; the "
            "others exist at 16, 64, 128, 512 and 2048 tokens",
            "sorting pairs by expert, quantisation of tokens, activation and sum over experts are separate kernels and "
            "not in these times",
            CLOCKS,
            "compiled module _moe_C of vLLM, of which only code for SM90 was kept",
        ],
    ),
    "vllm_experts_shared": Part(
        "grouped_gemm_gathered",
        "fused_moe_kernel",
        "fused MoE GEMM of bf16 experts that ranks share, on the rank with the most rows, gate_up and down "
        "apart, with the "
        "configuration vLLM chooses (settings; is_tuned: from a file it ships for this device) and the expert "
        "map that sends "
        "tiles of other ranks' experts to zeros (aicb.kernels.grouped_gemm.shared_points). Qwen3-30B-A3B (EP 2, 4, 8), "
        "Qwen3-235B-A22B (EP 2, 4, 8), Qwen3-Next-80B-A3B (EP 2, 4, 8), GLM-4.5-Air and Mixtral-8x7B (EP 2, 4); "
        "2 to 16384 tokens "
        "of all ranks together",
        [
            "distribution multinomial of N: every token draws its experts from all N with equal chance; one draw "
            "per token "
            "count; m: pairs of all experts, rows and lengths: of the rank's",
            "sorting pairs by expert, activation and sum over experts are separate kernels and not in these times",
            CLOCKS,
            "compiled modules of vLLM 0.24.0 as shipped",
        ],
    ),
    "vllm_experts_sliced": Part(
        "grouped_gemm_gathered",
        "fused_moe_kernel",
        "fused MoE GEMM of bf16 experts of which each rank has a slice, gate_up and down apart, with the "
        "configuration vLLM "
        "chooses (settings; is_tuned: from a file it ships for this device). Qwen3-Next-80B-A3B (TP 2, 4), "
        "Qwen3-235B-A22B "
        "(TP 2), Mixtral-8x7B (TP 4, 8), GLM-4.5-Air (TP 1, 2, 4); 1 to 16384 tokens",
        [
            "distribution multinomial: every token draws its experts with equal chance; one draw per token count",
            "sorting pairs by expert, activation and sum over experts are separate kernels and not in these times",
            CLOCKS,
            "compiled modules of vLLM 0.24.0 as shipped",
        ],
    ),
    "vllm_experts_h100": Part(
        "grouped_gemm_gathered",
        "fused_moe_kernel",
        "fused MoE GEMM of experts on an H100, gate_up and down apart, with the configuration vLLM chooses there "
        "(settings; is_tuned: from a file it ships for this device). bf16: Qwen3-30B-A3B (TP 1, 2, 4; EP 2, 4), "
        "Qwen3-235B-A22B (TP 2, 4, 8; EP 2), Mixtral-8x7B (TP 1, 2, 4; EP 2), Qwen3-Next-80B-A3B (TP 1, 2, 4; EP 2), "
        "GLM-4.5-Air (TP 1); fp8 with 128x128 weight scales: DeepSeek-V3 (TP 1, 2, 4, 8), Qwen3-30B-A3B (TP 1, 2), "
        "Qwen3-235B-A22B (TP 1, 2, 4). 1 to 16384 tokens, of experts that ranks share 2 to 16384 of all ranks together",
        [
            "distribution multinomial: every token draws its experts with equal chance; one draw per token count. "
            "multinomial of N: from all N, of which ranks share the experts; m: pairs of all experts, rows and "
            "lengths: of the rank's",
            "sorting pairs by expert, quantisation of tokens, activation and sum over experts are separate kernels and "
            "not in these times",
            CLOCKS,
            "compiled modules of vLLM 0.24.0 as shipped",
        ],
        "h100/experts",
    ),
    "sglang_experts": Part(
        "grouped_gemm_sglang",
        "fused_moe_kernel",
        "fused MoE GEMM of SGLang 0.5.17, gate_up and down apart, with the configuration it chooses (settings; "
        "is_tuned: from a file it ships for this device; by_tma: the down projection has tiles of its own there and "
        "reads its rows by TMA). fp8 with 128x128 weight scales, tokens quantised per row and 128 columns: DeepSeek-V3 "
        "(TP 1, 2, 4, 8, 16), Kimi-K2 (TP 8, 16), Qwen3-30B-A3B (TP 1, 2), Qwen3-235B-A22B (TP 1, 2, 4), "
        "Qwen3-Next-80B-A3B (TP 1, 2), MiniMax-M2 (TP 1, 2, 4), GLM-4.5 (TP 2, 4); bf16: Qwen3-30B-A3B, "
        "Qwen3-235B-A22B, Qwen3-Next-80B-A3B, Mixtral-8x7B, GLM-4.5-Air (TP 1, 2, 4); 1 to 16384 tokens. Shared among "
        "ranks, on the rank with the most rows, 2 to 16384 tokens of all: fp8 DeepSeek-V3 (EP 8, 16), Qwen3-30B-A3B, "
        "Qwen3-Next-80B-A3B (2, 4), Qwen3-235B-A22B (2, 4, 8), MiniMax-M2 (4, 8); bf16 Qwen3-30B-A3B (2, 4, 8), "
        "Qwen3-235B-A22B (4, 8), Qwen3-Next-80B-A3B, GLM-4.5-Air (2, 4), Mixtral-8x7B (2). "
        "scripts/measure_sglang_experts.py",
        [
            "distribution multinomial: every token draws its experts with equal chance; one draw per token count. and "
            "one that all choose: the last expert is the shared one of DeepSeek-V3 and GLM, which every token has. "
            "multinomial of N: from all N, of which ranks share the experts; m: pairs of all experts, rows and "
            "lengths: of the rank's, tiles of other ranks' experts write zeros",
            "sorting pairs by expert, quantisation of tokens, activation and sum over experts are separate kernels and "
            "not in these times",
            "Triton 3.6.0; for files of older versions of Triton SGLang warns that they may be slow",
            CLOCKS,
            "sgl_kernel 0.4.5, which sorts the pairs, of which only code for SM90 was kept",
        ],
    ),
    "vllm_marlin": Part(
        "grouped_gemm_marlin",
        "_moe_C (stable ABI)",
        "products of mxfp4 experts by vLLM 0.24.0's moe_wna16_marlin_gemm, gate_up and down apart: gpt-oss-20b and "
        "-120b (TP 1, 2, 4, 8); 1 to 16384 tokens. n and k are the model's, hidden sizes padded to 256 and slices to "
        "128 as vLLM pads them. scripts/measure_marlin_experts.py",
        [
            "distribution multinomial: every token draws its experts with equal chance; one draw per token count",
            "sorting pairs by expert, activation and sum over experts are separate kernels and not in these times",
            CLOCKS,
            "compiled module of vLLM 0.24.0 as shipped",
        ],
    ),
    "sglang_attention": Part(
        ("decode_attention_sglang", "mla_decode_sglang"),
        "captured decode",
        "paged decode by FlashAttention-3 as SGLang 0.5.17 captures it in graphs: Qwen3-30B-A3B, Qwen3-235B-A22B, "
        "Qwen3-8B, Llama-3.1-70B and GLM-4.5-Air (TP 1, 2, 4, 8); absorbed MLA decode of DeepSeek-V3 (TP 1, 2, 4, 8; "
        "one and two query tokens)",
        [
            "pages of one token, adjoining; the schedule is made outside, of latents in each call; the kernel chooses "
            "the splits",
            "captured for 32,768 tokens",
            CLOCKS,
            "sgl_kernel 0.4.5, of which only code for SM90 was kept",
        ],
    ),
    "flashinfer_mla": Part(
        "mla_decode_flashinfer",
        "absorbed MLA",
        "absorbed MLA decode by BatchMLAPagedAttentionWrapper of FlashInfer: DeepSeek-V3 (TP 1, 2, 4, 8; one and two "
        "query tokens)",
        [
            "pages of one token, adjoining; the plan of a step is made outside, by FlashInfer's own rule for graphs",
            CLOCKS,
            "compiled there with CUDA 13.0",
        ],
    ),
    "sglang_small": Part(
        tuple(SGLANG),
        "small kernels",
        "SGLang's kernels around attention and experts: norms of queries and keys, rotary embedding, writing of KV, "
        "both at once; choice of experts by softmax, sorting of their pairs (two kernels), sums of a token's results "
        "(of up to 32 tokens by torch.compile, for any number of tokens). Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-8B, "
        "Llama-3.1-70B, Qwen3-Next-80B-A3B, Mixtral-8x7B, GLM-4.5-Air (TP 1, 2, 4, 8), where they have such a kernel",
        [CLOCKS, "sgl_kernel 0.4.5, of which only code for SM90 was kept; others compiled there with CUDA 13.0"],
    ),
    "vllm_mla_fa3": Part(
        "mla_decode_fa3",
        "absorbed MLA",
        "absorbed MLA decode of DeepSeek-V3 by FlashAttention-3, TP 1, 2, 4, 8; one and two query tokens",
        [
            "pages of 16 tokens; at most 32 splits of a request, as vLLM captures decodes; the schedule is made "
            "outside",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0, of which only code for SM90 was kept",
        ],
    ),
    "vllm_fa3_captured": Part(
        "decode_attention_captured",
        "captured decode",
        "paged decode by FlashAttention-3 as vLLM 0.24.0 captures it in graphs: Qwen3-30B-A3B (TP 1, 2, 4), Qwen3-8B "
        "(TP 1, 2), Llama-3.1-70B, Qwen3-Next-80B-A3B and most of Qwen3-235B-A22B (TP 1)",
        [
            "pages of 16 tokens; at most 32 splits of a request; the schedule is made outside",
            "captured for 32,768 tokens",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0",
        ],
    ),
    "vllm_fa3_captured_64": Part(
        "decode_attention_captured",
        "captured decode",
        "the same of heads of 64: gpt-oss-120b (TP 1, 2, 4, 8), without its sinks",
        [
            "pages of 16 tokens; at most 32 splits of a request; the schedule is made outside",
            "captured for 32,768 tokens",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0",
        ],
    ),
    "vllm_fa3_unscheduled": Part(
        "decode_attention_unscheduled",
        "without a schedule",
        "paged decode by FlashAttention-3 as vLLM 0.24.0 captures it in models whose layers differ in their windows, "
        "with sinks that change nothing: heads of 64, gpt-oss-120b (TP 1, 2, 4, 8), and of 128, Llama-3.1-8B (TP 1, 4)",
        [
            "pages of 16 tokens; at most 32 splits of a request; each call makes its schedule",
            "captured for 32,768 tokens",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0",
        ],
    ),
    "vllm_fa3_sliding": Part(
        "decode_attention_sliding",
        "without a schedule",
        "the same of layers that slide, kv_len being the window of equal requests and contexts four windows long: "
        "windows of 128 (gpt-oss-120b, TP 1, 2, 4, 8), 512, 1,024 and 4,096 tokens by heads of 64 (64 and 16 query "
        "heads, eight a KV head) and of 128 (32, 16, 8, 4, four a KV head); 1 to 512 requests",
        [
            "pages of 16 tokens; at most 32 splits of a request; each call makes its schedule",
            "captured for 32,768 tokens",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0",
        ],
    ),
    "vllm_fa3_decode_64": Part(
        "decode_attention",
        "_vllm_fa3_C",
        "paged decode by FlashAttention-3 called alone, heads of 64: gpt-oss-120b (TP 1, 2, 4, 8), without its sinks",
        ["pages of 16 tokens; the kernel chooses the splits", CLOCKS, "compiled module _vllm_fa3_C of vLLM 0.24.0"],
    ),
    "vllm_fa3_prefill": Part(
        "prefill_attention",
        "_vllm_fa3_C",
        "causal attention of prompts by FlashAttention-3 over pages that they have just been written to. bf16: "
        "Qwen3-8B, Llama-3.1-70B, Qwen3-30B-A3B, Qwen3-235B-A22B and others (TP 1, 2, 4, 8) by heads of 128, "
        "Qwen3-Next-80B-A3B by heads of 256, gpt-oss-120b (TP 1, 2, 4, 8) by heads of 64, without its sinks; groups "
        "of query heads that are no power of two: GLM-4.5 (12 to a KV head), MiniMax-M2 (6), Qwen2.5-7B (7), Llama 4 "
        "Scout (5), TP 1, 2, 4, 8. e4m3: heads of 128 and 256",
        [
            "pages of 16 tokens in random order; of one token (SGLang) they take as long within 2 % at the median of "
            "96 points, of 128 and more tokens as long as keys in a row, but for heads of 256",
            "e4m3: with the queries; their quantisation is not included",
            CLOCKS,
            "compiled module _vllm_fa3_C of vLLM 0.24.0",
        ],
    ),
    "vllm_rope_latent": Part(
        "rope_latent",
        "compiled",
        "rotary embedding of the queries of latent attention as torch.compile makes it of vLLM 0.24.0's Python, which "
        "writes the whole queries; DeepSeek-V3, TP 1, 2, 4, 8; 1 to 16384 tokens",
        [
            "every shape compiled for itself; in the engine the number of tokens is symbolic",
            "eight shapes were measured twice, and the second counts: one of the first was 25 % off, the others 0.1 %",
            CLOCKS,
        ],
    ),
    "flashinfer_experts": Part(
        "fused_experts",
        "cutlass_fused_moe",
        "all of a rank's block-scaled fp8 experts in one call of FlashInfer's cutlass_fused_moe, on the rank with the "
        "most rows: bf16 tokens in, sums over experts out. MiniMax-M2, DeepSeek-V3, Qwen3-235B-A22B (EP 2, 4, 8, 16), "
        "GLM-4.5, Qwen3-Coder-480B-A35B (EP 4, 8, 16), Qwen3-30B-A3B, Qwen3-Next-80B-A3B, GLM-4.5-Air (EP 2, 4, 8); 1 "
        "to 8192 tokens of all ranks together. m: pairs of all experts; n: columns between the products; k: hidden",
        [
            "distribution multinomial of N: every token draws its experts from all N with equal chance; one draw per "
            "token count; rows and lengths: of the rank's",
            "the module was compiled for SM90 with CUDA 13.0 from FlashInfer's sources, without the number formats "
            "that these experts do not use",
            CLOCKS,
        ],
        "h100/experts",
    ),
    "router_few": Part(
        "router_few",
        VLLM_OPS,
        "scores of the experts of 1 to 16 tokens by vLLM's dsv3_router_gemm: DeepSeek-V3, Kimi-K2",
        [CLOCKS, STRIPPED],
        "h100/experts",
    ),
    "router_fp32": Part(
        "router_fp32",
        "torch 2.11.0+cu130",
        "scores of experts by fp32 weights: the cast of bf16 activations and cuBLAS's product. MiniMax-M2, 33 to 16384 "
        "tokens; GLM-4.5, GLM-4.5-Air, 1 to 16384",
        [CLOCKS],
        "h100/experts",
    ),
    "router_fp32_few": Part(
        "router_fp32_few",
        VLLM_OPS,
        "scores of the experts of 1 to 32 tokens of MiniMax-M2 by vLLM's fp32_router_gemm",
        [CLOCKS, STRIPPED],
        "h100/experts",
    ),
    "flashinfer_gemm_swapped": Part(
        "gemm_swapped",
        "flashinfer 0.6.12",
        "block-scaled fp8 GEMM with swapped operands of 1 to 31 rows; widths of Llama-3.1-70B, Qwen3-8B, "
        "Qwen3-235B-A22B and DeepSeek-V3 (TP 1, 2, 4, 8)",
        ["activations are bf16: the kernel that quantises them (scale_1x128_kernel) is in these times", CLOCKS],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--revision", help="revision of the profiler where the measuring host had no repository")
    arguments = parser.parse_args()
    part = PARTS[arguments.part]
    target = DATA / part.folder / f"{arguments.part}.parquet"
    by_shape: dict[tuple[object, ...], Row] = {}
    for directory in arguments.directories:
        for row in read_table(directory / TABLE_FILE):
            if row["op"] in (*part.operations, "null_kernel"):
                by_shape[tuple(row.get(name) for name in DISTINGUISHING)] = row
    rows = list(by_shape.values())
    first = json.loads((arguments.directories[0] / PROVENANCE_FILE).read_text(encoding="utf-8"))
    facts = {
        "gpu": part.gpu,
        "libraries": [name for name in first["libraries"] if name.endswith(part.kernel_library)],
        **{name: first[name] for name in ("environment", "timing", "check_share")},
        "checked_rows": sum("error" in row for row in rows),
        "points": part.points,
        "cautions": list(part.cautions),
    } | ({"revision": arguments.revision} if arguments.revision else {})
    with TemporaryDirectory() as made:
        folder = Path(made)
        write_table(folder, rows, facts)
        target.write_bytes((folder / TABLE_FILE).read_bytes())
        target.with_suffix(".provenance.json").write_bytes((folder / PROVENANCE_FILE).read_bytes())
    print(f"{len(rows)} rows written to {target}")


if __name__ == "__main__":
    main()
