"""The measuring harness on the CPU: timing, checks, storage, resumption. Needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed (CI installs it; so does the profile extra)")

from aicb.__main__ import app  # noqa: E402
from aicb.kernels.point import Point  # noqa: E402
from aicb.profiling import kernel_library, runner, store  # noqa: E402
from aicb.profiling.cost import operand_sets  # noqa: E402
from aicb.profiling.kernel_library import Kernel, relative_error, some_rows  # noqa: E402
from aicb.profiling.libraries import reference  # noqa: E402
from aicb.profiling.libraries.torch_native import TorchNative  # noqa: E402
from aicb.profiling.timing import CpuTimer, Spread  # noqa: E402
from boundary.errors import InputError  # noqa: E402
from tests.aicb.profiling_points import at  # noqa: E402

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
SETTINGS = runner.Settings("cpu", budget_s=60.0, check_share=1.0)
GEMMS = [at("gemm", m=m, n=32, k=16) for m in (1, 2, 3)]


class Doubled:
    """A library whose kernel returns twice the product: fast, and wrong."""

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return "doubled 1"

    def refusal(self, point: Point) -> str | None:
        return None if point.op == "gemm" else "gemm only"

    def kernel(self, point: Point) -> Kernel:
        right = TorchNative("cpu").kernel(point)
        (out,) = right.outputs

        def run() -> None:
            right.run()
            out.mul_(2)

        return Kernel("doubled/linear", run, [out], right.error, right.tolerance)


class Absent(Doubled):
    def missing(self) -> str | None:
        return "absent: no such module"


class Silent(Doubled):
    """Its kernel writes nothing, which only poisoned outputs reveal."""

    def kernel(self, point: Point) -> Kernel:
        right = TorchNative("cpu").kernel(point)
        right.run()
        return Kernel("silent/linear", lambda: None, right.outputs, right.error, right.tolerance)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    "shape",
    [
        at("gemm", m=5, n=24, k=48),
        at("bmm", heads=3, m=5, n=16, k=8),
        at("prefill_attention", heads=4, kv_heads=2, d_qk=24, d_v=16, batch=1, queries=(3,), lengths=(7,)),
        at("decode_attention", heads=4, kv_heads=1, d_qk=16, d_v=16, batch=2, queries=(1, 1), lengths=(5, 9)),
        at("rms_norm", m=4, n=64),
        at("silu_mul", m=4, n=32),
        at("embedding", m=4, n=32),
        at("permute", m=8, n=32, experts_per_token=2),
        at("moe_sum", m=10, n=32, experts_per_token=5),
        at("expert_copy", m=4, n=32),
        at("sampling", m=4, n=100),
        at("add", m=4, n=32),
        at("device_copy", m=4, n=32),
    ],
    ids=lambda p: p.op,
)
def test_torch_kernels_agree_with_their_references(shape: Point) -> None:
    torch.manual_seed(0)
    kernel = TorchNative("cpu").kernel(shape)
    kernel_library.poison(kernel.outputs)
    kernel.run()
    assert kernel.error is not None
    assert kernel.error() <= kernel.tolerance


def test_a_run_writes_a_row_per_point_with_provenance(tmp_path: Path) -> None:
    report = runner.run_plan(GEMMS, [TorchNative("cpu")], tmp_path, SETTINGS)
    rows = store.read_table(tmp_path / store.TABLE_FILE)
    assert report.measured == {"torch/linear": 3}
    assert sorted(row["m"] for row in rows) == [1, 2, 3]
    for row in rows:
        assert 0 < row["cold_p10_us"] <= row["cold_us"] <= row["cold_p90_us"]
        assert row["error"] <= row["tolerance"]
        assert row["flops"] == 2 * row["m"] * 32 * 16
    facts = json.loads((tmp_path / store.PROVENANCE_FILE).read_text())
    assert facts["schema_version"] == store.SCHEMA_VERSION
    assert facts["environment"]["torch"] == torch.__version__


def test_a_wrong_kernel_is_refused_and_reported(tmp_path: Path) -> None:
    report = runner.run_plan(GEMMS, [Doubled()], tmp_path, SETTINGS)
    assert store.read_table(tmp_path / store.TABLE_FILE) == []
    (failure,) = report.failed
    assert "doubled/linear: error 1 above" in failure


def test_a_kernel_that_writes_nothing_is_refused(tmp_path: Path) -> None:
    report = runner.run_plan(GEMMS, [Silent()], tmp_path, SETTINGS)
    (failure,) = report.failed
    assert "error inf above" in failure


def test_a_missing_library_is_reported_not_replaced(tmp_path: Path) -> None:
    report = runner.run_plan(GEMMS, [Absent()], tmp_path, SETTINGS)
    assert report.missing == {"Absent": "absent: no such module"}
    assert report.unserved == {"gemm bf16": 3}
    assert report.measured == {}


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    """The last line is torn, as after a crash while writing: its point is measured again, the others are kept."""
    runner.run_plan(GEMMS, [TorchNative("cpu")], tmp_path, SETTINGS)
    file = tmp_path / store.ROWS_FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], lines[2][:25]]))
    resumed = runner.Settings("cpu", 60.0, 0.0, resume=True)
    report = runner.run_plan(GEMMS, [TorchNative("cpu")], tmp_path, resumed)
    assert report.measured == {"torch/linear": 1}
    rows = store.RowFile(tmp_path).read()
    assert [json.dumps(row) for row in rows[:2]] == lines[:2]
    assert [row["session"] for row in rows] == [0, 0, 1]
    assert len(store.read_table(tmp_path / store.TABLE_FILE)) == 3


def test_results_are_not_overwritten_without_resume(tmp_path: Path) -> None:
    runner.run_plan(GEMMS, [TorchNative("cpu")], tmp_path, SETTINGS)
    with pytest.raises(InputError, match="--resume"):
        runner.run_plan(GEMMS, [TorchNative("cpu")], tmp_path, SETTINGS)


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / store.ROWS_FILE).write_text('{"op": "gemm"}\nnonsense\n{"op": "gemm"}\n')
    with pytest.raises(InputError, match=r"rows.jsonl:2: found 'nonsense'"):
        store.RowFile(tmp_path).read()


def test_the_budget_leaves_the_least_valuable_points(tmp_path: Path) -> None:
    points = [at("gemm", m=m, n=32, k=16, priority=m) for m in (3, 1, 2)]
    report = runner.run_plan(points, [TorchNative("cpu")], tmp_path, runner.Settings("cpu", 0.0, 0.0))
    assert (report.left, sum(report.measured.values())) == (3, 0)
    jobs = runner._jobs(points, [TorchNative("cpu")], runner.Report(), seed=0)
    assert [job[0]["m"] for job in jobs] == [1, 2, 3]


def test_points_of_one_priority_are_shuffled_the_same_way_each_time() -> None:
    points = [at("gemm", m=m, n=32, k=16) for m in range(1, 20)]
    orders = [
        [job[0]["m"] for job in runner._jobs(points, [TorchNative("cpu")], runner.Report(), seed=seed)]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_spreads_are_medians_and_percentiles() -> None:
    spread = Spread.of([float(i) for i in range(11)])
    assert (spread.median_us, spread.p10_us, spread.p90_us, spread.count) == (5.0, 1.0, 9.0, 11)


def test_warm_outputs_are_checked_after_a_run() -> None:
    calls: list[str] = []
    CpuTimer(1024).replayed([lambda: calls.append("run")], 1.0, lambda: calls.append("check"))
    assert calls[:2] == ["run", "check"]


def test_operand_sets_take_turns() -> None:
    calls: list[int] = []
    timed = CpuTimer(1024).replayed([lambda i=i: calls.append(i) for i in range(3)], 1.0)  # type: ignore[misc]
    assert calls[:6] == [0, 1, 2, 0, 1, 2]
    assert len(calls) % 3 == 0
    assert timed.clock_mhz is None


def test_operand_sets_fill_more_than_the_cache_where_operands_are_cold() -> None:
    """A weight of 4096 × 4096 bf16 is 32 MiB: five of them make 160 MiB. Small ones stop at 32 sets, a large one is
    its own eviction, and the input of a norm was just written."""
    sets = {m: operand_sets(at("gemm", m=m, n=4096, k=4096)) for m in (1, 16384)}
    assert sets == {1: 5, 16384: 1}
    assert operand_sets(at("gemm", m=1, n=256, k=256)) == 32
    assert operand_sets(at("rms_norm", m=1, n=4096)) == 1


def test_an_error_is_relative_to_the_norm_and_nan_never_passes() -> None:
    """‖(3, 4) − (0, 4)‖ / ‖(0, 4)‖ = 3 / 4."""
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == pytest.approx(0.75)
    assert relative_error(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")


def test_quantisation_is_undone_up_to_three_bits() -> None:
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    values, scales = reference.quantise_rows(x)
    assert scales.shape == (5, 3)
    assert relative_error(reference.dequantise_rows(values, scales), x) < 2.0**-5


def test_block_scales_apply_to_their_block() -> None:
    values = torch.ones(130, 130).to(torch.float8_e4m3fn)
    wide = reference.dequantise_blocks(values, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert [float(wide[i, j]) for i, j in ((0, 0), (0, 129), (129, 0), (129, 129))] == [1, 2, 3, 4]


def test_the_attention_reference_masks_the_future() -> None:
    """A query that sees the first key only returns its value."""
    q, k, v = (torch.randn(1 if i == 0 else 3, 1, 8) for i in range(3))
    out = reference.attention(q, k, v, torch.tensor([0]))
    assert torch.allclose(out[0, 0], v[0, 0], atol=1e-6)


def test_checked_rows_include_both_ends() -> None:
    assert some_rows(3) == [0, 1, 2]
    assert (some_rows(1000, 4)[0], some_rows(1000, 4)[-1], len(some_rows(1000, 4))) == (0, 999, 4)


def test_the_command_profiles_a_model_on_the_cpu(tiny_model: Path, tmp_path: Path) -> None:
    arguments = ["profile", "--model", str(tiny_model), "--device", "cpu", "--tp", "1,2", "--max-tokens", "4"]
    arguments += [
        "--max-kv",
        "128",
        "--weights",
        "bf16",
        "--only",
        "gemm,embedding,sampling",
        "-o",
        str(tmp_path / "o"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = store.read_table(tmp_path / "o" / store.TABLE_FILE)
    assert {row["op"] for row in rows} == {"gemm", "embedding", "sampling"}
    assert f"{len(rows)} rows in" in result.output


def test_profiling_without_a_gpu_says_so(tiny_model: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    result = CliRunner().invoke(app, ["profile", "--model", str(tiny_model), "-o", str(tmp_path / "o")])
    assert isinstance(result.exception, InputError)
    assert "expected a CUDA device" in str(result.exception)
