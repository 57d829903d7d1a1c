from importlib import resources
from pathlib import Path

import pytest

from simccl import InputError
from simccl.calibrate.nccl_tests import Measurement, read_measurements

RANKS = "\n".join(
    f"#  Rank {r:2d} Group  0 Pid 4711 on  node{r // 2} device  {r % 2} [0000:0{r}:00] NVIDIA H100 80GB HBM3"
    for r in range(4)
)
TEXT = f"""# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{RANKS}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.15    0.00    0.00      0     0.14    0.00    0.00      0
        1024           256     float     sum      -1    12.34    0.08    0.12      0    12.01    0.09    0.13      0
        4096          1024     float     sum      -1    13.50    0.30    0.46      0    13.11    0.31    0.47      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.25
"""


def written(folder: Path, text: str, name: str = "t.txt") -> list[Path]:
    (folder / name).write_text(text)
    return [folder / name]


def test_the_text_of_nccl_tests_gives_op_ranks_nodes_sizes_and_out_of_place_times(tmp_path: Path) -> None:
    found = read_measurements(written(tmp_path, TEXT))
    assert found == (
        Measurement("all_reduce", 4, 2, 1024, 12.34),  # type: ignore[arg-type]
        Measurement("all_reduce", 4, 2, 4096, 13.50),  # type: ignore[arg-type]
    )


def test_message_size_in_a_csv_counts_elements_and_latency_milliseconds(tmp_path: Path) -> None:
    """aiconfigurator's layout: 512 elements of 2 bytes in 0.00898 ms."""
    text = (
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        "TRTLLM,1.0,NVIDIA A100,alltoall,NCCL,half,2,512,0.00898\n"
        "TRTLLM,1.0,NVIDIA A100,alltoall,NCCL,int8,2,512,0.009\n"
    )
    (found,) = read_measurements(written(tmp_path, text))
    assert (found.op, found.ranks, found.size_bytes, found.time_us) == ("all_to_all", 2, 1024, pytest.approx(8.98))


def test_message_bytes_in_a_csv_are_bytes(tmp_path: Path) -> None:
    text = "op,dtype,num_gpus,message_bytes,latency_us\nall_gather,half,8,1024,10.5\n"
    (found,) = read_measurements(written(tmp_path, text))
    assert (found.op, found.size_bytes, found.time_us) == ("all_gather", 1024, 10.5)


def test_the_shipped_table_of_h200_is_read_with_its_forced_pairs() -> None:
    """1,160 rows: 280 of them eager, 40 incast in graphs, which is no collective of the model."""
    table = Path(str(resources.files("simccl") / "data" / "h200" / "nccl.csv"))
    assert len(table.read_text().splitlines()) == 1161
    found = read_measurements([table])
    assert len(found) == 1160 - 280 - 40
    assert {(m.algorithm, m.protocol) for m in found} >= {("tree", "ll128"), ("ring", "simple"), (None, None)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no program name"),
        ("hello\n", "found no program name"),
        (
            TEXT.replace("12.34    0.08    0.12      0    12.01    0.09    0.13      0", "12.34"),
            "line 14: found 6 fields",
        ),
        (TEXT.replace("12.34", "nan  "), "line 14: time: found 'nan'"),
        ("op,num_gpus,message_bytes,latency_us\n", "found no measured point"),
        ("op,num_gpus,message_bytes,latency_us\nall_reduce,2,1024,fast\n", "line 2: time_us: found 'fast'"),
        ("op,num_gpus,message_bytes,latency_us\nall_reduce,2,1024\n", "line 2: found 3 cells, expected 4"),
        ("op,message_bytes,latency_us\nall_reduce,1024,9\n", "expected a column ranks or num_gpus"),
        ("ranks,op,algorithm,bytes,time_us\n2,all_reduce,star,1024,9\n", "'star' is not a valid Algorithm"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"t.txt.*{message}"):
        read_measurements(written(tmp_path, text))


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: found no such file"):
        read_measurements([tmp_path / "none.txt"])
