"""All-reduce kernels of inference engines: rules, bytes moved, and measured times."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simccl import InputError, time_table
from simccl.algorithms.registry import engine_kernels
from simccl.engines.all_reduce import AllReduceKernels, engine_all_reduce, moved_bytes
from tests.simccl.arrangements import arranged

KIB, MIB = 1 << 10, 1 << 20
MEASURED = Path(__file__).parents[3] / "shared" / "data" / "kernels" / "custom_allreduce.csv.gz"


def kernels(
    stack: AllReduceKernels, gpu: str, ranks: int, sizes: list[int], *, symmetric: bool = True, nodes: int = 1
) -> list[str]:
    at = arranged(gpu, nodes, ranks // nodes)
    found = engine_all_reduce(stack, np.array(sizes), at, has_symmetric_memory=symmetric)
    return [str(kind) for kind in found.algorithm]


@pytest.mark.parametrize(
    ("ranks", "symmetric", "sizes", "expected"),
    [
        (2, False, [1 << 10, 4 * MIB, 8 * MIB - 16, 8 * MIB], ["one_shot"] * 3 + ["none"]),
        (4, False, [512 * KIB - 16, 512 * KIB, 8 * MIB], ["one_shot", "two_shot", "none"]),
        (8, False, [256 * KIB - 16, 256 * KIB, 8 * MIB], ["one_shot", "two_shot", "none"]),
        (8, True, [256 * KIB - 16, MIB, 64 * MIB, 65 * MIB], ["one_shot", "multimem", "multimem", "none"]),
        (4, True, [1 * MIB, 32 * MIB, 33 * MIB], ["two_shot", "two_shot", "none"]),
        (8, True, [1000], ["none"]),  # no multiple of 16 bytes
        (3, True, [1024], ["none"]),
    ],
)
def test_vllm_chooses_kernels_by_ranks_and_size(
    ranks: int, symmetric: bool, sizes: list[int], expected: list[str]
) -> None:
    assert kernels(AllReduceKernels.VLLM, "h100", ranks, sizes, symmetric=symmetric) == expected


def test_sglang_has_vllms_kernels_without_symmetric_memory() -> None:
    sizes = [128 * KIB, 512 * KIB, 8 * MIB]
    assert kernels(AllReduceKernels.SGLANG, "h100", 8, sizes) == ["one_shot", "two_shot", "none"]


@pytest.mark.parametrize(("ranks", "last"), [(2, 8 * MIB), (4, 1_999_998), (8, 999_998)])
def test_tensorrt_llm_uses_one_shot_up_to_a_number_of_elements(ranks: int, last: int) -> None:
    assert kernels(AllReduceKernels.TRTLLM, "h200", ranks, [last, last + 2]) == ["one_shot", "none"]


def test_flashinfer_has_a_kernel_for_two_four_and_eight_ranks() -> None:
    chosen = [
        kernels(AllReduceKernels.FLASHINFER, "h200", ranks, [1 * MIB, 3 * MIB, 33 * MIB]) for ranks in (2, 3, 4, 8)
    ]
    assert chosen == [
        ["one_shot", "one_shot", "two_shot"],
        ["none"] * 3,
        ["one_shot", "two_shot", "two_shot"],
        ["two_shot"] * 3,
    ]


def test_between_nodes_engines_call_nccl() -> None:
    for stack in AllReduceKernels:
        assert kernels(stack, "h100", 16, [1024], nodes=2) == ["none"]


def test_bytes_moved_by_one_gpu() -> None:
    """Eight ranks, 8 MB: seven buffers; 2 · 7/8 of one; one and an eighth."""
    size = np.array([8_000_000])
    assert [moved_bytes(kernel, size, 8).item() for kernel in engine_kernels()] == [56e6, 14e6, 9e6]


def test_unmeasured_gpus_are_refused_and_h200_takes_h100s_sglang() -> None:
    with pytest.raises(InputError, match="found vllm on a100, whose kernels were measured on b200, h100, h200"):
        engine_all_reduce(AllReduceKernels.VLLM, np.array([1024]), arranged("a100", 1, 8))
    h100, h200 = (
        engine_all_reduce(AllReduceKernels.SGLANG, np.array([1024]), arranged(gpu, 1, 8)) for gpu in ("h100", "h200")
    )
    assert h100.time_us == h200.time_us


def test_tables_mix_engine_kernels_and_nccl() -> None:
    """8 H100 with vLLM: 64 KiB by one-shot, 1 GiB and other operations by NCCL."""
    ops, sizes = ["all_reduce", "all_reduce", "all_gather"], [64 * KIB, 1 << 30, 64 * KIB]
    mixed = time_table(ops, sizes, [8] * 3, [1] * 3, "h100", stack=AllReduceKernels.VLLM)
    nccl = time_table(ops, sizes, [8] * 3, [1] * 3, "h100")
    assert mixed.algorithm.tolist() == ["one_shot", "nvls", "ring"]
    assert mixed.time_us[0] < nccl.time_us[0] / 2
    assert (mixed.time_us[1:] == nccl.time_us[1:]).all()


# Measured on 8 GPUs by bytes (aiconfigurator 095f58a; SGLang 0.5.14, TensorRT-LLM 1.3.0rc20, vLLM 0.24.0), µs.
@pytest.mark.parametrize(
    ("stack", "gpu", "sizes", "measured_us"),
    [
        ("sglang", "h100", [8, 16, 64, 128, 512, 2048], [3.6, 3.8, 4.8, 6.4, 10.6, 20.1]),
        ("sglang", "b200", [8, 16, 64, 128, 512, 2048], [5.1, 5.3, 6.2, 7.0, 11.6, 18.9]),
        ("trtllm", "h100", [8, 16, 64, 128, 512], [3.5, 3.6, 4.6, 6.2, 17.6]),
        ("trtllm", "b200", [8, 16, 64, 128, 512], [5.6, 5.9, 6.0, 6.3, 10.9]),
        ("vllm", "b200", [8, 16, 64, 128, 512, 2048, 8192], [7.8, 8.1, 8.6, 9.4, 26.2, 20.7, 39.2]),
    ],
)
def test_times_on_eight_gpus_are_near_published_ones(
    stack: str, gpu: str, sizes: list[int], measured_us: list[float]
) -> None:
    found = engine_all_reduce(AllReduceKernels(stack), np.array(sizes) * KIB, arranged(gpu, 1, 8))
    assert found.is_used.all()
    np.testing.assert_allclose(found.time_us, measured_us, rtol=0.12)


@pytest.mark.skipif(not MEASURED.is_file(), reason=f"no measurements at {MEASURED.name}")
@pytest.mark.parametrize("stack", ["vllm", "trtllm"])
def test_engine_times_are_within_12_percent_of_nine_in_ten_measured_ones(stack: str) -> None:
    """H100 and H200, 2, 4 and 8 GPUs, 256 B to 64 MiB, CUDA graphs, where the engine runs a kernel of its own."""
    with gzip.open(MEASURED) as file:
        rows = pd.read_csv(file)
    rows = rows[(rows.framework == stack) & (rows["mode"] == "graph")]
    errors = []
    for (system, ranks), group in rows.groupby(["system", "num_gpus"]):
        at = arranged(str(system).split("_")[0], 1, int(ranks))
        found = engine_all_reduce(AllReduceKernels(stack), group.message_bytes.to_numpy(), at)
        errors.append((found.time_us / group.latency_us - 1)[found.is_used].abs())
    error = pd.concat(errors)
    assert len(error) > 70
    assert error.median() < 0.05
    assert error.quantile(0.9) < 0.12


def fused_rows(name: str) -> pd.DataFrame:
    """Least of all replays, which waits least for the other ranks."""
    measured = json.loads((Path(__file__).parents[1] / "data" / name).read_text(encoding="utf-8"))
    rows = pd.DataFrame(measured["rows"], columns=measured["columns"])
    rows = rows[rows.kernel == "fused"]
    return rows.assign(size_bytes=2 * rows.hidden * rows.tokens, time_us=rows.times_us.map(min))


def test_flashinfers_kernel_takes_as_long_as_measured_on_two_gpus() -> None:
    """Of one call after another in a graph, up to 22 % off; what a kernel takes in engines beside its bytes is 0.5 us
    more, which is left out here. Rows of 2,048 values take longest for their bytes."""
    rows = fused_rows("flashinfer_all_reduce.json")
    found = engine_all_reduce(AllReduceKernels.FLASHINFER, rows.size_bytes.to_numpy(), arranged("h200", 1, 2))
    assert ((found.algorithm == "one_shot") == rows.is_one_shot).all()
    errors = (found.time_us - np.where(rows.is_one_shot, 0.54, 0.0)) / rows.time_us - 1
    assert len(errors) == 70
    assert errors.abs().median() < 0.06
    assert errors.abs().max() < 0.23
    assert errors[rows.hidden > 2048].abs().mean() < 0.07


def test_flashinfers_kernel_takes_as_long_as_measured_on_four_gpus() -> None:
    """One-shot as far as vLLM calls it; by the rates of two, which stood for these before, 8.3 and 27 % off."""
    rows = fused_rows("flashinfer_all_reduce_four.json")
    found = engine_all_reduce(AllReduceKernels.FLASHINFER, rows.size_bytes.to_numpy(), arranged("h200", 1, 4))
    assert (found.algorithm == "one_shot").all()
    assert rows.is_one_shot.all()
    errors = found.time_us / rows.time_us - 1
    assert len(errors) == 43
    assert errors.abs().mean() < 0.042
    assert errors.abs().max() < 0.13


def test_flashinfers_kernel_is_that_of_the_h200_on_an_h100_and_measured_nowhere_else() -> None:
    size = np.array([64 * KIB])
    h100, h200 = (engine_all_reduce(AllReduceKernels.FLASHINFER, size, arranged(gpu, 1, 2)) for gpu in ("h100", "h200"))
    assert h100.time_us == h200.time_us
    with pytest.raises(InputError, match="found flashinfer on b200, whose kernels were measured on h200"):
        engine_all_reduce(AllReduceKernels.FLASHINFER, size, arranged("b200", 1, 2))


@pytest.mark.parametrize(("kib", "least_us", "most_us"), [(256, -1.0, 0.0), (384, 0.5, 4.3), (512, 1.9, 5.5)])
def test_with_eight_ranks_it_loses_to_multimem_as_published(kib: int, least_us: float, most_us: float) -> None:
    """vLLM's issue 44079, eight H200s: 1.9 to 4.3 us slower than multimem and a norm (2.6 us) from 256 to 512 KiB. Not
    measured by us, as is no other of eight ranks."""
    at, size = arranged("h200", 1, 8), np.array([kib * KIB])
    fused = engine_all_reduce(AllReduceKernels.FLASHINFER, size, at).time_us.item()
    apart = engine_all_reduce(AllReduceKernels.VLLM, size, at).time_us.item() + 2.6
    assert least_us < fused - apart < most_us
