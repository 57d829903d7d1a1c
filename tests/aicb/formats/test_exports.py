"""Layer times in the formats of AICB, SimAI and Vidur, read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aicb import InputError, Partition, Precision, get_gpu, load_model
from aicb.formats.exports import (
    ExportJob,
    layer_costs,
    read_aicb,
    read_simai,
    read_vidur,
    sum_by_layer,
    write_aicb,
    write_simai,
    write_vidur,
)
from aicb.formats.exports.layers import ServingPhase
from aicb.iteration.model import select_estimator
from tests.forked_commands import run_forked

FP8 = Precision("fp8")


def aicb(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    done = run_forked("aicb", *arguments)
    return done.returncode, done.stdout, done.stderr


ESTIMATOR = select_estimator("auto", get_gpu("h200"), FP8)
MODELS = {
    "deepseek-v3": Partition(dp=8, ep=8),
    "qwen3-235b-a22b": Partition(tp=4, ep=4),
    "qwen3-next-80b-a3b": Partition(tp=2, ep=2),
    "qwen3-8b": Partition(tp=2),
}


def job(name: str, phase: ServingPhase = "decode", partition: Partition | None = None) -> ExportJob:
    return ExportJob(load_model(name), partition or MODELS[name], FP8, phase, 4, 2000)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MODELS)
def test_the_formats_agree_on_the_time_of_every_layer(name: str, phase: ServingPhase, tmp_path: Path) -> None:
    exported = job(name, phase)
    costs = layer_costs(exported, ESTIMATOR)
    (vidur,), (simai,) = write_vidur(exported, costs, tmp_path), write_simai(exported, costs, tmp_path)
    total_ns = sum(sum(cost.part_us.values()) for cost in costs) * 1000
    lines = read_vidur(vidur)
    assert [line.layer_id for line in lines] == [i for i in range(len(costs)) for _ in range(2)]
    assert sum(line.compute_ns for line in lines) == pytest.approx(total_ns, abs=len(lines))
    assert sum(line.compute_ns for line in read_simai(simai)[1]) == pytest.approx(total_ns, abs=6 * len(costs))
    description, _ = write_aicb(exported, costs, tmp_path)
    _, times = read_aicb(description)
    kinds = {id(cost): cost for cost in costs}.values()
    if len(kinds) == 1:  # every layer has every key
        assert sum(sum_by_layer(times).values()) * len(costs) == pytest.approx(total_ns, rel=1e-4)


def test_aicb_files_are_named_and_keyed_as_their_reader_expects(tmp_path: Path) -> None:
    """The real pp stands in the name; the reader takes ns as avg·1000 by the first substring that fits."""
    exported = job("deepseek-v3", partition=Partition(dp=8, ep=8, pp=2))
    description, companion = write_aicb(exported, layer_costs(exported, ESTIMATOR), tmp_path)
    assert description.name == "DeepSeek-671B-world_size16-tp1-pp2-ep8-bpg4-seq2000-decode.txt"
    assert companion.name == "DeepSeek-671B_time_list_stats.txt"
    text = description.read_text().splitlines()
    assert text[:3] == ["inference_term:decode", "atten_qkv:", text[2]]
    assert [line.split(":")[0] for line in text[2:5]] == ["    time_gpu_max", "    time_gpu_min", "    time_gpu_avg"]
    phase, times = read_aicb(description)
    assert phase == "decode"
    assert set(times) == {"atten_qkv", "atten_flash", "atten_linear", "mlp_up", "mlp_down", "moe_up_gate", "moe_down"}
    sums = sum_by_layer(times)
    assert sums["attention_layer"] == pytest.approx(
        1000 * sum(times[key]["avg"] for key in ("atten_qkv", "atten_flash", "atten_linear")), abs=2
    )
    assert {"variance", "P99"} == set(json.loads(companion.read_text())["moe_down"])


def test_qwen_keys_and_gdn_keys_are_those_of_aicb(tmp_path: Path) -> None:
    qwen = {
        "atten_norm",
        "atten_qkv",
        "atten_rotary_emb",
        "atten_flash",
        "atten_o",
        "moe_norm",
        "moe_route_gate",
        "moe_route_select_experts",
        "moe_expert_up",
        "moe_expert_act",
        "moe_expert_down",
    }
    for name, more in (
        ("qwen3-235b-a22b", set()),
        ("qwen3-next-80b-a3b", {"gdn_qkv", "gdn_causal_conv", "gdn_core", "gdn_o"}),
    ):
        exported = job(name, "prefill")
        description, _ = write_aicb(exported, layer_costs(exported, ESTIMATOR), tmp_path)
        assert set(read_aicb(description)[1]) == qwen | more


def test_simai_lines_have_twelve_columns_and_the_sizes_of_the_generator(tmp_path: Path) -> None:
    """m = 4 decodes, h = 4096, k = 8, tp 4: all-reduce 2·4·4096 B, combine 2·4·4096·8/4 B, dispatch 0.515625 of it."""
    exported = job("qwen3-235b-a22b")
    (path,) = write_simai(exported, layer_costs(exported, ESTIMATOR), tmp_path)
    assert path.name == "Qwen3-Moe-235B-world_size4-tp4-pp1-ep4-bs4-seq2000-decode.txt"
    text = path.read_text().splitlines()
    assert text[0] == (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 4 pp: 1 all_gpus: 4 mode: 1"
        " vpp: 1 ga: 1 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    assert int(text[1]) == len(text) - 2 == 94 * 5
    cells = text[3].split("\t")
    assert len(cells) == 12
    assert [cells[0], cells[1], cells[3], cells[-1]] == ["attention_layer", "-1", "ALLREDUCE", "100"]
    _, lines = read_simai(path)
    assert {line.name: (line.collective, line.size_bytes) for line in lines} == {
        "attention_norm": ("NONE", 0),
        "attention_layer": ("ALLREDUCE", 32_768),
        "moe_norm": ("NONE", 0),
        "moe_route": ("ALLTOALL_EP", 33_792),
        "moe_expert": ("ALLTOALL_EP", 65_536),
    }


def test_simai_names_dense_gdn_and_shared_layers_and_sizes_stage_borders(tmp_path: Path) -> None:
    deepseek = job("deepseek-v3", "prefill", Partition(tp=8, ep=8, pp=2))
    header, lines = read_simai(write_simai(deepseek, layer_costs(deepseek, ESTIMATOR), tmp_path)[0])
    assert header.pp_comm_bytes == 2 * 4 * 2000 * 7168
    assert [line.name for line in lines[:3]] == ["attention_norm", "attention_layer", "dense_mlp"]
    assert sum(line.name == "shared_experts" for line in lines) == 58
    following = job("qwen3-next-80b-a3b")
    names = [
        line.name for line in read_simai(write_simai(following, layer_costs(following, ESTIMATOR), tmp_path)[0])[1]
    ]
    assert (names.count("attention_gdn"), names.count("attention_layer")) == (36, 12)


def test_vidur_tables_are_separated_by_tabs(tmp_path: Path) -> None:
    exported = job("deepseek-v3")
    (path,) = write_vidur(exported, layer_costs(exported, ESTIMATOR), tmp_path)
    assert path.name == "vidur-DeepSeek-671B-world_size8-tp1-pp1-ep8-bs4-seq2000-decode.csv"
    assert path.read_text().splitlines()[0] == "layer_id\tlayer_name\tcomp_time\tcomm_size"
    lines = read_vidur(path)
    assert [line.layer_name for line in lines[4:8]] == ["attention", "mlp", "attention", "moe"]
    combine = 2 * 4 * 7168 * 8
    assert {line.layer_name: line.communication_bytes for line in lines} == {
        "attention": 0,
        "mlp": 0,
        "moe": combine + combine * 33 // 64,
    }


def test_tensor_parallel_layers_carry_their_all_reduce(tmp_path: Path) -> None:
    exported = job("qwen3-8b", "prefill")
    lines = read_vidur(write_vidur(exported, layer_costs(exported, ESTIMATOR), tmp_path)[0])
    assert {line.communication_bytes for line in lines} == {2 * 8000 * 4096}


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read_aicb, "atten:\n", "line 1: found 'atten:', expected inference_term"),
        (read_aicb, "inference_term:decode\na:\n    time_gpu_avg: soon\n", "line 3: found"),
        (read_simai, "HYBRID_TRANSFORMER_FWD_IN_BCKWD\n1\n", "header: "),
        (read_vidur, "layer_id,layer_name,comp_time,comm_size\n", "separated by tabs"),
        (read_vidur, "layer_id\tlayer_name\tcomp_time\tcomm_size\n0\tmoe\tx\t1\n", "line 2: "),
    ],
)
def test_readers_refuse_other_files_with_their_line(
    reader: Callable[[Path], object], text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        reader(path)


def test_readers_take_numbers_with_exponents(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("inference_term:decode\nmoe_down:\n    time_gpu_avg: 1e-05\n")
    assert read_aicb(path)[1] == {"moe_down": {"avg": 1e-05}}
    path.write_text("layer_id\tlayer_name\tcomp_time\tcomm_size\n0\tmoe\t1.5e3\t2e6\n")
    assert read_vidur(path)[0].compute_ns == 1500


@pytest.mark.parametrize("form", ["aicb", "vidur", "simai"])
def test_the_command_names_its_files(form: str, tmp_path: Path) -> None:
    line = f"export --format {form} deepseek-v3 --tp 1 --ep 8 --batch 8 --seq 4096 --weights fp8 --json -o"
    _, output, _ = aicb(*line.split(), str(tmp_path / "new"))
    summary = json.loads(output)
    assert all(Path(path).is_file() for path in summary["files"])
    assert summary["layers_us"] > 1000
    assert 0 <= summary["estimated_share"] <= 1


def test_the_command_transfers_where_nothing_is_measured(tmp_path: Path) -> None:
    line = "export --format simai qwen3-8b --tp 2 --phase prefill --gpu h20 --json -o"
    assert json.loads(aicb(*line.split(), str(tmp_path))[1])["estimated_share"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ep 3 --tp 2", "ep: found 3, expected 1 or a multiple of tp 2"),
        ("--seq 1", "seq: found 1, expected 2 to"),
        ("--gpu a100 --weights fp8", "--weights: found fp8, expected bf16 (a100 has no fp8)"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(options: str, message: str, tmp_path: Path) -> None:
    code, _, errors = aicb("export", "--format", "aicb", "qwen3-30b-a3b", *options.split(), "-o", str(tmp_path))
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
