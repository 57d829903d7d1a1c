"""What ``aicb export --format simai`` writes is what ``simccl time --workload`` prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from aicb import Partition, Precision, get_gpu, load_model
from aicb.estimators.selection import select_estimator
from aicb.formats.exports import ExportJob, layer_costs, read_simai, write_simai
from simccl.formats.busbw import Group
from simccl.formats.pricing import Pricing, requests_of
from simccl.formats.workload import read_workload
from vidur_pd.execution.instances.placement import Placement

PARTITIONS = [
    Partition(tp, ep, dp, pp)
    for tp in (1, 2, 4)
    for dp in (1, 2, 4)
    for pp in (1, 2)
    for ep in sorted({1, tp * dp})
    if ep > 1 or dp == 1
]
"""What ``aicb export`` can be asked for: data parallelism comes with ``ep``."""


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_the_groups_of_an_exported_workload_are_those_of_the_instance(partition: Partition, tmp_path: Path) -> None:
    """An instance on GPUs 0, 1, …: its first TP group reduces, the GPUs of its first stage exchange experts' tokens."""
    model = load_model("qwen3-30b-a3b")
    job = ExportJob(model, partition, Precision(), "decode", 4, 2000)
    costs = layer_costs(job, select_estimator("roofline", get_gpu("h100"), Precision()))
    (path,) = write_simai(job, costs, tmp_path)
    workload = read_workload(path)
    instance = Placement("one", "pool", "mixed", partition, tuple(range(partition.gpus)))
    assert (workload.tp, workload.dp, workload.pp) == (partition.tp, partition.dp, partition.pp)
    assert workload.members(Group.TP) == instance.tensor_group(0, 0)
    assert workload.members(Group.EP) == (instance.stage_gpus(0) if partition.ep > 1 else (0,))
    assert workload.members(Group.DP_EP) == (0,)
    assert workload.members(Group.PP) == tuple(instance.stage_gpus(stage)[0] for stage in range(partition.pp))
    written = [(line.name, line.size_bytes) for line in read_simai(path)[1] if line.collective != "NONE"]
    assert [(found.layer, found.size_bytes) for found in workload.collectives] == written
    assert bool(written) == (partition.tp > 1 or partition.ep > 1)
    requests = requests_of(workload, gpu="h100", gpus_per_node=8)
    assert {request.ranks for request in requests} <= {partition.tp, partition.ep}
    if requests:
        assert (Pricing().times(requests).time_us > 0).all()
