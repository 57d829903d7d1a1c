"""Flows and settings of the packet models: CSV, HPCC's flow file, YAML, SimAI.conf and options of ``netsim run``."""

from __future__ import annotations

import random
from typing import Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.topologies import LISTED
from tests.fuzz.mutation import (
    Tree,
    as_csv,
    as_fields,
    as_yaml,
    cells_of,
    document,
    few,
    mutated,
    mutated_cells,
    option_value,
)
from tests.samples import SIMAI_CONF

FLOWS: Final = """flow_id,src,dst,bytes,deps,start_ns,delay_ns,flow_label,max_rate_bps,after,credits,priority
a,0,2,400000,,0,0,0,0,,,3
b,1,2,400000,,0.5,10,1,100000000000,,,3
c,2,0,400000,a;b,1,0,2,0,,,1
d,0,1,5000,,0,0,3,0,a,c,7
"""
SMALL_FLOWS: Final = "flow_id,src,dst,bytes,deps\na,0,2,40000,\nb,1,2,40000,\nc,2,0,40000,a;b\n"
FLOW_FIELDS: Final = ("flow_id", "src", "dst", "bytes", "deps", "start_ns", "delay_ns", "flow_label", "max_rate_bps",
                      "after", "credits", "priority")  # fmt: skip
HPCC: Final = "3\n0 1 3 100 40000 0.000001\n1 2 3 100 40000 0\n2 0 3 200 1000 2.5\n"

ROCE: Final[Tree] = {
    "mtu_bytes": 4096, "header_bytes": 52, "ack_bytes": 60, "packets_per_ack": 1, "cell_packets": 1,
    "congestion_control": "dcqcn", "congestion_preset": None,
    "congestion": {"increase_interval": "300us", "additive_increase": "5Mbps per 25Gbps", "gain": 0.1,
                   "min_rate": "100Mbps", "fast_recovery_steps": 5, "clamps_target": True},
    "window": "variable", "acks_first": True, "recovery": "go_back_n", "retransmission_timeout": "1ms",
    "nack_interval": "500us", "max_retries": 7, "pfc": True, "pfc_frame_bytes": 64, "ecn": True,
    "ecn_thresholds": {"kmin_bytes": 100000, "kmax_bytes": 400000, "pmax": 0.2}, "switch_buffer_bytes": 33554432,
    "reserve_bytes": 4096, "headroom_bytes": 100000, "threshold_shift": 3, "resume_offset_bytes": 3072,
    "nvswitch_input_bytes": 100000, "load_balancing": "ecmp", "flowlet_gap": "5us", "reroute_delay": "100us",
    "skip_tolerance": 0.01, "memoise": False, "ecmp_seed": 0, "seed": 0,
}  # fmt: skip
OTHER_ROCE: Final[tuple[Tree, ...]] = (
    {"congestion_control": "hpcc", "congestion": {"additive_increase": "50Mbps", "max_additive_steps": 5,
     "target_utilization": 0.95, "reacts_within_rtt": True, "min_rate_bps": 1000000}},
    {"congestion_control": "timely", "congestion": {"beta": 0.8, "gain": 0.8, "high_rtt": "500us", "low_rtt": "50us",
     "hyper_increase": "50Mbps", "min_rtt_ps": 20000000, "steps_before_hyper": 5}},
    {"congestion_control": "dctcp", "congestion": {"gain": 0.06, "additive_increase_bps": 1000000}},
    {"congestion_control": "none", "window": "fixed", "load_balancing": "adaptive"},
    {"load_balancing": "flowlet", "ecn_by_rate": {"400Gbps": {"kmin_bytes": 1000, "kmax_bytes": 4000, "pmax": 1}}},
    {"pfc": False, "recovery": "selective_repeat", "switch_buffer_bytes": 2000000, "headroom_bytes": 0, "ecn": False},
)  # fmt: skip
ROCE_FIELDS: Final = (*ROCE, "ecn_by_rate", "congestion.gain", "congestion.additive_increase", "congestion.beta",
                      "congestion.increase_interval", "congestion.min_rate", "ecn_thresholds.kmin_bytes")  # fmt: skip
