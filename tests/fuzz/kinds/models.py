"""Models, GPUs, kernel tables, operator tables, recordings of expert loads and tables of other projects."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

import aicb
from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.mutation import as_csv, as_json, as_yaml, cells_of, document, few, mutated, mutated_cells, option_value

_FOLDER: Final = Path(aicb.__file__).parent / "data"
GPU: Final[dict[str, Any]] = {
    "name": "mine", "hbm_bytes": 85520809984, "hbm_bytes_per_s": 3.35e12, "peak_bf16_flops": 989.5e12,
    "peak_fp8_flops": 1979.0e12, "sms": 132, "l2_bytes": 52428800, "interconnect_as": "h100", "source": "a data sheet",
    "clock": {
        "reference_mhz": 1600, "light_mhz": 1804, "heavy_mhz": 1365, "light_share": 0.22, "heavy_share": 0.55,
        "settled": {"light_mhz": 1794, "heavy_mhz": 1329, "light_share": 0.2, "heavy_share": 0.5},
    },
}  # fmt: skip
OPERATORS: Final = """op,m,n,k,dtype,rows,groups,q_len,kv_len,heads,kv_heads,d_qk,d_v,batch
gemm,64,4096,4096,bf16,,,,,,,,,
grouped_gemm_masked,,4096,7168,fp8,64,8,,,,,,,
prefill_attention,,,,bf16,,,512,512,32,8,128,128,1
decode_attention,,,,bf16,,,,4096,32,8,128,128,16
mla_decode,,,,bf16,,,,4096,16,1,576,512,16
rms_norm,64,4096,,bf16,,,,,,,,,
"""
OPERATOR_NAMES: Final = ("op", "m", "n", "k", "dtype", "rows", "active_groups", "distribution", "time_us", "kernel")
PROVENANCE: Final[dict[str, Any]] = {"schema_version": 1, "gpu": "mine", "rows": 12, "environment": {}, "cautions": []}
IMPORTS: Final = {
    ("aiconfigurator", "gemm.csv"): "system,framework,version,gemm_dtype,m,n,k,latency_us\n"
    "h100_sxm,sglang,0.5.9,fp8_block,64,7168,16384,5.2e1\nh100_sxm,sglang,0.5.9,bfloat16,1,128,256,40\n",
    ("aiconfigurator", "gemm_perf.txt"): "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
    "TRTLLM,1.0,NVIDIA H100,gemm,default,bfloat16,1,128,256,0.0032\n",
    ("aiconfigurator", "context.csv"): "system,framework,version,kernel,attn_dtype,kv_cache_dtype,head_dim,num_heads,"
    "num_kv_heads,batch_size,seq_len,latency_us\nh100_sxm,vllm,0.24.0,fa3,bfloat16,bfloat16,128,32,0,2,4096,900\n",
    ("infersim", "gemm.csv"): "m,k,n,latency_us,mfu\n64,7168,1536,10.9,0.1\n",
    ("infersim", "64-2-128.csv"): "dtype,kv_dtype,batch_size,kv_len,latency_us,mfu\nbf16,bf16,16,4096,200,0.1\n",
    ("infersim", "decode.csv"): "num_experts,num_gpus,num_local_experts,topk,hidden_size,intermediate_size,"
    "batch_size_per_gpu,tokens_per_expert,up_proj_us,up_mfu,down_proj_us,down_mfu\n256,32,8,8,7168,2048,64,16,92.1,0.1,52.7,0.1\n",
    ("vidur", "mlp.csv"): "time_stats.attn_pre_proj.median,time_stats.mlp_up_proj.median,n_head,n_kv_head,n_embd,"
    "n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers\n0.05,0.2,64,8,8192,28672,32000,True,128,4\n",
    ("vidur", "attention.csv"): "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,"
    "n_kv_head,block_size,num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,"
    "attention_backend\n0.5,0.0,8192,64,8,16,4,4096,1,1024,2048,True,flash\n",
}  # fmt: skip
CONFIGURATION: Final = """seed: 0
model: %s
hardware: %s
workload: {kind: synthetic, requests: 2, arrivals: {kind: static}, lengths: {kind: fixed, prefill: 20, decode: 3}}
cluster:
  topology: {kind: single_switch}
  pools: [{name: m, role: mixed, dp: 2, ep: 2}]
