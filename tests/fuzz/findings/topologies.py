"""Small cases of `tests.fuzz.kinds.topologies` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

from typing import Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.topologies import FLOWS

_LISTED: Final = """gpus_per_node: 1
nodes: [[gpu, a], [gpu, b], [switch, s]]
links: [[a, s, 1Gbps, 1us, nic], [b, s, 1Gbps, 1us, nic]]
"""
_SIMAI: Final = "3 1 0 1 2 H100\n2\n0 2 400Gbps 0.0005ms 0\n1 2 400Gbps 0.0005ms 0\n"


def _convert(text: str, name: str = "T.yaml") -> Case:
    return Case(
        ("netsim", "topology", name, "-o", "out.yaml"), {name: text.encode("utf-8", "surrogatepass")}, ("out.yaml",)
    )


def _run(text: str, backend: str = "fluid", name: str = "T.yaml") -> Case:
    arguments = ("--topology", name, "--flows", "F.csv", "--backend", backend, "-o", "fct.csv")
    return Case(("netsim", "run", *arguments), {name: text.encode(), "F.csv": FLOWS}, ("fct.csv",))


def _build(kind: str, *options: str) -> Case:
    return Case(("netsim", "topology", kind, "-o", "out.yaml", *options), {}, ("out.yaml",))


_MANY: Final = ("1000000000000", "9223372036854775807", "9223372036854775808", "1" + "0" * 400)

CASES: Final[dict[str, Case]] = {
    "deep-sequence": _convert(hostile.deep_sequences(40_000)),
    "deep-mapping": _convert(hostile.deep_mappings(40_000)),
    "deep-block": _convert("- " * 40_000 + "a"),
    "deep-question": _convert("? " * 40_000 + "a"),
    "deep-value": _run("kind: " + hostile.deep_sequences(1_000)),
    "alias-bomb": _convert(hostile.alias_bomb()),
    "merge-bomb": _convert(hostile.merge_bomb()),
    "recursive-links": _convert("gpus_per_node: 1\nnodes: []\nlinks: &a [*a]\n"),
    "tag-without-number": _convert(_LISTED.replace("node: 1", "node: !!int abc")),
    "tag-of-no-flag": _convert(_LISTED.replace("node: 1", "node: !!bool abc")),
    "tag-of-no-date": _convert(_LISTED.replace("node: 1", "node: !!timestamp abc")),
    "object-tag": _convert(_LISTED.replace("node: 1", "node: !!python/object/apply:os.system ['true']")),
    "many-digits": _convert(_LISTED.replace("node: 1", "node: " + "9" * 5000)),
    "many-digits-of-rate": _convert(_LISTED.replace("1Gbps", "9" * 5000 + "Gbps")),
    "itself": _run("kind: file\nfile: T.yaml\n"),
    "itself-by-a-link": Case(("netsim", "topology", "T.yaml", "-o", "out.yaml"), {"T.yaml": Special.LOOP}),
    "empty-pipe": Case(("netsim", "topology", "T.yaml", "-o", "out.yaml"), {"T.yaml": Special.FIFO}),
    "self-loop": _run(_LISTED.replace("[a, s, 1Gbps", "[a, a, 1Gbps")),
    "self-loop-of-switch": _run(_LISTED.replace("links: [", "links: [[s, s, 1Gbps, 1us, fabric], ")),
    "self-loop-on-packets": _run(_LISTED.replace("links: [", "links: [[s, s, 1Gbps, 1us, fabric], "), "packet"),
    "latencies-beyond-the-clock": _run(_LISTED.replace("1us", "9223371s")),
    "latencies-beyond-the-clock-on-packets": _run(_LISTED.replace("1us", "9223371s"), "packet"),
    "latencies-beyond-the-clock-analytical": _run(_LISTED.replace("1us", "9223371s"), "analytical"),
    "latency-above-64-bits": _run(_LISTED.replace("1us", "9223373s")),
    "rate-above-64-bits": _run(_LISTED.replace("1Gbps", "1e19bps")),
    "rate-near-64-bits": _run(_LISTED.replace("1Gbps", "9000Pbps")),
    "rate-near-64-bits-on-packets": _run(_LISTED.replace("1Gbps", "9000Pbps"), "packet"),
    "one-bit-per-second": _run(_LISTED.replace("1Gbps", "1bps")),
    "one-bit-per-second-on-packets": _run(_LISTED.replace("1Gbps", "1bps"), "packet"),
    "long-name": _convert(_LISTED.replace("gpu, a", "gpu, " + "x" * 200_000)),
    "control-in-name": _convert(_LISTED.replace("gpu, a", 'gpu, "\\e[31m\\r\\n"')),
    "gpus-per-node-above-64-bits": _run(_LISTED.replace("node: 1", "node: 9223372036854775808")),
    "gpus-per-node-of-a-million": _run(_LISTED.replace("node: 1", "node: 1000000000000")),
    "negative-gpus-per-node": _run(_LISTED.replace("node: 1", "node: -1")),
    "numbers-as-rows": _convert("gpus_per_node: 1\nnodes: [1, 2]\nlinks: [5]\n"),
    "list-as-name": _convert("gpus_per_node: 1\nnodes: [[[gpu], a]]\n"),
    "simai": _run(_SIMAI, name="T.txt"),
    "simai-many-nodes": _convert(_SIMAI.replace("3 1", "1000000000000 1"), "T.txt"),
    "simai-many-links": _convert(_SIMAI.replace("1 2 H", "1 9223372036854775808 H"), "T.txt"),
    "simai-many-digits": _convert(_SIMAI.replace("3 1", "9" * 5000 + " 1"), "T.txt"),
    "simai-gpus-per-server": _run(_SIMAI.replace("3 1", "3 9223372036854775808"), name="T.txt"),
    "simai-no-ids": _convert("3 1 0 1 0 H100\n", "T.txt"),
    "simai-only-a-header": _convert("3 1 0 0 0 H100", "T.txt"),
    "simai-header-of-zeros": _convert("0 0 0 0 0 x\n", "T.txt"),
    "simai-other-digits": _convert(_SIMAI.replace("3 1", "٣ 1"), "T.txt"),
    "simai-rate": _convert(_SIMAI.replace("400Gbps", "1e99Gbps"), "T.txt"),
    "simai-delay": _run(_SIMAI.replace("0.0005ms", "9223371s"), name="T.txt"),
    "simai-self-loop": _run(_SIMAI.replace("0 2 400Gbps", "0 0 400Gbps"), name="T.txt"),
    "simai-error-rate": _convert(_SIMAI.replace("ms 0", "ms nan"), "T.txt"),
    "simai-gpu-type": Case(
        ("netsim", "topology", "single_switch", "--nodes", "2", "-o", "o.txt", "--gpu-type", "a b\nc"), {}, ("o.txt",)
    ),
    "long-output": Case(("netsim", "topology", "nvl72", "-o", "x" * 300)),
    "long-plot": Case(("netsim", "topology", "nvl72", "--plot", "x" * 300 + ".svg")),
    "output-is-input": Case(("netsim", "topology", "T.yaml", "-o", "T.yaml"), {"T.yaml": _LISTED.encode()}),
    "plot-is-output": Case(("netsim", "topology", "nvl72", "-o", "p.svg", "--plot", "p.svg")),
    "name-that-is-no-text": Case(("netsim", "topology", "\udcff", "-o", "out.yaml", "--nodes", "6")),
    "escape-as-option": _build("single_switch", "--\x7f", "500ns"),
    "long-option": _build("nvswitch", "x" * 100_000),
    "long-value": _build("nvswitch", "--nvswitches", "x" * 100_000),
    "other-digits": _build("nvswitch", "--nvswitches", "١٢"),
    **{
        f"{kind}-{field}={value[:25]}": _build(kind, *needed, f"--{field}", value)
        for kind, needed, fields in (
            ("nvswitch", (), ("gpus-per-node", "nvswitches")),
            ("nvl72", (), ("nvswitches",)),
            ("single_switch", ("--nodes", "2"), ("nodes", "gpus-per-node")),
            ("fat_tree", (), ("k",)),
            ("fat_tree", ("--nodes", "4"), ("hosts-per-edge", "gpus-per-node", "nodes")),
            ("fat_tree", ("--k", "4"), ("hosts-per-edge",)),
            ("rail_optimized", ("--nodes", "2"), ("rails", "spines", "nodes-per-segment", "nvswitches-per-node")),
            ("spectrum_x", ("--nodes", "2"), ("spines", "spine-ports")),
            ("alibaba_hpn", ("--nodes", "2"), ("spines", "spine-ports", "gpus-per-node")),
            ("dcn_plus", ("--nodes", "2"), ("spines", "spine-ports")),
            ("dragonfly", ("--nodes", "2"), ("nodes", "routers-per-group", "global-ports", "groups")),
            ("dragonfly", (), ("hosts-per-router",)),
            ("dragonfly", ("--hosts-per-router", "1"), ("routers-per-group", "global-ports", "groups")),
        )
        for field in fields
        for value in _MANY
    },
    "dragonfly-that-cannot-grow": _build(
        "dragonfly", "--nodes", "1000000", "--groups", "1", "--routers-per-group", "1"
    ),
    "dragonfly-odd": _build("dragonfly", "--nodes", "1000000", "--global-ports", "1", "--groups", "2"),
    "fat-tree-that-cannot-grow": _build("fat_tree", "--nodes", "1000000000", "--hosts-per-edge", "1"),
    **{
        f"{field}={value[:25]}": _build(kind, "--nodes", "2", f"--{field}", value)
        for kind, field, values in (
            ("rail_optimized", "oversubscription", ("1e-320", "1e-9", "1e300", "1e308", "nan", "inf", "1e400", "0")),
            ("fat_tree", "oversubscription", ("1e-320", "1e300")),
            ("spectrum_x", "oversubscription", ("1e-320", "1e300")),
            ("dragonfly", "oversubscription", ("1e-320", "1e300")),
            ("single_switch", "nic", ("9" * 5000 + "Gbps", "1e99Gbps", "9000Pbps", "1bps", "١Gbps", "1e99999Gbps")),
            ("single_switch", "link-latency", ("1e99s", "9223372s", "9223373s", "0ns", "0.5ps", "9" * 5000 + "s")),
            ("dragonfly", "global-latency", ("1e99s", "9223372s")),
        )
        for value in values
    },
}

WENT_WRONG: Final = frozenset(
    {
        "deep-sequence",
        "deep-mapping",
        "deep-block",
        "deep-question",
        "deep-value",
        "alias-bomb",
        "merge-bomb",
        "tag-without-number",
        "tag-of-no-flag",
        "tag-of-no-date",
        "many-digits",
        "many-digits-of-rate",
        "itself",
        "latency-above-64-bits",
        "rate-above-64-bits",
        "simai-many-nodes",
        "simai-many-digits",
        "simai-no-ids",
        "simai-rate",
        "long-output",
        "long-plot",
        "output-is-input",
        "plot-is-output",
        "name-that-is-no-text",
        "escape-as-option",
        "long-option",
        "long-value",
        "fat_tree-gpus-per-node=1000000000000000000000000",
        "fat_tree-nodes=1000000000000000000000000",
        "rail_optimized-nodes-per-segment=9223372036854775807",
        "dragonfly-nodes=1000000000000000000000000",
        "oversubscription=1e-320",
        "nic=1e99Gbps",
        "link-latency=1e99s",
        "global-latency=1e99s",
    }
)
"""The others never did, and run with ``--long``."""