TOPOLOGY: Final = {**LISTED}


def generate(rng: random.Random) -> Case:
    """A command that runs flows."""
    backend = rng.choice(("analytical", "fluid", "fluid", "packet", "packet", "packet", "ns3"))
    is_packet = backend in ("packet", "ns3")
    files: dict[str, bytes | Special] = {"T.yaml": as_yaml(TOPOLOGY, random.Random(0)), "F.csv": SMALL_FLOWS.encode()}
    arguments = ["netsim", "run", "--topology", "T.yaml", "--flows", "F.csv", "--backend", backend, "-o", "fct.csv"]
    match rng.randrange(7) if is_packet else 0:
        case 0 | 1:
            files["F.csv"] = flow_file(rng)
        case 2 | 3:
            arguments += ["--config", "roce.yaml"]
            files["roce.yaml"] = roce_file(rng)
        case 4:
            arguments += ["--simai-config", "SimAI.conf"]
            conf = cells_of(SIMAI_CONF, None)
            files["SimAI.conf"] = document(rng, lambda: as_fields(mutated_cells(conf, rng), rng))
        case 5:
            for _ in range(few(rng)):
                arguments += ["--set", setting(rng)]
        case _:
            arguments += rng.choice(
                (
                    ("--series", "s.csv", "--interval", option_value(rng)),
                    ("--bandwidth", "b.csv", "--interval", option_value(rng)),
                    ("--series", rng.choice(("s.csv", "s.parquet")), "--interval", rng.choice(hostile.QUANTITIES)),
                    ("--interval", option_value(rng)),
                    ("--fct", "fct.txt", "--pfc", "pfc.txt", "--set", setting(rng)),
                    ("--fct", rng.choice(("fct.csv", "F.csv", "x" * 300, "no/fct.txt", ".", ""))),
                )
            )
    if rng.random() < 0.03:
        files[rng.choice(list(files))] = rng.choice(list(Special))
    if rng.random() < 0.05:
        arguments[arguments.index("--backend") + 1] = rng.choice(("rdma", *hostile.TEXTS))
    if rng.random() < 0.1:
        arguments.append("--json")
    outputs = ("fct.csv", "fct.txt", "pfc.txt", "s.csv", "s.parquet", "b.csv")
    return Case(tuple(arguments), files, outputs)


def flow_file(rng: random.Random) -> bytes:
    """Flows as CSV or in HPCC's form."""
    if rng.random() < 0.3:
        return document(rng, lambda: as_fields(mutated_cells(cells_of(HPCC, None), rng), rng))
    cells = cells_of(FLOWS, ",")
    return document(rng, lambda: as_csv(mutated_cells(cells, rng, FLOW_FIELDS), rng))


def roce_file(rng: random.Random) -> bytes:
    """Settings of the packet model."""
    if rng.random() < 0.05:
        return hostile.yaml_document(rng).encode("utf-8", "surrogatepass")
    tree = ROCE if rng.random() < 0.6 else rng.choice(OTHER_ROCE)
    return document(rng, lambda: as_yaml(mutated(tree, rng, ROCE_FIELDS), rng))


def setting(rng: random.Random) -> str:
    """``--set name=value``."""
    name = rng.choice(ROCE_FIELDS) if rng.random() < 0.9 else rng.choice((*hostile.TEXTS, ".", "a.", ".a", "a.b.c"))
    value = hostile.yaml_value(rng) if rng.random() < 0.1 else option_value(rng)
    if len(value) > 100_000:
        value = value[:100_000]  # an argument has at most 128 KiB
    return f"{name}={value}" if rng.random() < 0.97 else value