engine: {expert_load: "%s", request_latency_ms: 1}
"""
MODEL_OPTIONS: Final = {
    "show": ("--tp", "--ep", "--dp", "--pp", "--stage", "--tokens", "--kv", "--redundant-experts", "--drafts",
             "--acceptance", "--expert-load", "--gpu", "--phase", "--weights", "--kv-format", "--estimator"),
    "memory": ("--tp", "--ep", "--dp", "--pp", "--redundant-experts", "--gpu-memory-utilization",
               "--max-batched-tokens", "--max-seqs", "--block-tokens", "--gpu", "--weights"),
    "export": ("--tp", "--ep", "--pp", "--batch", "--seq", "--gpu", "--phase", "--weights"),
}  # fmt: skip
GOOD: Final = {
    "--gpu": ("h200", "h100", "a100", "gpu"), "--phase": ("prefill", "decode"), "--weights": ("bf16", "fp8"),
    "--kv-format": ("bf16", "fp8"), "--estimator": ("auto", "roofline", "transfer", "interpolation"),
    "--acceptance": ("0.5",), "--gpu-memory-utilization": ("0.9",),
    "--expert-load": ("balanced", "uniform", "zipf:1", "power_law:1.2", "recorded:load.csv"),
}  # fmt: skip
LOADS: Final = ("zipf:1e308", "zipf:1e-320", "zipf:nan", "zipf:", "power_law:1e308", "power_law:1", "power_law:-1",
                "power_law:1" + "0" * 5000, "recorded:", "recorded:no", "recorded:.", "zipf:١", "balanced:1",
                "recorded:load.json", "recorded:/dev/zero/x", "zipf:inf", "zipf:300", "power_law:1000")  # fmt: skip


@cache
def configurations() -> tuple[dict[str, Any], ...]:
    """The fields of all built-in models, as a ``config.json`` has them."""
    names = ("qwen3-8b", "mixtral-8x7b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b", "qwen3-30b-a3b")
    files = (_FOLDER / "models" / f"{name}.yaml" for name in names)
    return tuple(yaml.safe_load(file.read_text())["config"] for file in files)


@cache
def kernels() -> str:
    """A small table of kernels: some lines of the shipped one for every operation."""
    lines = (_FOLDER / "h200" / "kernels.csv").read_text().splitlines()
    kept: dict[str, int] = {}
    chosen = [lines[0]]
    for line in lines[1:]:
        op = line.partition(",")[0]
        kept[op] = kept.get(op, 0) + 1
        if kept[op] <= 4:
            chosen.append(line)
    return "\n".join(chosen) + "\n"


def generate(rng: random.Random) -> Case:
    """A command of ``aicb``, or a simulation with a model or GPU of its own."""
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            return _model(rng)
        case 4 | 5:
            return _gpu(rng)
        case 6:
            content = document(rng, lambda: as_csv(mutated_cells(cells_of(OPERATORS, ","), rng, OPERATOR_NAMES), rng))
            return _predicted({"t.csv": content}, "h200", rng)
        case 7 | 8:
            return _imported(rng)
        case 9:
            return _loaded(rng)
        case _:
            return _options(rng)


def _model_file(rng: random.Random) -> tuple[str, bytes]:
    tree = rng.choice(configurations())
    names = tuple(tree)
    if rng.random() < 0.7:

        def written() -> bytes:
            if rng.random() < 0.04:
                return rng.choice(
                    (hostile.deep_sequences(100_000), hostile.deep_mappings(100_000), "null", "[]", "5")
                ).encode()
            return as_json(
                mutated(tree, rng, (*names, "sliding_window", "quantization_config", "layer_types", "mlp_only_layers")),
                rng,
            )

        return "config.json", document(rng, written)
    if rng.random() < 0.08:
        return "m.yaml", hostile.yaml_document(rng).encode("utf-8", "surrogatepass")
    return "m.yaml", document(rng, lambda: as_yaml(mutated({"source": "s", "config": tree}, rng, names), rng))


def _model(rng: random.Random) -> Case:
    name, content = _model_file(rng)
    files: dict[str, bytes | Special] = {name: content}
    if rng.random() < 0.03:
        files[name] = rng.choice(list(Special))
    match rng.randrange(6):
        case 0:
            return Case(("aicb", "memory", name, "--json"), files)
        case 1:
            form = rng.choice(("aicb", "vidur", "simai"))
            return Case(("aicb", "export", name, "-o", "out", "--format", form), files, ("out",))
        case 2:
            files["c.yaml"] = (CONFIGURATION % (f"./{name}", "h200", "uniform")).encode()
            return Case(("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet"), files, ("out",))
        case 3:
            return Case(("aicb", "show", name, "--gpu", "h200", "--phase", rng.choice(("prefill", "decode"))), files)
        case _:
            return Case(("aicb", "show", name, *rng.choice(((), ("--json",)))), files)


def _gpu(rng: random.Random) -> Case:
    files: dict[str, bytes | Special] = {
        "gpu/gpu.yaml": yaml.safe_dump(GPU).encode(),
        "gpu/kernels.csv": kernels().encode(),
        "gpu/provenance.json": json.dumps(PROVENANCE).encode(),
    }
    match rng.randrange(5):
        case 0 | 1:
            files["gpu/gpu.yaml"] = document(rng, lambda: as_yaml(mutated(GPU, rng, tuple(GPU)), rng))
        case 2 | 3:
            cells = cells_of(kernels(), ",")
            files["gpu/kernels.csv"] = document(rng, lambda: as_csv(mutated_cells(cells, rng), rng))
        case _:
            files["gpu/provenance.json"] = document(
                rng, lambda: as_json(mutated(PROVENANCE, rng, tuple(PROVENANCE)), rng)
            )
    if rng.random() < 0.1:
        del files[rng.choice(list(files))]
    if rng.random() < 0.04 and files:
        files[rng.choice(list(files))] = rng.choice((Special.FIFO, Special.NULL_DEVICE, Special.LOOP, Special.DANGLING))
    match rng.randrange(4):
        case 0:
            return Case(("aicb", "show", "qwen3-8b", "--gpu", "gpu", *rng.choice(((), ("--json",)))), files)
        case 1:
            return Case(("aicb", "memory", "qwen3-8b", "--gpu", "gpu", *rng.choice(((), ("--json",)))), files)
        case 2:
            files["c.yaml"] = (CONFIGURATION % ("qwen3-30b-a3b", "./gpu", "uniform")).encode()
            return Case(("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet"), files, ("out",))
        case _:
            return _predicted({**files, "t.csv": OPERATORS.encode()}, "gpu", rng)


PREDICTIONS: Final = (
    (), (), ("--timing", "engine"), ("--timing", "cold"), ("--estimator", "roofline"), ("--estimator", "interpolation"),
    ("--estimator", "transfer"), ("--json",), ("--measured-only",), ("--state", "bf16"),
)  # fmt: skip


def _predicted(files: dict[str, bytes | Special], gpu: str, rng: random.Random) -> Case:
    more = rng.choice(PREDICTIONS)
    if rng.random() < 0.03:
        files["t.csv"] = rng.choice(list(Special))
    output = rng.choice(("p.csv",) * 10 + ("t.csv", "x" * 300, "no/p.csv", "."))
    outputs = (output,) if output == "p.csv" else ()
    return Case(("aicb", "predict", "--gpu", gpu, "--table", "t.csv", "-o", output, *more), files, outputs)


def _imported(rng: random.Random) -> Case:
    (form, name), text = rng.choice(list(IMPORTS.items()))
    content = document(
        rng, lambda: as_csv(mutated_cells(cells_of(text, ","), rng, tuple(text.splitlines()[0].split(","))), rng)
    )
    if rng.random() < 0.1:
        name = rng.choice(("t.parquet", "t.csv.gz", "99999999999999999999-2-128.csv", "0-0-0.csv"))
    files: dict[str, bytes | Special] = {name: content}
    if rng.random() < 0.04:
        files[name] = rng.choice(list(Special))
    if rng.random() < 0.1:
        form = rng.choice(("aiconfigurator", "infersim", "vidur", "profile"))
    more = rng.choice(
        (
            (),
            (),
            (),
            (),
            ("--heads", option_value(rng)),
            ("--where", option_value(rng)),
            ("--json",),
            ("--where", "version=0.5.9"),
        )
    )
    return Case(("aicb", "import", name, "--format", form, "--gpu", "h100", "-o", "out", *more), files, ("out",))


def _loaded(rng: random.Random) -> Case:
    rows = "1,2,3,4\n4,3,2,1\n"
    if rng.random() < 0.5:
        name, content = "load.csv", document(rng, lambda: as_csv(mutated_cells(cells_of(rows, ","), rng), rng))
    else:
        tree: list[Any] = [[1, 2, 3, 4] * 32, [4, 3, 2, 1] * 32]
        name, content = "load.json", document(rng, lambda: as_json(mutated(tree, rng), rng))
    files: dict[str, bytes | Special] = {name: content}
    load = f"recorded:{name}" if rng.random() < 0.7 else rng.choice(LOADS)
    if rng.random() < 0.3:
        files["c.yaml"] = (CONFIGURATION % ("qwen3-30b-a3b", "h200", load)).encode()
        return Case(("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet"), files, ("out",))
    gpu = ("--gpu", "h200") if rng.random() < 0.3 else ()
    return Case(("aicb", "show", "qwen3-30b-a3b", "--dp", "4", "--ep", "4", "--expert-load", load, *gpu), files)


def _options(rng: random.Random) -> Case:
    verb = rng.choice(list(MODEL_OPTIONS))
    values: dict[str, str] = {}
    for name in rng.sample(MODEL_OPTIONS[verb], rng.randrange(1, 5)):
        values[name] = rng.choice(GOOD.get(name, ("1", "2", "4", "8", "16", "64")))
    for _ in range(few(rng)):
        name = rng.choice(MODEL_OPTIONS[verb])
        values[name] = rng.choice(LOADS) if name == "--expert-load" and rng.random() < 0.7 else option_value(rng)
    model = rng.choice(("qwen3-8b", "qwen3-30b-a3b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b"))
    model = model if rng.random() < 0.95 else option_value(rng)
    arguments = [word for name, value in values.items() for word in (name, value)]
    if verb == "export":
        arguments += ["-o", "out", "--format", rng.choice(("aicb", "vidur", "simai"))]
    if rng.random() < 0.3:
        arguments.append("--json")
    return Case(("aicb", verb, model, *arguments), {"load.csv": b"1,2,3,4\n"}, ("out",))
