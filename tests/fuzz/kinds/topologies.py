"""Topologies: YAML of nodes and links, specs with a kind, SimAI's text, and the options of ``netsim topology KIND``."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.mutation import Tree, as_fields, as_yaml, cells_of, document, few, mutated, mutated_cells, option_value

LISTED: Final[Tree] = {
    "gpus_per_node": 1,
    "nodes": [["gpu", "gpu0"], ["gpu", "gpu1"], ["gpu", "gpu2"], ["switch", "s0"]],
    "links": [[f"gpu{i}", "s0", "400Gbps", "500ns", "nic"] for i in range(3)],
}
DIRECTED: Final[Tree] = {
    "gpus_per_node": 2,
    "nodes": [["gpu", "a"], ["gpu", "b"], ["nvswitch", "n"]],
    "directed_links": [
        [x, y, "100Gbps", "25ns", "nvlink"] for x, y in (("a", "n"), ("n", "a"), ("b", "n"), ("n", "b"))
    ],
}
SPECS: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "nvswitch", "gpus_per_node": 8, "nvswitches": 1, "nvlink": "370.8GB/s", "nvlink_latency": "25ns"},
    {"kind": "nvl72", "nvswitches": 1},
    {"kind": "single_switch", "nodes": 4, "gpus_per_node": 2, "nic": "400Gbps", "link_latency": "500ns"},
    {"kind": "fat_tree", "k": 4, "nodes": 8, "hosts_per_edge": 2, "oversubscription": 2, "nic": "100Gbps"},
    {"kind": "fat_tree", "nodes": 8},
    {"kind": "rail_optimized", "nodes": 4, "gpus_per_node": 2, "rails": 2, "nvswitches_per_node": 1,
     "nodes_per_segment": 2, "spines": 2, "oversubscription": 1.5},
    {"kind": "spectrum_x", "nodes": 4, "gpus_per_node": 2, "spines": 2, "spine_ports": 4, "uplink": "400Gbps"},
    {"kind": "alibaba_hpn", "nodes": 4, "gpus_per_node": 2, "spines": 2, "tors": 2, "planes": 2, "spine_ports": 8},
    {"kind": "dcn_plus", "nodes": 4, "gpus_per_node": 2, "spines": 2, "spine_ports": 8, "tors": 1,
     "oversubscription": 2},
    {"kind": "dragonfly", "nodes": 6, "hosts_per_router": 1, "routers_per_group": 2, "global_ports": 1, "groups": 3,
     "global_latency": "1us", "oversubscription": 1},
    {"kind": "dragonfly", "nodes": 6},
    {"kind": "file", "file": "T.txt"},
    {"file": "T.yaml"},
)  # fmt: skip
FIELDS: Final = tuple(dict.fromkeys(field for spec in SPECS for field in spec))
SIMAI: Final = "6 2 2 2 9 H100\n4 5 2 3\n" + "".join(
    f"{a} {b} {rate} {delay} 0\n"
    for a, b, rate, delay in (
        (0, 4, "2880Gbps", "0.000025ms"), (1, 4, "2880Gbps", "0.000025ms"), (0, 2, "400Gbps", "0.0005ms"),
        (1, 3, "400Gbps", "0.0005ms"), (2, 3, "400Gbps", "0.0005ms"), (0, 5, "1Gbps", "1us"), (1, 5, "1Gbps", "1us"),
        (0, 3, "400Gbps", "500ns"), (1, 2, "400Gbps", "500ns"),
    )
)  # fmt: skip
"""Two GPUs, two switches, two NVSwitches."""
FLOWS: Final = b"flow_id,src,dst,bytes,deps\na,0,1,1000,\n"


def topology_file(rng: random.Random) -> tuple[str, bytes]:
    """Name and content of a hostile topology."""
    match rng.randrange(10):
        case 0 | 1 | 2:
            return "T.yaml", document(rng, lambda: as_yaml(mutated(rng.choice((LISTED, DIRECTED)), rng, FIELDS), rng))
        case 3 | 4 | 5:
            return "T.yaml", document(rng, lambda: as_yaml(mutated(rng.choice(SPECS), rng, FIELDS), rng))
        case 6 | 7 | 8:
            cells = cells_of(SIMAI, None)
            return "T.txt", document(rng, lambda: as_fields(mutated_cells(cells, rng), rng))
        case _:
            return "T.yaml", hostile.yaml_document(rng).encode("utf-8", "surrogatepass")


def generate(rng: random.Random) -> Case:
    """A command about a topology."""
    if rng.random() < 0.4:
        return _options(rng)
    name, content = topology_file(rng)
    files: dict[str, bytes | Special] = {name: content}
    if rng.random() < 0.04:
        files[name] = rng.choice(list(Special))
    if rng.random() < 0.3:
        files["F.csv"] = FLOWS
        backend = rng.choice(("analytical", "fluid", "fluid", "packet"))
        arguments = ("--topology", name, "--flows", "F.csv", "--backend", backend, "-o", "fct.csv")
        return Case(("netsim", "run", *arguments), files, ("fct.csv",))
    output = rng.choice(("out.yaml", "out.txt"))
    return Case(("netsim", "topology", name, "-o", output, *_more(rng)), files, (output, "p.svg", "p.html"))


def _options(rng: random.Random) -> Case:
    """``netsim topology KIND --field value…``"""
    fields = {name: str(value) for name, value in rng.choice(SPECS).items() if name != "file"}
    kind = fields.pop("kind", "nvswitch")
    for _ in range(few(rng)):
        match rng.randrange(8):
            case 0:
                fields[rng.choice(FIELDS)] = option_value(rng)
            case 1:
                kind = rng.choice((kind, kind.replace("_", "-"), *hostile.TEXTS))
            case 2 if fields:
                fields[rng.choice(hostile.TEXTS)] = fields.pop(rng.choice(list(fields)))
            case _ if fields:
                fields[rng.choice(list(fields))] = option_value(rng)
    words = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value)]
    if rng.random() < 0.1:
        words.append(option_value(rng))
    output = rng.choice(("out.yaml", "out.txt"))
    return Case(("netsim", "topology", kind, "-o", output, *words, *_more(rng)), {}, (output, "p.svg", "p.html"))


def _more(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(
        (
            *((),) * 6,
            ("--json",),
            ("--format", "simai"),
            ("--format", "simai", "--gpu-type", option_value(rng)),
            ("--plot", "p.svg"),
            ("--plot", rng.choice(("p.html", "p.png", "x" * 300 + ".svg", "no/p.svg"))),
            ("-o", rng.choice(("x" * 300, "no/such", ".", "", "/dev/null/x"))),
        )
    )
