"""Tables of other projects, turned into tables of this one."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aicb import InputError, get_gpu
from aicb.formats.imports import import_files, write_table
from aicb.measurements.table import KernelRow, KernelTable, read_rows
from aicb.profiling.store import Row
from aicb.profiling.store import write_table as write_profile

KERNELS = Path(__file__).parents[4] / "shared/data/kernels"
GEMM = "system,framework,version,gemm_dtype,m,n,k,latency_us\n"
ORIGIN = "h100_sxm,sglang,0.5.9"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def imported(form: str, path: Path, directory: Path, heads: int | None = None) -> list[KernelRow]:
    """Rows as a table's reader sees them, launch constants apart."""
    write_table(import_files(form, [path], heads=heads), get_gpu("h100"), directory)
    rows = read_rows((directory / "kernels.csv").read_text().splitlines(), "kernels.csv")
    return [row for row in rows if row.kernel.partition("/")[0] != "h200"]


def test_a_gemm_of_aiconfigurator_keeps_shape_and_time(tmp_path: Path) -> None:
    text = GEMM + f"{ORIGIN},fp8_block,64,7168,16384,5.2e1\n{ORIGIN},int8_wo,64,7168,16384,40\n"
    (row,) = imported("aiconfigurator", written(tmp_path / "gemm.csv", text), tmp_path)
    assert (row.op, row.dtype, row.cold_us, row.graph_us) == ("gemm", "fp8", 52.0, 52.0)
    assert dict(row.shape) == {"m": 64, "n": 7168, "k": 16384}
    assert row.kernel == "sglang 0.5.9/gemm+quant"
    cautions = json.loads((tmp_path / "provenance.json").read_text())["cautions"]
    assert any("1 rows of other formats" in caution for caution in cautions)
    assert any("include the dynamic 1x128 quantisation" in caution for caution in cautions)
    assert any("launch constants" in caution for caution in cautions)


def test_a_table_of_which_no_row_can_be_used_is_refused(tmp_path: Path) -> None:
    text = GEMM + f"{ORIGIN},int3,64,7168,16384,40\n"
    with pytest.raises(InputError, match=r"gemm\.csv: rows: found none that can be used \(gemm\.csv: 1 rows of other"):
        imported("aiconfigurator", written(tmp_path / "gemm.csv", text), tmp_path)


def test_own_files_of_aiconfigurator_are_in_milliseconds(tmp_path: Path) -> None:
    text = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
    text += "TRTLLM,1.0,NVIDIA H100,gemm,default,bfloat16,1,128,256,0.0032\n"
    (row,) = imported("aiconfigurator", written(tmp_path / "gemm_perf.txt", text), tmp_path)
    assert row.cold_us == pytest.approx(3.2)


def test_attention_of_aiconfigurator_becomes_prefill_decode_and_mla(tmp_path: Path) -> None:
    shared = "system,framework,version,kernel,attn_dtype,kv_cache_dtype,head_dim,num_heads,num_kv_heads,batch_size"
    origin = "h100_sxm,vllm,0.24.0,fa3,bfloat16,bfloat16"
    context = written(tmp_path / "context.csv", f"{shared},seq_len,latency_us\n{origin},128,32,0,2,4096,900\n")
    (row,) = imported("aiconfigurator", context, tmp_path)
    expected = {"batch": 2, "heads": 32, "kv_heads": 32, "d_qk": 128, "d_v": 128, "q_len": 4096, "kv_len": 4096}
    assert (row.op, dict(row.shape)) == ("prefill_attention", expected)
    generation = written(tmp_path / "generation.csv", f"{shared},kv_len,latency_us\n{origin},128,32,8,64,4096,300\n")
    (row,) = imported("aiconfigurator", generation, tmp_path)
    assert (row.op, row["kv_heads"], row["q_len"], row["kv_len"]) == ("decode_attention", 8, 1, 4096)
    header = "system,framework,version,kv_cache_dtype,num_heads,batch_size,kv_len,latency_us,sample\n"
    mla = written(tmp_path / "mla.csv", header + "h100_sxm,sglang,0.5.10,bfloat16,128,8,1024,25,0\n")
    (row,) = imported("aiconfigurator", mla, tmp_path)
    assert (row.op, row["heads"], row["d_qk"], row["d_v"]) == ("mla_decode", 128, 576, 512)


