"""Tables and workloads of collectives, bandwidths, calibrations, output of nccl-tests, and options of ``simccl``."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.mutation import (
    as_csv,
    as_fields,
    as_json,
    as_yaml,
    cells_of,
    document,
    few,
    mutated,
    mutated_cells,
    option_value,
)
from tests.samples import BUSBW

TABLE: Final = """op,bytes,ranks,nodes,gpu,group
all_reduce,1MiB,8,1,h100,tp
all_gather,4096,16,2,h200,dp
all_to_all,1000000,64,8,b200,ep
send_recv,1GB,2,2,a100,pp
"""
TABLE_NAMES: Final = ("op", "bytes", "ranks", "nodes", "gpu", "group", "time_us", "algorithm")
WORKLOAD: Final = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 2 vpp: 1 ga: 4 all_gpus: 64
3
attention -1 1000 ALLREDUCE 1048576 2000 ALLREDUCE 1048576 10 NONE 0 100
moe -1 1000 ALLTOALL_EP 4194304 2000 ALLTOALL_EP 4194304 10 REDUCESCATTER_DP_EP 8388608 100
embed -1 5 NONE 0 5 NONE 0 5 ALLGATHER 1000000 0
"""
NCCL_TESTS: Final = (
    "# Collective test starting: all_reduce_perf\n# Using devices\n"
    + "".join(
        f"#  Rank {r:2d} Group  0 Pid 4711 on  node{r // 2} device  {r % 2} [0000:0{r}:00] NVIDIA H100 80GB HBM3\n"
        for r in range(4)
    )
    + "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    + "".join(
        f"{1024 * 4**i} {256 * 4**i} float sum -1 {12.3 + i * i} 0.08 0.12 0 12.01 0.09 0.13 0\n" for i in range(8)
    )
)
MEASURED: Final = "op,dtype,num_gpus,message_bytes,latency_us,nodes,algorithm,protocol,mode\n" + "".join(
    f"all_gather,half,8,{1024 * 4**i},{10.5 + i * i},1,auto,auto,graph\n" for i in range(8)
)
MEASURED_NAMES: Final = ("op", "op_name", "dtype", "nccl_dtype", "num_gpus", "ranks", "message_bytes", "message_size",
                         "bytes", "latency_us", "latency", "time_us", "nodes", "algorithm", "protocol",
                         "mode")  # fmt: skip
CALIBRATION: Final[dict[str, Any]] = {
    "gpu": "h100",
    "source": "tests",
    "fits": [
        {"op": op, "ranks": ranks, "nodes": 1, "algorithm": "ring", "protocol": "ll", "latency_factor": 0.7148,
         "latency_growth": 0.1843, "transfer_factor": 1.412, "exponent": 1.016, "points": 12, "median_error": 0.01482}
        for op in ("all_reduce", "all_gather") for ranks in (2, 8)
    ],
}  # fmt: skip
OPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
OPTIONS: Final = {
    "--op": OPS,
    "--bytes": ("1MiB", "4096", "1", "0", "100000"),
    "--ranks": ("8", "2", "4", "16", "1"),
    "--nodes": ("1", "2", "4"),
    "--gpu": ("h100", "h200", "a100", "b200", "h20", "H100"),
    "--algorithm": ("ring", "tree", "nvls", "nvls_tree", "pat", "one_shot", "two_shot", "multimem"),
    "--protocol": ("ll", "ll128", "simple"),
    "--root": ("0", "1", "7"),
    "--coarsen": ("1", "4", "1000"),
    "--stack": ("nccl", "vllm", "sglang", "trtllm"),
}
SIZES: Final = ("1000000", "1000000000000", "9223372036854775807", "1TiB", "1PB", "9223372036854775808", "16777216TiB",
                "4096", "32768", "65536", "100000")  # fmt: skip


def generate(rng: random.Random) -> Case:
    """A command of ``simccl``."""
    match rng.randrange(10):
        case 0 | 1:
            return _table(rng)
        case 2:
            content = document(rng, lambda: as_fields(mutated_cells(cells_of(WORKLOAD, None), rng), rng))
            return _priced("--workload", "w.txt", content, rng)
        case 3:
            return _bandwidths(rng)
        case 4:
            return _calibrated(rng)
        case 5 | 6:
            return _measured(rng)
        case _:
            return _options(rng)


