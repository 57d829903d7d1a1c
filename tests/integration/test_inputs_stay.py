"""Files that a command reads are not written over, by any of the four programs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boundary.errors import InputError

KERNELS = "op,kernel,dtype,tag,m,n,k,cold_us,graph_us,run\n"
FILES = {
    "T.yaml": "gpus_per_node: 1\nnodes: [[gpu, a], [gpu, b]]\nlinks: [[a, b, 400Gbps, 1us, nic]]\n",
    "F.csv": "flow_id,src,dst,bytes,deps\n0,0,1,1000,\n",
    "roce.yaml": "mtu_bytes: 4096\n",
    "SimAI.conf": "ENABLE_QCN 1\n",
    "times.csv": "op,bytes,ranks,nodes,gpu\nall_reduce,1048576,8,1,h100\n",
    "workload.txt": "HYBRID_TRANSFORMER_FWD_IN_BCKWD\n0\n",
    "measured.csv": "op,bytes,ranks,nodes,time_us\nall_reduce,1048576,8,1,50\n",
    "busbw.yaml": "test: 1\n",
    "ops.csv": "op,m,n,k,dtype\ngemm,64,4096,4096,bf16\n",
    "gpu/gpu.yaml": "name: mine\n",
    "gpu/kernels.csv": KERNELS,
    "gpu/provenance.json": "{}\n",
    "model/config.json": "{}\n",
    "profile/profile.parquet": "old",
}
PACKETS = ["--topology", "T.yaml", "--flows", "F.csv", "--backend", "packet"]


@pytest.mark.parametrize(
    ("package", "arguments", "target"),
    [
        ("netsim", ["run", *PACKETS, "-o", "T.yaml"], "T.yaml"),
        ("netsim", ["run", *PACKETS, "-o", "F.csv"], "F.csv"),
        ("netsim", ["run", *PACKETS, "-o", "x.csv", "--fct", "T.yaml"], "T.yaml"),
        ("netsim", ["run", *PACKETS, "-o", "x.csv", "--config", "roce.yaml", "--pfc", "roce.yaml"], "roce.yaml"),
        ("netsim", ["run", *PACKETS, "--simai-config", "SimAI.conf", "-o", "SimAI.conf"], "SimAI.conf"),
        ("netsim", ["topology", "T.yaml", "-o", "T.yaml"], "T.yaml"),
        ("netsim", ["topology", "T.yaml", "--plot", "link.svg"], "link.svg"),
        ("simccl", ["time", "--table", "times.csv", "-o", "times.csv"], "times.csv"),
        ("simccl", ["time", "--workload", "workload.txt", "-o", "workload.txt"], "workload.txt"),
        ("simccl", ["calibrate", "measured.csv", "-o", "measured.csv"], "measured.csv"),
        ("aicb", ["predict", "--gpu", "h200", "--table", "ops.csv", "-o", "ops.csv"], "ops.csv"),
        ("aicb", ["predict", "--gpu", "gpu", "--table", "ops.csv", "-o", "gpu/kernels.csv"], "gpu/kernels.csv"),
        ("aicb", ["predict", "--gpu", "gpu/gpu.yaml", "--table", "ops.csv", "-o", "gpu/gpu.yaml"], "gpu/gpu.yaml"),
        (
            "aicb",
            ["import", "--format", "profile", "--gpu", "h100", "-o", "gpu", "gpu/kernels.csv"],
            "gpu/kernels.csv",
        ),
        ("vidur_pd", ["workload", "convert", "trace.csv", "-o", "trace.csv"], "trace.csv"),
    ],
)
def test_an_output_that_is_an_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, arguments: list[str], target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {**FILES, "trace.csv": "request_id,arrived_at_s,prefill_tokens,decode_tokens\na,0,10,5\n"}
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("link.svg").symlink_to("T.yaml")
    if arguments[0] == "import":
        monkeypatch.setattr("aicb.formats.imports.import_files", lambda *_: None)  # has read them
    ended = CliRunner().invoke(importlib.import_module(f"{package}.__main__").app, arguments)
    assert isinstance(ended.exception, InputError), ended.output
    assert str(ended.exception) == f"{target}: found the file that is read, expected another one to write"
    assert {str(path): path.read_text() for path in Path().rglob("*.*") if not path.is_symlink()} == files


def test_a_profile_is_not_begun_over_an_earlier_table(tmp_path: Path) -> None:
    from aicb.profiling.store import RowFile, check_directory

    folder = tmp_path / "new" / "profile"
    check_directory(folder, resume=False)
    RowFile(folder).append({"op": "gemm"})
    (folder / "profile.parquet").write_text("hours of measuring")
    with pytest.raises(InputError, match=r"profile\.parquet: found a table, expected none .continue it with --resume"):
        check_directory(folder, resume=False)
    check_directory(folder, resume=True)
    assert (folder / "profile.parquet").read_text() == "hours of measuring"
    with pytest.raises(InputError, match=r"rows\.jsonl: found the file that is read"):
        check_directory(folder, resume=True, inputs=[folder / "rows.jsonl"])


def test_an_export_does_not_follow_a_link_to_the_model(tmp_path: Path) -> None:
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000}
    config |= {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    model = tmp_path / "tiny" / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(config))
    arguments = ["export", "tiny", "--format", "simai", "--seq", "128", "-o", "out"]

    def export(folder: Path) -> BaseException | None:
        words = [str(folder / word) if word in ("tiny", "out") else word for word in arguments]
        return CliRunner().invoke(importlib.import_module("aicb.__main__").app, words).exception

    assert export(tmp_path) is None
    [written] = (tmp_path / "out").iterdir()
    written.unlink()
    written.symlink_to(model)
    assert isinstance(found := export(tmp_path), InputError)
    assert "found the file that is read" in str(found)
    assert json.loads(model.read_text()) == config
