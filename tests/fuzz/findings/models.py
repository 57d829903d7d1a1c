"""Small cases of `tests.fuzz.kinds.models` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

import json
from typing import Any, Final

import yaml

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.models import (
    CONFIGURATION,
    GPU,
    IMPORTS,
    LOADS,
    MODEL_OPTIONS,
    OPERATORS,
    PROVENANCE,
    configurations,
    kernels,
)

_QWEN, _MIXTRAL, _DEEPSEEK, _SPARSE, _NEXT, _MOE = configurations()
_MANY: Final = (0, 2**31, 2**63, 10**12, 10**300)


def _show(config: object, *more: str) -> Case:
    text = config if isinstance(config, str) else json.dumps(config)
    return Case(("aicb", "show", "config.json", *more), {"config.json": text.encode()})


def _simulated(config: dict[str, Any]) -> Case:
    text = (CONFIGURATION % ("./config.json", "h200", "uniform")).replace(", dp: 2, ep: 2", "")
    files: dict[str, bytes | Special] = {"c.yaml": text.encode(), "config.json": json.dumps(config).encode()}
    return Case(("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet"), files, ("out",))


def _gpu(gpu: object = GPU, table: str | None = None, provenance: object = PROVENANCE, *command: str) -> Case:
    files: dict[str, bytes | Special] = {
        "gpu/gpu.yaml": (gpu if isinstance(gpu, str) else yaml.safe_dump(gpu)).encode(),
        "gpu/kernels.csv": (kernels() if table is None else table).encode(),
        "gpu/provenance.json": (provenance if isinstance(provenance, str) else json.dumps(provenance)).encode(),
    }
    return Case(command or ("aicb", "show", "qwen3-8b", "--gpu", "gpu", "--json"), files)


def _predict(table: str, *more: str) -> Case:
    arguments = ("--gpu", "h200", "--table", "t.csv", "-o", "p.csv", *more)
    return Case(("aicb", "predict", *arguments), {"t.csv": table.encode()}, ("p.csv",))


def _import(form: str, name: str, text: str | bytes, *more: str) -> Case:
    content = text if isinstance(text, bytes) else text.encode()
    return Case(
        ("aicb", "import", name, "--format", form, "--gpu", "h100", "-o", "out", *more), {name: content}, ("out",)
    )


def _load(load: str, content: str = "") -> Case:
    name = load.partition(":")[2]
    files: dict[str, bytes | Special] = {name: content.encode()} if content else {}
    return Case(
        ("aicb", "show", "qwen3-30b-a3b", "--dp", "4", "--ep", "4", "--expert-load", load, "--gpu", "h200"), files
    )


CASES: Final[dict[str, Case]] = {
    "fp8-indexer-on-a-gpu-without-fp8": Case(
        ("aicb", "export", "deepseek-v3.2", "--seq=3", "--gpu=a100", "--phase=prefill", "--format=aicb", "-o", "out"),
        {},
        ("out",),
    ),
    **{
        f"{name}={value:g}": _show(_QWEN | {name: value})
        for name in (
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "head_dim",
            "vocab_size",
            "max_position_embeddings",
        )
        for value in _MANY
    },
    **{
        f"{name}={value:g}": _show(_DEEPSEEK | {name: value}, "--gpu", "h200")
        for name in (
            "n_routed_experts",
            "num_experts_per_tok",
            "n_shared_experts",
            "first_k_dense_replace",
            "moe_layer_freq",
            "kv_lora_rank",
        )
        for value in _MANY
    },
    **{
        f"{name}={value:g}": _show(_NEXT | {name: value})
        for name in ("full_attention_interval", "linear_conv_kernel_dim", "linear_num_key_heads")
        for value in _MANY
    },
    "simulated-many-layers": _simulated(_QWEN | {"num_hidden_layers": 10_000}),
    "simulated-wide": _simulated(_QWEN | {"hidden_size": 2**24}),
    "simulated-long": _simulated(_QWEN | {"max_position_embeddings": 2**31 - 1}),
    "simulated-small": _simulated(
        _QWEN
        | {
            "hidden_size": 1,
            "head_dim": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "intermediate_size": 1,
            "vocab_size": 1,
            "num_hidden_layers": 1,
        }
    ),
    "rotary-1e-320": _show(_NEXT | {"partial_rotary_factor": 1e-320}),
    "architectures-deep": _show(_QWEN | {"architectures": [[[["a"]]]]}),
    "architectures-long": _show(_QWEN | {"architectures": ["x" * 200_000]}),
    "layer-types-of-lists": _show(_NEXT | {"layer_types": [[]] * _NEXT["num_hidden_layers"]}),
    "mlp-only-flags": _show(_MOE | {"mlp_only_layers": [True]}),
    "quantization-deep": _show(_QWEN | {"quantization_config": {"quant_method": ["fp8"], "weight_block_size": {}}}),
    "deep-config": _show(hostile.deep_sequences(100_000)),
    "many-digits": _show(json.dumps(_QWEN).replace('"hidden_size": 4096', '"hidden_size": ' + "9" * 5000)),
    "key-twice": _show(json.dumps(_QWEN)[:-1] + ', "hidden_size": 1}'),
    "not-a-number": _show(json.dumps(_QWEN).replace("4096", "NaN")),
    "model-yaml-deep": Case(("aicb", "show", "m.yaml"), {"m.yaml": hostile.deep_mappings(40_000).encode()}),
    "model-yaml-merge-bomb": Case(("aicb", "show", "m.yaml"), {"m.yaml": hostile.merge_bomb().encode()}),
    "model-yaml-tag": Case(("aicb", "show", "m.yaml"), {"m.yaml": b"source: !!int abc\nconfig: {}\n"}),
    "model-yaml-double-underscore": Case(("aicb", "show", "m.yaml"), {"m.yaml": b"source: 1__0\nconfig: {}\n"}),
    "model-yaml-last-underscore": Case(("aicb", "show", "m.yaml"), {"m.yaml": b"source: 1_\nconfig: {}\n"}),
    "model-is-a-pipe": Case(("aicb", "show", "config.json"), {"config.json": Special.FIFO}),
    "model-is-a-loop": Case(("aicb", "show", "m.yaml"), {"m.yaml": Special.LOOP}),
    "model-of-a-long-name": Case(("aicb", "show", "x" * 300)),
    "model-of-a-longer-name": Case(("aicb", "show", "x" * 100_000)),
    "model-that-is-no-text": Case(("aicb", "show", "\udcff")),
    **{
        f"gpu-{name}={value:g}": _gpu(GPU | {name: value})
        for name in ("hbm_bytes", "sms", "l2_bytes", "hbm_bytes_per_s", "peak_bf16_flops")
        for value in (1e-320, 1, 1e300, 1e308, 2**63)
    },
    "gpu-clock-1e308": _gpu(
        GPU
        | {
            "clock": {
                "reference_mhz": 1e308,
                "light_mhz": 1e308,
                "heavy_mhz": 1e-320,
                "light_share": 0.26,
                "heavy_share": 0.54,
            }
        }
    ),
    "gpu-clock-list": _gpu(GPU | {"clock": [1]}),
    "gpu-name-escape": _gpu(GPU | {"name": "\x1b[31m"}),
    "gpu-name-as-path": _gpu(GPU | {"name": "../../x", "interconnect_as": "x" * 300}),
    "gpu-interconnect": _gpu(GPU | {"interconnect_as": "\0"}),
    "gpu-many-digits": _gpu("name: " + "9" * 5000 + "\n"),
    "gpu-long-key": _gpu("x" * 200_000 + ": 1\n"),
    "gpu-of-a-long-name": Case(("aicb", "show", "qwen3-8b", "--gpu", "x" * 300)),
    "gpu-of-nul": Case(("aicb", "memory", "qwen3-8b", "--gpu", "\udcff")),
    "kernels-long-cell": _gpu(table=kernels() + "y" * 200_000 + "\n"),
    "kernels-empty": _gpu(table=""),
    "kernels-header-only": _gpu(table=kernels().splitlines()[0] + "\n"),
    "kernels-without-launches": _gpu(
        table="\n".join(line for line in kernels().splitlines() if "graph_node" not in line)
    ),
    "kernels-many-digits": _gpu(table=kernels().replace("8192", "9" * 5000, 1)),
    "kernels-infinite": _gpu(table=kernels().replace("45.168", "inf", 1)),
    "kernels-underflow": _gpu(table=kernels().replace("45.168", "1e-320", 1)),
    "kernels-zero-size": _gpu(table=kernels().replace(",8192,", ",0,")),
    "kernels-negative-size": _gpu(table=kernels().replace(",8192,", ",-5,")),
    "kernels-other-header": _gpu(table="a,b\n1,2\n"),
    "provenance-list": _gpu(provenance=[]),
    "provenance-null": _gpu(provenance="null"),
    "provenance-empty": _gpu(provenance=""),
    "provenance-deep": _gpu(provenance=hostile.deep_mappings(100_000)),
    "provenance-version-list": _gpu(provenance=PROVENANCE | {"schema_version": [1]}),
    "predict-long-cell": _predict(OPERATORS + "y" * 200_000 + "\n"),
    "predict-empty": _predict(""),
    "predict-only-a-header": _predict(OPERATORS.splitlines()[0] + "\n"),
    "predict-columns-twice": _predict("op,m,n,k,m\ngemm,1,2,3,4\n"),
    **{
        f"predict-gemm-{value}": _predict(f"op,m,n,k,dtype\ngemm,{value},4096,4096,bf16\n")
        for value in ("0", "-1", "1e3", "1e300", str(2**63), "1" + "0" * 400, "9" * 5000, "١٢", "nan", "inf", "1e-320")
    },
    **{
        f"predict-{op}-{estimator}": _predict(
            f"op,m,n,k,dtype,rows,groups,q_len,kv_len,heads,kv_heads,d_qk,d_v,batch\n{op}"
            + f",{10**12}" * 3
            + ",bf16"
            + f",{10**12}" * 9
            + "\n",
            "--estimator",
            estimator,
        )
        for op in (
            "gemm",
            "bmm",
            "grouped_gemm_masked",
            "prefill_attention",
            "decode_attention",
            "mla_decode",
            "index_topk_prefill",
            "rms_norm",
            "topk",
        )
        for estimator in ("auto", "roofline", "transfer")
    },
    "predict-onto-the-table": Case(
        ("aicb", "predict", "--gpu", "h200", "--table", "t.csv", "-o", "t.csv"), {"t.csv": OPERATORS.encode()}
    ),
    "predict-long-output": Case(
        ("aicb", "predict", "--gpu", "h200", "--table", "t.csv", "-o", "x" * 300), {"t.csv": OPERATORS.encode()}
    ),
    **{f"load-{load[:20]}": _load(load) for load in LOADS},
    "load-large": _load("recorded:l.csv", ",".join(["1e308"] * 128) + "\n"),
    "load-small": _load("recorded:l.csv", ",".join(["1e-320"] * 128) + "\n"),
    "load-of-one": _load("recorded:l.csv", ",".join(["1"] + ["1e-320"] * 127) + "\n"),
    "load-deep": _load("recorded:l.json", hostile.deep_sequences(100_000)),
    "load-number": _load("recorded:l.json", "5"),
    "load-nothing": _load("recorded:l.json", "[]"),
    "load-null": _load("recorded:l.json", "null"),
    "load-object": _load("recorded:l.json", "{}"),
    "load-mixed": _load("recorded:l.json", "[[1], 2]"),
    "load-flags": _load("recorded:l.json", "[[true, null]]"),
    "load-digits": _load("recorded:l.json", f"[[{'9' * 5000}]]"),
    "load-large-integer": _load("recorded:l.json", f"[[1{'0' * 400}]]"),
    **{
        f"import-{form}-{name}-without-{column}": _import(form, name, text.replace(column, "other", 1))
        for (form, name), text in IMPORTS.items()
        for column in text.splitlines()[0].split(",")
    },
    **{
        f"import-{form}-{name}-{value[:9]}": _import(
            form, name, text.splitlines()[0] + "\n" + ",".join([value] * len(text.splitlines()[0].split(","))) + "\n"
        )
        for (form, name), text in IMPORTS.items()
        for value in ("0", "-1", "1e300", "9" * 5000, "", "nan", "bf16")
    },
    "import-heads": _import("infersim", "m.csv", IMPORTS["infersim", "64-2-128.csv"], "--heads", "9223372036854775808"),
    "import-no-heads": _import("infersim", "m.csv", IMPORTS["infersim", "64-2-128.csv"], "--heads", "0"),
    "import-heads-of-the-name": _import(
        "infersim", "99999999999999999999-2-128.csv", IMPORTS["infersim", "64-2-128.csv"]
    ),
    "import-zero-heads-of-the-name": _import("infersim", "0-0-0.csv", IMPORTS["infersim", "64-2-128.csv"]),
    "import-damaged-parquet": _import("aiconfigurator", "t.parquet", b"PAR1abcPAR1"),
    "import-empty-parquet": _import("aiconfigurator", "t.parquet", b""),
    "import-damaged-gzip": _import("aiconfigurator", "t.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\0abc"),
    "import-long-cell": _import("aiconfigurator", "t.csv", "m,n,k\n" + "y" * 200_000 + ",1,1\n"),
    "import-empty": _import("vidur", "t.csv", ""),
    "import-surrogate": _import("aiconfigurator", "t.csv", "a\n1\n", "--where", "\udcff=1"),
    "import-out-is-a-file": Case(
        ("aicb", "import", "t.csv", "--format", "vidur", "--gpu", "h100", "-o", "t.csv"),
        {"t.csv": IMPORTS["vidur", "mlp.csv"].encode()},
    ),
    "import-long-out": Case(
        ("aicb", "import", "t.csv", "--format", "vidur", "--gpu", "h100", "-o", "x" * 300),
        {"t.csv": IMPORTS["vidur", "mlp.csv"].encode()},
    ),
    **{
        f"{verb}{option}={value}": Case(
            (
                "aicb",
                verb,
                "deepseek-v3",
                option,
                value,
                *(("-o", "out", "--format", "aicb") if verb == "export" else ()),
                *(("--gpu", "h200") if verb == "show" and option != "--gpu" else ()),
            ),
            {},
            ("out",),
        )
        for verb, options in MODEL_OPTIONS.items()
        for option in options
        for value in ("1000000000000", str(2**63), "nan")
    },
}

WENT_WRONG: Final = frozenset(
    {
        "fp8-indexer-on-a-gpu-without-fp8",
        "num_hidden_layers=1e+12",
        "deep-config",
        "model-yaml-deep",
        "model-yaml-double-underscore",
        "model-yaml-last-underscore",
        "model-of-a-long-name",
        "model-of-a-longer-name",
        "gpu-hbm_bytes_per_s=9.99989e-321",
        "gpu-hbm_bytes_per_s=1",
        "gpu-peak_bf16_flops=9.99989e-321",
        "gpu-peak_bf16_flops=1",
        "gpu-of-a-long-name",
        "kernels-long-cell",
        "kernels-header-only",
        "kernels-without-launches",
        "predict-long-cell",
        "predict-prefill_attention-auto",
        "predict-prefill_attention-roofline",
        "predict-prefill_attention-transfer",
        "predict-decode_attention-auto",
        "predict-decode_attention-roofline",
        "predict-decode_attention-transfer",
        "predict-mla_decode-auto",
        "predict-mla_decode-roofline",
        "predict-mla_decode-transfer",
        "predict-index_topk_prefill-auto",
        "predict-index_topk_prefill-roofline",
        "predict-index_topk_prefill-transfer",
        "predict-onto-the-table",
        "predict-long-output",
        "load-power_law:1e308",
        "load-large",
        "import-infersim-64-2-128.csv-without-dtype",
        "show--dp=1000000000000",
        "show--dp=9223372036854775808",
        "show--drafts=1000000000000",
        "show--drafts=9223372036854775808",
        "export--batch=1000000000000",
        "export--batch=9223372036854775808",
        "export--seq=9223372036854775808",
    }
)
"""The others never did, and run with ``--long``."""