def _priced(option: str, name: str, content: bytes, rng: random.Random, *more: str) -> Case:
    files: dict[str, bytes | Special] = {name: content}
    if rng.random() < 0.04:
        files[name] = rng.choice(list(Special))
    if rng.random() < 0.1:
        more += (rng.choice(("--gpus-per-node", "--stack", "--gpu", "--group")), option_value(rng))
    return Case(("simccl", "time", option, name, "-o", "out.csv", *more), files, ("out.csv",))


def _table(rng: random.Random) -> Case:
    content = document(rng, lambda: as_csv(mutated_cells(cells_of(TABLE, ","), rng, TABLE_NAMES), rng))
    return _priced("--table", "t.csv", content, rng)


def _bandwidths(rng: random.Random) -> Case:
    if rng.random() < 0.5:
        content = document(rng, lambda: as_fields([["test"], *mutated_cells(cells_of(BUSBW, " "), rng)], rng))
    else:
        tree = {"TP": {"allreduce,": 300, "alltoall,": 230}, "DP": {"allreduce,": None}, "PP": {"busbw": 47.5}}
        content = document(rng, lambda: b"test\n" + as_yaml(mutated(tree, rng), rng))
    if rng.random() < 0.05:
        content = b"test\n" + hostile.yaml_document(rng).encode("utf-8", "surrogatepass")
    group = rng.choice(("tp", "dp", "ep", "dp_ep", "pp"))
    arguments = (
        "simccl",
        "time",
        "--op",
        "all_reduce",
        "--bytes",
        "1MiB",
        "--ranks",
        "8",
        "--busbw",
        "b.yaml",
        "--group",
        group,
    )
    return Case((*arguments, *(("--json",) if rng.random() < 0.5 else ())), {"b.yaml": content})


def _calibrated(rng: random.Random) -> Case:
    def written() -> bytes:
        if rng.random() < 0.05:
            return rng.choice(
                (hostile.deep_sequences(100_000), hostile.deep_mappings(100_000), "null", "[]", "5")
            ).encode()
        return as_json(mutated(CALIBRATION, rng, tuple(CALIBRATION["fits"][0])), rng)

    if rng.random() < 0.3:
        return _priced("--table", "t.csv", TABLE.encode(), rng, "--calibration", "no.json")
    content = document(rng, written)
    arguments = (
        "--op",
        rng.choice(OPS[:2]),
        "--bytes",
        "1MiB",
        "--ranks",
        rng.choice(("2", "8", "4")),
        "--calibration",
        "c.json",
    )
    return Case(("simccl", "time", *arguments, *(("--json",) if rng.random() < 0.5 else ())), {"c.json": content})


def _measured(rng: random.Random) -> Case:
    def written() -> bytes:
        if rng.random() < 0.5:
            return as_csv(mutated_cells(cells_of(MEASURED, ","), rng, MEASURED_NAMES), rng)
        return as_fields(mutated_cells(cells_of(NCCL_TESTS, None), rng), rng)

    files: dict[str, bytes | Special] = {"m.txt": document(rng, written)}
    if rng.random() < 0.04:
        files["m.txt"] = rng.choice(list(Special))
    more = rng.choice(
        ((), (), (), ("--also", "h100"), ("--also", option_value(rng)), ("--source", option_value(rng)), ("--json",))
    )
    output = rng.choice(("c.json",) * 10 + ("m.txt", "x" * 300, "no/c.json", ""))
    return Case(("simccl", "calibrate", "m.txt", "-o", output, *more), files, ("c.json",))


def _options(rng: random.Random) -> Case:
    verb = rng.choice(("time", "plan", "plan", "verify", "verify"))
    names = ["--op", "--bytes", "--ranks"]
    allowed = [
        name for name in OPTIONS if verb != "time" or name not in ("--algorithm", "--protocol", "--root", "--coarsen")
    ]
    names += rng.sample([name for name in allowed if name not in names], rng.randrange(4))
    values = {name: rng.choice(OPTIONS[name]) for name in names}
    for _ in range(few(rng)):
        name = rng.choice(names)
        values[name] = rng.choice((rng.choice(OPTIONS[name]), rng.choice(SIZES), rng.choice(SIZES), option_value(rng)))
    arguments = [word for name, value in values.items() for word in (name, value)]
    if verb == "plan":
        arguments += ["-o", rng.choice(("p.csv",) * 6 + ("p.parquet", "p.txt", "", "x" * 300 + ".csv"))]
        arguments += rng.choice(((), (), ("--format", "simccl"), ("--format", option_value(rng))))
    if rng.random() < 0.2:
        arguments.append("--json")
    return Case(("simccl", verb, *arguments), {}, ("p.csv", "p.parquet"))
