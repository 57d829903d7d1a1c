from pathlib import Path

import pytest

from simccl import Collective, InputError
from simccl.formats.busbw import Group
from simccl.formats.pricing import requests_of
from simccl.formats.workload import read_workload

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 2 vpp: 1 ga: 4 all_gpus: 64 "
    "checkpoints: 0 checkpoint_initiates: 0 pp_comm 4096\n"
)
LAYERS = (
    "attention -1 1000 ALLREDUCE 1048576 2000 ALLREDUCE 1048576 10 NONE 0 100\n"
    "moe -1 1000 ALLTOALL_EP 4194304 2000 ALLTOALL_EP 4194304 10 REDUCESCATTER_DP_EP 8388608 100\n"
    "embed -1 5 NONE 0 5 NONE 0 5 ALLGATHER 1000000 0\n"
)


def written(folder: Path, text: str) -> Path:
    file = folder / "w.txt"
    file.write_text(text)
    return file


def test_the_collectives_of_layers_are_read_with_their_groups(tmp_path: Path) -> None:
    found = read_workload(written(tmp_path, HEADER + "3\n" + LAYERS)).collectives
    assert [(c.layer, c.during, c.op, c.group, c.size_bytes, c.compute_ns) for c in found] == [
        ("attention", "forward", Collective.ALL_REDUCE, Group.TP, 1 << 20, 1000),
        ("attention", "input_gradient", Collective.ALL_REDUCE, Group.TP, 1 << 20, 2000),
        ("moe", "forward", Collective.ALL_TO_ALL, Group.EP, 4 << 20, 1000),
        ("moe", "input_gradient", Collective.ALL_TO_ALL, Group.EP, 4 << 20, 2000),
        ("moe", "weight_gradient", Collective.REDUCE_SCATTER, Group.DP_EP, 8 << 20, 10),
        ("embed", "weight_gradient", Collective.ALL_GATHER, Group.DP, 1_000_000, 5),
    ]


def test_groups_are_those_of_simai(tmp_path: Path) -> None:
    """64 GPUs, TP 8, EP 2, PP 2, so DP 4: DP ranks are 16 apart, EP ranks 8, DP_EP ranks 16, stages 32."""
    workload = read_workload(written(tmp_path, HEADER + "3\n" + LAYERS))
    assert workload.members(Group.TP) == tuple(range(8))
    assert workload.members(Group.EP) == (0, 8)
    assert workload.members(Group.DP) == (0, 16, 32, 48)
    assert workload.members(Group.DP_EP) == (0, 16)
    assert workload.members(Group.PP) == (0, 32)


def test_files_of_serving_count_gpus_in_their_expert_group(tmp_path: Path) -> None:
    """AICB's inference generator, 16 GPUs, TP 4, PP 2: EP 8 is the 8 GPUs of a stage, EP 4 a half of them."""
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 8 pp: 2 all_gpus: 16 mode: 1 vpp: 1\n"
    whole = read_workload(written(tmp_path, header + "3\n" + LAYERS))
    assert whole.members(Group.TP) == (0, 1, 2, 3)
    assert whole.members(Group.EP) == tuple(range(8))
    assert whole.members(Group.DP_EP) == (0,)
    half = read_workload(written(tmp_path, header.replace("ep: 8", "ep: 4") + "3\n" + LAYERS))
    assert half.members(Group.EP) == (0, 1, 2, 3)
    assert half.members(Group.DP_EP) == (0, 4)


def test_requests_count_the_nodes_of_each_group(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, HEADER + "3\n" + LAYERS))
    requests = requests_of(workload, gpu="h100", gpus_per_node=8)
    assert [(r.ranks, r.nodes) for r in requests] == [(8, 1), (8, 1), (2, 2), (2, 2), (2, 2), (4, 4)]
    wide = requests_of(workload, gpu="b200", gpus_per_node=64)
    assert {r.nodes for r in wide} == {1}
    with pytest.raises(InputError, match="gpus_per_node: found 3, on which tp groups lie unevenly"):
        requests_of(workload, gpu="h100", gpus_per_node=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 2: found nothing, expected the number of layers"),
        (HEADER + "2\n" + LAYERS, "found 3 layers, expected 2"),
        (HEADER.replace("all_gpus: 64", "all_gpus: 60") + "3\n" + LAYERS, "line 1: found TP 8, EP 2, PP 2"),
        (HEADER.replace("ep: 2", "ep: 8") + "3\n" + LAYERS, "line 1: .*EP 8.*to divide DP"),
        (HEADER.replace("ep: 2", "mode: 1 ep: 64") + "3\n" + LAYERS, r"line 1: .*EP 64.*to divide TP · DP \(mode 1"),
        (HEADER.replace("ep: 2", "mode: 2 ep: 2") + "3\n" + LAYERS, "line 1: mode: found '2'"),
        (HEADER.replace("ep: 2", "ep: two") + "3\n" + LAYERS, "line 1: ep: found 'two'"),
        (HEADER + "3\n" + LAYERS.replace("ALLTOALL_EP", "ALLTOALL_XP"), "line 4: found collective 'ALLTOALL_XP'"),
        (HEADER + "3\n" + LAYERS.replace("ALLREDUCE", "ALLREDUCEALLTOALL"), "line 3: found collective 'ALLREDUCEALLTO"),
        (HEADER + "3\n" + LAYERS.replace("1000000 0", "1000000"), "line 5: found 11 fields, expected 12"),
        (HEADER + "3\n" + LAYERS.replace("1000000 0", "-1 0"), "line 5: weight_gradient bytes: found '-1'"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"w\.txt.*{message}"):
        read_workload(written(tmp_path, text))