def test_rows_of_several_origins_are_never_mixed(tmp_path: Path) -> None:
    text = GEMM + f"{ORIGIN},bfloat16,1,128,256,3\nh200_sxm,sglang,0.5.9,bfloat16,1,128,256,3\n"
    path = written(tmp_path / "gemm.csv", text)
    with pytest.raises(InputError, match=r"gemm\.csv: system: found h100_sxm, h200_sxm, expected one"):
        import_files("aiconfigurator", [path])
    assert len(import_files("aiconfigurator", [path], {"system": "h100_sxm"}).rows) == 1


def test_a_condition_on_a_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "gemm.csv", GEMM + f"{ORIGIN},bfloat16,1,128,256,3\n")
    with pytest.raises(InputError, match=r"where: found column 'systems', expected one of system, framework"):
        import_files("aiconfigurator", [path], {"systems": "h100_sxm"})


def test_parquet_and_gzip_are_read_as_csv_is(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    text = GEMM + f"{ORIGIN},bfloat16,1,128,256,3.5\n"
    with gzip.open(tmp_path / "gemm.csv.gz", "wt") as file:
        file.write(text)
    header, cells = (line.split(",") for line in text.splitlines())
    columns = {
        name: [float(cell) if cell[0].isdigit() and name == "latency_us" else cell]
        for name, cell in zip(header, cells, strict=True)
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "gemm.parquet")
    plain = import_files("aiconfigurator", [written(tmp_path / "gemm.csv", text)]).rows
    assert import_files("aiconfigurator", [tmp_path / "gemm.csv.gz"]).rows == plain
    assert import_files("aiconfigurator", [tmp_path / "gemm.parquet"]).rows == plain


def test_infersim_tables_of_all_kinds_are_read(tmp_path: Path) -> None:
    gemm = written(tmp_path / "gemm.csv", "m,k,n,latency_us,mfu\n64,7168,1536,10.9,0.1\n")
    (row,) = imported("infersim", gemm, tmp_path)
    assert (row.op, row["m"], row["n"], row["k"], row.cold_us) == ("gemm", 64, 1536, 7168, 10.9)
    header = "num_experts,num_gpus,num_local_experts,topk,hidden_size,intermediate_size"
    times = "tokens_per_expert,up_proj_us,up_mfu,down_proj_us,down_mfu"
    text = f"{header},batch_size_per_gpu,{times}\n256,32,8,8,7168,2048,64,16,92.1,0.1,52.7,0.1\n"
    up, down = imported("infersim", written(tmp_path / "decode.csv", text), tmp_path)
    assert (up.op, up["n"], up["k"], up["rows"], up["groups"], up.cold_us) == (
        "grouped_gemm_masked",
        4096,
        7168,
        128,
        8,
        92.1,
    )
    assert (down["n"], down["k"], down.cold_us, down.distribution) == (7168, 2048, 52.7, "balanced")
    text = text.replace("batch_size_per_gpu", "seq_len_per_gpu")
    assert imported("infersim", written(tmp_path / "p.csv", text), tmp_path)[0].op == "grouped_gemm_contiguous"


def test_infersim_attention_takes_its_heads_from_the_file_name(tmp_path: Path) -> None:
    text = "dtype,kv_dtype,batch_size,kv_len,latency_us,mfu\nbf16,bf16,16,4096,200,0.1\nfp8,fp8,16,4096,100,0.1\n"
    (row,) = imported("infersim", written(tmp_path / "64-2-128.csv", text), tmp_path)
    assert (row.op, row["heads"], row["kv_heads"], row["d_qk"], row["batch"]) == ("decode_attention", 64, 2, 128, 16)
    headless = written(tmp_path / "32-4-128.csv", "".join(text.splitlines(keepends=True)[1:2]))
    (row,) = imported("infersim", headless, tmp_path)
    assert (row["kv_len"], row.cold_us) == (4096, 200)
    mla = written(tmp_path / "mla.csv", text)
    (row,) = imported("infersim", mla, tmp_path, heads=128)
    assert (row.op, row["heads"], row["kv_heads"], row["d_qk"]) == ("mla_decode", 128, 1, 576)
    with pytest.raises(InputError, match=r"mla\.csv: heads: found none in the file name"):
        import_files("infersim", [mla])
    prefill = written(tmp_path / "prefill.csv", "dtype,seq_len,latency_us,mfu\nbf16,4096,1105,0.5\n")
    (row,) = imported("infersim", prefill, tmp_path, heads=128)
    assert (row.op, row["d_qk"], row["d_v"], row["kv_heads"]) == ("prefill_attention", 192, 128, 128)


def test_vidur_profiles_are_in_milliseconds(tmp_path: Path) -> None:
    """Llama-2-70B on 4 ranks: 8192 columns; qkv (64 + 2·8)·128/4, o 8192/4, gated up 2·28672/4."""
    operators = {"attn_pre_proj": 0.05, "attn_post_proj": 0.04, "mlp_up_proj": 0.2, "mlp_down_proj": 0.1}
    operators["input_layernorm"] = 0.006
    names = [f"time_stats.{op}.median" for op in operators]
    sizes = {"n_head": 64, "n_kv_head": 8, "n_embd": 8192, "n_expanded_embd": 28672, "vocab_size": 32000}
    sizes |= {"use_gated_mlp": True, "num_tokens": 128, "num_tensor_parallel_workers": 4}
    text = ",".join([*names, *sizes]) + "\n" + ",".join(map(str, [*operators.values(), *sizes.values()])) + "\n"
    rows = imported("vidur", written(tmp_path / "mlp.csv", text), tmp_path)
    found = {row.kernel: ([row.shape.get(c) for c in "mnk"], row.cold_us) for row in rows}
    assert found == {
        "vidur/attn_pre_proj": ([128, 2560, 8192], 50.0),
        "vidur/attn_post_proj": ([128, 8192, 2048], 40.0),
        "vidur/mlp_up_proj": ([128, 14336, 8192], 200.0),
        "vidur/mlp_down_proj": ([128, 8192, 7168], 100.0),
        "vidur/input_layernorm": ([128, 8192, None], 6.0),
    }


def test_vidur_attention_tells_prefill_from_decode(tmp_path: Path) -> None:
    header = "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,block_size,"
    header += "num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,"
    header += "attention_backend\n"
    text = (
        header + "0.5,0.0,8192,64,8,16,4,4096,1,1024,2048,True,flash\n,0.08,8192,64,8,16,4,4096,32,0,2048,False,flash\n"
    )
    prefill, decode = imported("vidur", written(tmp_path / "attention.csv", text), tmp_path)
    assert (prefill.op, prefill["q_len"], prefill["kv_len"], prefill.cold_us) == ("prefill_attention", 1024, 3072, 500)
    assert (prefill["heads"], prefill["kv_heads"], prefill["d_qk"]) == (16, 2, 128)
    assert (decode.op, decode["batch"], decode["kv_len"], decode.cold_us) == ("decode_attention", 32, 2048, 80)


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("aiconfigurator", "a,b\n1,2\n", "header: found a, b, expected a GEMM, attention or MLA table"),
        ("infersim", "a,b\n1,2\n", "expected a table of InferSim"),
        ("vidur", "a,b\n1,2\n", r"expected Vidur's mlp\.csv"),
        (
            "aiconfigurator",
            GEMM + f"{ORIGIN},bfloat16,1,128,256,-3\n",
            "line 2: latency_us: found -3.0, expected a pos",
        ),
        ("aiconfigurator", GEMM + f"{ORIGIN},bfloat16,1.5,128,256,3\n", "line 2: m: found '1.5', expected a whole"),
        ("aiconfigurator", GEMM + f"{ORIGIN},bfloat16,1,128\n", "line 2: found 6 cells, expected 8"),
        ("aiconfigurator", "", "found nothing"),
    ],
)
def test_wrong_tables_are_refused_with_their_line(form: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        import_files(form, [written(tmp_path / "t.csv", text)])


def test_imported_tables_are_whole_tables(tmp_path: Path) -> None:
    """Launch constants of the H200 stand in, so that the table has what estimators ask of one."""
    text = GEMM + "".join(f"{ORIGIN},bfloat16,{m},4096,4096,{10 + m / 10}\n" for m in (1, 64, 128))
    write_table(import_files("aiconfigurator", [written(tmp_path / "g.csv", text)]), get_gpu("h100"), tmp_path)
    rows = read_rows((tmp_path / "kernels.csv").read_text().splitlines(), "kernels.csv")
    table = KernelTable("h100", tuple(rows), {})
    assert table.launch.graph_node_us == pytest.approx(KernelTable.load("h200").launch.graph_node_us, rel=0.1)
    assert len(table.select("gemm", "bf16")) == 3


def test_the_command_says_what_it_read_and_what_to_mind(tmp_path: Path) -> None:
    path = written(tmp_path / "gemm.csv", GEMM + f"{ORIGIN},fp8_block,1,128,256,3\n")
    command = [sys.executable, "-m", "aicb", "import", "--format", "aiconfigurator", "--gpu", "h100", "--json"]
    command += ["-o", str(tmp_path / "h100"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True)
    summary = json.loads(done.stdout)
    assert summary["rows"] == {"gemm": 1}
    assert any("quantisation" in caution for caution in summary["cautions"])


@pytest.mark.skipif(not KERNELS.is_dir(), reason="published kernel tables are not beside the repository")
@pytest.mark.parametrize(
    ("name", "conditions", "op"),
    [
        ("gemm", {"version": "0.5.9"}, "gemm"),
        ("attention_context", {"framework": "vllm"}, "prefill_attention"),
        ("mla_generation", {"version": "0.5.14"}, "mla_decode"),
    ],
)
def test_published_tables_are_read_whole(name: str, conditions: dict[str, str], op: str) -> None:
    path = KERNELS / f"{name}.csv.gz"
    conditions = {"system": "h100_sxm", **conditions}
    with gzip.open(path, "rt") as file:
        wanted = [row for row in csv.DictReader(file) if conditions.items() <= row.items()]
    formats = {"bfloat16", "fp8_block"}
    column = next(c for c in ("gemm_dtype", "attn_dtype", "kv_cache_dtype") if c in wanted[0])
    found = import_files("aiconfigurator", [path], conditions).rows
    assert len(found) == sum(row[column] in formats for row in wanted) > 1000
    assert {row["op"] for row in found} == {op}
    latencies = [float(row["latency_us"]) for row in wanted if row[column] in formats]
    assert sum(float(row["cold_us"]) for row in found) == pytest.approx(sum(latencies), rel=1e-5)


def test_a_profile_becomes_a_table_with_its_own_launch_constants(tmp_path: Path) -> None:
    """Of two kernels of one shape one stays; null_kernel is measured, the other constants are the H200's."""
    rows: list[Row] = [
        {"op": "null_kernel", "kernel": "torch/null_kernel", "dtype": "", "cold_us": 2.5, "run": "a"},
        {"op": "rope", "kernel": "vllm/rope", "dtype": "bf16", "m": 4, "n": 8, "cold_us": 5.0, "run": "a"},
        {"op": "rope", "kernel": "triton_own/rope", "dtype": "bf16", "m": 4, "n": 8, "cold_us": 4.0, "run": "a"},
    ]
    write_profile(tmp_path, rows, {"environment": {"device": "cpu"}})
    found = import_files("profile", [tmp_path / "profile.parquet"])
    left_out, device = found.cautions
    assert left_out == "profile.parquet: 1 rows of other kernels of the same shapes left out"
    assert device == "profile.parquet: measured on cpu"
    folder = tmp_path / "h100"
    folder.mkdir()
    write_table(found, get_gpu("h100"), folder)
    table = KernelTable.read(folder, "h100")
    assert len(table.select("rope")) == 1
    assert dict(table.launch.event_floor_us) == {"a": 2.5}
    cautions = json.loads((folder / "provenance.json").read_text())["cautions"]
    assert cautions[-1] == "launch constants (graph_node, eager_launch_host) are those of the h200"


def test_another_parquet_file_is_no_profile(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: columns: found no op, expected a profile\.parquet"):
        import_files("profile", [tmp_path / "t.parquet"])
