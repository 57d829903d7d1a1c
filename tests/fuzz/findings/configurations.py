"""Small cases of `tests.fuzz.kinds.configurations` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

from typing import Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special

_TEXT: Final = """model: qwen3-8b
hardware: h200
workload: {kind: synthetic, requests: 2, arrivals: {kind: static}, lengths: {kind: fixed, prefill: 20, decode: 3}}
cluster:
  topology: {kind: rail_optimized, gpus_per_node: 2}
  pools: [{name: p, role: prefill}, {name: d, role: decode}]
"""


def _run(*settings: str, text: str = _TEXT) -> Case:
    """``vidur-pd run`` with settings."""
    words = [word for setting in settings for word in ("--set", setting)]
    return Case(("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet", *words), {"c.yaml": text.encode()}, ("out",))


def _generate(*settings: str) -> Case:
    """``vidur-pd workload generate`` with settings."""
    words = [word for setting in settings for word in ("--set", setting)]
    return Case(("vidur-pd", "workload", "generate", "-o", "w.csv", *words), {}, ("w.csv",))


_WIDE = (
    "{kind: synthetic, requests: 2, arrivals: {kind: static}, lengths: {kind: fixed, prefill: 20, decode: 3}, "
    "prefixes: {%s}}"
)

CASES: Final[dict[str, Case]] = {
    "deep-sequence": _run(text=hostile.deep_sequences(40_000)),
    "deep-mapping": _run(text=hostile.deep_mappings(40_000)),
    "deep-block": _run(text="- " * 40_000 + "a"),
    "deep-value": _run(text=_TEXT + "seed: " + hostile.deep_sequences(1_000)),
    "alias-bomb": _run(text=hostile.alias_bomb()),
    "merge-bomb": _run(text=hostile.merge_bomb()),
    "alias-bomb-as-model": _run(text=_TEXT.replace("model: qwen3-8b", hostile.alias_bomb(9) + "model: *a8")),
    "recursive-alias": _run(text=_TEXT + "seed: &a [*a]\n"),
    "tag-without-number": _run(text=_TEXT + "seed: !!int abc\n"),
    "tag-of-empty-float": _run(text=_TEXT + "slo: {ttft_s: !!float ''}\n"),
    "impossible-date": _run(text=_TEXT + "seed: 2001-99-99\n"),
    "impossible-hour": _run("seed=2001-01-01 25:61:61"),
    "unhashable-key": _run(text=_TEXT + "? [a]\n: b\n"),
    "many-digits": _run(text=_TEXT + f"seed: {'9' * 5000}\n"),
    "many-digits-set": _run(f"seed={'9' * 5000}"),
    "many-sexagesimals": _run(text=_TEXT + f"seed: 1{':1' * 4000}\n"),
    "long-key": _run(text=_TEXT + f"{'x' * 200_000}: 1\n"),
    "long-value": _run(text=_TEXT.replace("qwen3-8b", "x" * 200_000)),
    "long-setting": _run("x" * 100_000),
    "bidi-setting": _run("\u202eabc=1"),
    "escape-setting": _run("\x1b[31m=1"),
    "surrogate-setting": _run("model=\udcff"),
    "surrogate-pool": _run(text=_TEXT.replace("name: p", 'name: "\\ud800"')),
    "digit-of-another-script": _run("cluster.pools.²=1"),
    "arabic-index": _run("cluster.pools.٣.tp=1"),
    "negative-index": _run("cluster.pools.-1.tp=1"),
    "long-out": Case(("vidur-pd", "run", "c.yaml", "-o", "x" * 300, "--quiet"), {"c.yaml": _TEXT.encode()}),
    "out-is-configuration": Case(("vidur-pd", "run", "c.yaml", "-o", "c.yaml", "--quiet"), {"c.yaml": _TEXT.encode()}),
    "link-to-itself": Case(("vidur-pd", "run", "c.yaml", "-o", "out"), {"c.yaml": Special.LOOP}),
    "folder": Case(("vidur-pd", "run", "c.yaml", "-o", "out"), {"c.yaml": Special.DIRECTORY}),
    "empty-pipe": Case(("vidur-pd", "run", "c.yaml", "-o", "out"), {"c.yaml": Special.FIFO}),
    "model-named-like-a-float": _run("model=1e5.json"),
    "trace-named-like-a-float": _run("workload={kind: trace, path: 1e2.csv}"),
    "rate-like-a-float": _run("cluster.topology.nic=1e2Gbps"),
    "pool-of-5000-digits": _run('cluster.pools.p.name="' + "7" * 5000 + '"'),
    "seed-above-64-bits": _run("seed=18446744073709551616"),
    "negative-seed": _run("seed=-1"),
    "seed-of-400-digits": _run("seed=1" + "0" * 400),
    **{
        f"{field}={value}": _run(f"{field}={value}")
        for field, values in {
            "cluster.pools.p.instances": ("1000000", "1000000000000", "9223372036854775808"),
            "cluster.pools.p.tp": ("1000000000000", "9223372036854775807"),
            "cluster.pools.p.pp": ("1000000000000",),
            "cluster.pools.p.dp": ("1000000", "1000000000000"),
            "cluster.topology.gpus_per_node": ("1000000", "1000000000000", "9223372036854775807", "1" + "0" * 400),
            "cluster.topology.nodes": ("1000000000000",),
            "cluster.topology.spines": ("1000000000000",),
            "cluster.topology.nodes_per_segment": ("9223372036854775807",),
            "cluster.topology.nvswitches_per_node": ("1000000000000",),
            "cluster.topology.oversubscription": ("1e-320", "1e300", "1e308"),
            "cluster.topology.link_latency": ("9223372s", "1e12s", "1e99s"),
            "cluster.topology.nvlink_latency": ("9223371s",),
            "cluster.topology.nic": ("1bps", "9000Pbps", "1e99Gbps"),
            "engine.max_seqs": ("1000000000000", "9223372036854775808"),
            "engine.max_batched_tokens": ("1000000000000", "9223372036854775808", "1" + "0" * 400),
            "engine.max_model_len": ("9223372036854775808",),
            "engine.block_tokens": ("1000000000000", "9223372036854775808"),
            "engine.num_kv_blocks": ("1000000000000", "9223372036854775808"),
            "engine.gpu_memory_utilization": ("1e-320",),
            "engine.long_prefill_token_threshold": ("9223372036854775808",),
            "engine.request_latency_ms": ("1e-320", "1000000"),
            "engine.expert_load": ("power_law:1e308", "zipf:1e308"),
            "engine.speculative": ("{drafts: 1000000000000}", "{acceptance: 1e-320}"),
            "kv_transfer.setup_ms": ("1000000", "1e-320"),
            "network.roce.headroom_bytes": ("9223372036854775807",),
            "slo.ttft_s": ("1e-320", "1e300", "NaN", ".nan", ".inf"),
            "slo.window_s": ("1e-320", "1e-9", "1e300"),
            "slo.tpot_s": ("1e308",),
            "output.link_windows": ("1000000000000", "9223372036854775808"),
            "workload.requests": ("2147483647", "1000000000000"),
            "workload.arrivals": (
                "{kind: poisson, qps: 1e-320}",
                "{kind: poisson, qps: 1e300}",
                "{kind: gamma, qps: 1, cv: 1e-160}",
                "{kind: gamma, qps: 1, cv: 1e160}",
                "{kind: gamma, qps: 1, cv: 1e308}",
                "{kind: constant, qps: 1e-300}",
                "{kind: ramp, from_qps: 1e-300, to_qps: 1e300, shape: exponential}",
            ),
            "workload.lengths": (
                "{kind: fixed, prefill: 2147483647, decode: 2147483647}",
                "{kind: zipf, min: 2, max: 2147483647, theta: 1, prefill_to_decode: 1}",
                "{kind: zipf, min: 2, max: 20, theta: 1e308, prefill_to_decode: 1e308}",
                "{kind: uniform, min: 2, max: 2147483647, prefill_to_decode: 1e-320}",
                "{kind: lognormal, prefill: {mu: 1e308, sigma: 1e308}, decode: {mu: -1e308, sigma: 0}}",
                "{kind: lognormal, prefill: {mean: 1e308, cv: 1e308}, decode: {mean: 1e-320, median: 1e-320}}",
            ),
            "recovery.transfer_backoff_s": ("1e300", "1e-320"),
            "recovery.transfer_retries": ("1000",),
        }.items()
        for value in values
    },
    "many-system-prompts": _run("workload=" + _WIDE % "system_prompts: 2147483647"),
    "long-system-prompts": _run("workload=" + _WIDE % "system_tokens: 2147483647, hash_block_tokens: 1"),
    "endless-conversations": _run("workload=" + _WIDE % "turns: 1e300, think_time_s: 1e300"),
    "think-time-below-the-clock": _run("workload=" + _WIDE % "turns: 5, think_time_s: 1e-320"),
    "popularity": _run("workload=" + _WIDE % "system_prompts: 100, popularity_theta: 1e308"),
    "flaps-below-the-clock": _run(
        "faults=[{kind: link_flap, between: [gpu0, leaf0.0], at_s: 0, count: 10000, down_s: 1e-320, up_s: 1e-320}]"
    ),
    "flap-of-no-cable": _run("faults=[{kind: link, between: [gpu0, gpu0], at_s: 0}]"),
    "late-fault": _run("faults=[{kind: gpu, gpu: 0, at_s: 1e6, for_s: 1e6}]"),
    "gpu-above-64-bits": _run("faults=[{kind: gpu, gpu: 9223372036854775808, at_s: 0}]"),
    "fat-tree-of-everything": _run("cluster.topology={kind: fat_tree, k: 1000000000000}"),
    "fat-tree-sizing": _run("cluster.topology={kind: fat_tree, hosts_per_edge: 1, nodes: 1000000000000}"),
    "dragonfly-sizing": _run("cluster.topology={kind: dragonfly, groups: 1, routers_per_group: 1}"),
    "dragonfly-of-everything": _run("cluster.topology={kind: dragonfly, hosts_per_router: 1000000000}"),
    "topology-of-itself": Case(
        ("vidur-pd", "run", "c.yaml", "-o", "out", "--quiet", "--set", "cluster.topology={file: t.yaml}"),
        {"c.yaml": _TEXT.encode(), "t.yaml": b"file: t.yaml\nkind: file\n"},
    ),
    "generate-many": _generate("workload.requests=2147483647"),
    "generate-smooth": _generate("workload.arrivals={kind: gamma, qps: 1, cv: 1e-160}"),
    "generate-slow": _generate("workload.arrivals.qps=1e-320"),
    "generate-into-long-name": Case(("vidur-pd", "workload", "generate", "-o", "x" * 300 + ".csv")),
    "long-backends": Case(
        ("vidur-pd", "compare", "c.yaml", "-o", "out", "--backends", "a" * 999 + ",b"), {"c.yaml": _TEXT.encode()}
    ),
}

WENT_WRONG: Final = frozenset(
    {
        "deep-sequence",
        "deep-mapping",
        "deep-block",
        "deep-value",
        "merge-bomb",
        "tag-without-number",
        "tag-of-empty-float",
        "impossible-date",
        "impossible-hour",
        "pool-of-5000-digits",
        "cluster.topology.gpus_per_node=1000000",
        "many-digits",
        "many-digits-set",
        "many-sexagesimals",
        "long-value",
        "long-setting",
        "bidi-setting",
        "escape-setting",
        "surrogate-setting",
        "digit-of-another-script",
        "long-out",
        "model-named-like-a-float",
        "trace-named-like-a-float",
        "rate-like-a-float",
        "cluster.pools.p.instances=1000000",
        "cluster.pools.p.instances=1000000000000",
        "cluster.pools.p.instances=9223372036854775808",
        "cluster.pools.p.dp=1000000",
        "cluster.topology.link_latency=1e12s",
        "cluster.topology.link_latency=1e99s",
        "cluster.topology.nvlink_latency=9223371s",
        "cluster.topology.nic=1e99Gbps",
        "engine.long_prefill_token_threshold=9223372036854775808",
        "output.link_windows=1000000000000",
        "output.link_windows=9223372036854775808",
        "workload.requests=2147483647",
        "workload.arrivals={kind: poisson, qps: 1e-320}",
        "workload.arrivals={kind: gamma, qps: 1, cv: 1e-160}",
        "workload.arrivals={kind: gamma, qps: 1, cv: 1e308}",
        "recovery.transfer_backoff_s=1e300",
        "many-system-prompts",
        "long-system-prompts",
        "topology-of-itself",
        "generate-many",
        "generate-smooth",
        "generate-slow",
    }
)
"""The others never did, and run with ``--long``."""
