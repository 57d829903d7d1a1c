"""Small cases of `tests.fuzz.kinds.flows` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

import random
from typing import Final

from netsim.formats.simai_config import _IGNORED as IGNORED_KEYS
from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.flows import HPCC, ROCE, SMALL_FLOWS, TOPOLOGY
from tests.fuzz.mutation import as_yaml
from tests.samples import SIMAI_CONF

_TOPOLOGY: Final = as_yaml(TOPOLOGY, random.Random(0))
_OUTPUTS: Final = ("fct.csv", "s.csv", "s.parquet", "b.csv", "fct.txt", "pfc.txt")


def _flows(text: str, backend: str = "fluid", *more: str) -> Case:
    files: dict[str, bytes | Special] = {"T.yaml": _TOPOLOGY, "F.csv": text.encode("utf-8", "surrogatepass")}
    arguments = ("--topology", "T.yaml", "--flows", "F.csv", "--backend", backend, "-o", "fct.csv", *more)
    return Case(("netsim", "run", *arguments), files, _OUTPUTS)


def _row(backend: str = "fluid", **cells: str) -> Case:
    """One flow."""
    row = {"flow_id": "a", "src": "0", "dst": "2", "bytes": "40000", "deps": ""} | cells
    return _flows(f"{','.join(row)}\n{','.join(row.values())}\n", backend)


def _packets(*more: str, **files: str) -> Case:
    """A run on packets, with options and files of settings."""
    case = _flows(SMALL_FLOWS, "packet", *more)
    return Case(
        case.argv, {**case.files, **{name.replace("_", "."): text.encode() for name, text in files.items()}}, _OUTPUTS
    )


def _set(*settings: str) -> Case:
    return _packets(*(word for setting in settings for word in ("--set", setting)))


def _conf(old: str, new: str) -> Case:
    assert old in SIMAI_CONF
    return _packets("--simai-config", "SimAI.conf", SimAI_conf=SIMAI_CONF.replace(old, new))


_NUMBERS: Final = ("2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 400)

CASES: Final[dict[str, Case]] = {
    **{
        f"{field}={value[:25]}-{backend}": _row(backend, **{field: value})
        for field, values in {
            "bytes": ("9223372036854775807", "9223372036854775808", "9" * 5000, "١٢", "1e3", "-1", ""),
            "src": ("9223372036854775808", "²", "99"),
            "start_ns": ("9223372036854775", "9223372036854774", "1e13", "1e99", "0.0001", "9" * 5000, "nan"),
            "delay_ns": ("9223372036854774", "9" * 5000),
            "max_rate_bps": ("1", "9223372036854775807", "18446744073709551616"),
            "flow_label": ("4294967295", "4294967296"),
            "priority": ("0", "8", "9" * 5000),
            "deps": ("a", "b", ";", "\x00"),
            "after": ("a",),
            "credits": ("a",),
            "flow_id": ("x" * 200_000, "\x1b[31m", "a;b", ""),
        }.items()
        for value in values
        for backend in ("analytical", "fluid")
    },
    "start-late-on-packets": _row("packet", start_ns="9223372036854774"),
    "delay-late-on-packets": _row("packet", delay_ns="9223372036854774"),
    "many-bytes-on-packets": _row("packet", bytes="9223372036854775807"),
    "slow-flow-on-packets": _row("packet", max_rate_bps="1", bytes="1"),
    "start-and-delay-beyond-the-clock": _row(start_ns="9223372036854774", delay_ns="9223372036854774"),
    "start-and-delay-beyond-the-clock-on-packets": _row(
        "packet", start_ns="9223372036854774", delay_ns="9223372036854774"
    ),
    "long-cell": _flows("flow_id,src,dst,bytes,deps\na,0,1,1," + "y" * 200_000 + "\n"),
    "long-header": _flows("flow_id,src,dst,bytes,deps," + "y" * 200_000 + "\n"),
    "column-twice": _flows("flow_id,src,dst,bytes,deps,src\na,0,1,1,,2\n"),
    "lone-return": _flows(SMALL_FLOWS.replace("\n", "\r")),
    "empty": _flows(""),
    "only-a-header": _flows("flow_id,src,dst,bytes,deps\n"),
    "nul": _flows(SMALL_FLOWS.replace("a,0", "\0,0")),
    "long-cycle": _flows(
        "flow_id,src,dst,bytes,deps\n" + "".join(f"f{i},0,1,1,f{(i + 1) % 5000}\n" for i in range(5000))
    ),
    "long-chain": _flows(
        "flow_id,src,dst,bytes,deps\n" + "".join(f"f{i},0,1,1,{f'f{i - 1}' if i else ''}\n" for i in range(5000))
    ),
    "hpcc": _flows(HPCC),
    "hpcc-many": _flows("9223372036854775807\n0 1 3 100 1 0\n"),
    "hpcc-many-digits": _flows("9" * 5000 + "\n"),
    "hpcc-other-digits": _flows("٣\n0 1 3 100 1 0\n"),
    "hpcc-superscript": _flows("²\n0 1 3 100 1 0\n"),
    "hpcc-form-feed": _flows("\x0c1\n\x0c\n"),
    "hpcc-late": _flows("1\n0 1 3 100 1 9223372\n"),
    "hpcc-small": _flows("1\n0 1 3 100 1 1e-99\n"),
    "empty-pipe": Case(_flows(SMALL_FLOWS).argv, {"T.yaml": _TOPOLOGY, "F.csv": Special.FIFO}, _OUTPUTS),
    **{
        f"{name}={value[:25]}": _set(f"{name}={value}")
        for name, values in {
            **dict.fromkeys(
                (
                    "mtu_bytes",
                    "header_bytes",
                    "ack_bytes",
                    "packets_per_ack",
                    "cell_packets",
                    "max_retries",
                    "pfc_frame_bytes",
                    "switch_buffer_bytes",
                    "reserve_bytes",
                    "headroom_bytes",
                    "threshold_shift",
                    "resume_offset_bytes",
                    "nvswitch_input_bytes",
                    "ecmp_seed",
                    "seed",
                ),
                _NUMBERS,
            ),
            "headroom_bytes": (*_NUMBERS, "4611686018427387904", "1000000000000"),
            "skip_tolerance": ("1e-320", "0.1", "nan", ".nan"),
            "retransmission_timeout": ("1ps", "9223371s", "9223373s", "1e99s", "1ns"),
            "nack_interval": ("1ps", "9223371s"),
            "flowlet_gap": ("1ps", "9223371s"),
            "reroute_delay": ("0ps", "9223371s"),
            "congestion.gain": ("1e-320", "1e300", "nan", ".nan", "-1", "0", "1"),
            "congestion.increase_interval": ("1ps", "0ps", "9223371s", "9223373s", "1e30s"),
            "congestion.alpha_interval": ("1ps", "9223371s"),
            "congestion.decrease_interval": ("1ps", "9223371s"),
            "congestion.min_rate": ("1bps", "9000Pbps", "1e19bps"),
            "congestion.min_rate_bps": _NUMBERS,
            "congestion.fast_recovery_steps": _NUMBERS,
            "congestion.additive_increase": ("9000Pbps", "1bps per 9000Pbps", "9000Pbps per 1bps", "5Mbps per 0bps"),
            "congestion.additive_increase_bps": _NUMBERS,
            "ecn_thresholds": (
                "{kmin_bytes: 0, kmax_bytes: 9223372036854775808, pmax: 1}",
                "{kmin_bytes: 9223372036854775807, kmax_bytes: 9223372036854775807, pmax: 1e-320}",
            ),
            "ecn_by_rate": (
                "{400Gbps: {kmin_bytes: 9223372036854775808, kmax_bytes: 9223372036854775808, pmax: 0}}",
                "{}",
                "{1e99bps: 1}",
            ),
            "congestion_control": ("dcqcn\0", "x" * 100_000, "[dcqcn]", "{a: 1}"),
            "congestion": (hostile.deep_mappings(1000), "{1: 2}", "{gain: [1]}", "[]"),
            "": ("1",),
            ".": ("1",),
            "a.b.c": ("1",),
            "window": ("unbounded", "!!int abc", "2001-99-99"),
        }.items()
        for value in values
    },
    "hpcc-small-rate": _set("congestion_control=hpcc", "congestion.target_utilization=1e-320"),
    "hpcc-large-rate": _set("congestion_control=hpcc", "congestion.target_utilization=1e300"),
    "timely-beta": _set("congestion_control=timely", "congestion.beta=1e300"),
    "timely-rtt": _set("congestion_control=timely", "congestion.low_rtt=9223371s", "congestion.high_rtt=9223371s"),
    "timely-min-rtt": _set("congestion_control=timely", "congestion.min_rtt=1ps"),
    "dctcp-gain": _set("congestion_control=dctcp", "congestion.gain=1e300"),
    "no-headroom": _set("headroom_bytes=0", "switch_buffer_bytes=1", "reserve_bytes=0"),
    "no-pfc-small-buffer": _set("pfc=false", "switch_buffer_bytes=1", "reserve_bytes=0", "headroom_bytes=0"),
    **{
        f"{option}-{value[:20]}": _packets(f"--{option}", name, "--interval", value)
        for option, name in (("series", "s.csv"), ("bandwidth", "b.csv"))
        for value in ("1ps", "1ns", "9223371s", "9223373s", "1e99s", "0ps", "9" * 5000 + "s", "١us", "nan", "")
    },
    "fct-over-the-flows": _packets("--fct", "F.csv"),
    "pfc-over-the-topology": _packets("--pfc", "T.yaml"),
    "output-over-the-flows": Case(
        ("netsim", "run", "--topology", "T.yaml", "--flows", "F.csv", "-o", "F.csv"),
        {"T.yaml": _TOPOLOGY, "F.csv": SMALL_FLOWS.encode()},
    ),
    "long-fct": _packets("--fct", "x" * 300),
    "backend-of-a-kilometre": _flows(SMALL_FLOWS, "x" * 100_000),
    "rdma": _flows(SMALL_FLOWS, "rdma"),
    "setting-that-is-no-text": _set("\udcff=1"),
    "value-that-is-no-text": _set("window=\udcff"),
    "roce-deep": _packets("--config", "roce.yaml", roce_yaml=hostile.deep_sequences(40_000)),
    "roce-alias-bomb": _packets("--config", "roce.yaml", roce_yaml=hostile.alias_bomb()),
    "roce-merge-bomb": _packets("--config", "roce.yaml", roce_yaml=hostile.merge_bomb()),
    "roce-unknown": _packets("--config", "roce.yaml", roce_yaml="k1: 1\n"),
    "roce-whole": _packets("--config", "roce.yaml", roce_yaml=as_yaml(ROCE, random.Random(0)).decode()),
    "conf-rp-timer": _conf("RP_TIMER 900", "RP_TIMER 9223372036854775808"),
    "conf-rp-timer-1e99": _conf("RP_TIMER 900", "RP_TIMER 1e99"),
    "conf-rp-timer-digits": _conf("RP_TIMER 900", "RP_TIMER " + "9" * 5000),
    "conf-gain": _conf("EWMA_GAIN 0.00390625", "EWMA_GAIN 1e308"),
    "conf-gain-1e-320": _conf("EWMA_GAIN 0.00390625", "EWMA_GAIN 1e-320"),
    "conf-steps": _conf("FAST_RECOVERY_TIMES 1", "FAST_RECOVERY_TIMES 9007199254740992"),
    "conf-kmin": _conf("400000000000 800", "400000000000 1e308"),
    "conf-kmax": _conf("400000000000 3200", "400000000000 1e308"),
    "conf-both": _conf("25000000000 100 400000000000 800\n", "25000000000 1e300 400000000000 1e300\n"),
    "conf-rate": _conf("400000000000 800", "1e18 800"),
    "conf-rate-twice": _conf("25000000000 100 400000000000 800", "25000000000 100 25000000000 800"),
    "conf-map-count": _conf("KMIN_MAP 2", "KMIN_MAP 9007199254740992"),
    "conf-buffer": _conf("BUFFER_SIZE 32", "BUFFER_SIZE 9007199254740992"),
    "conf-buffer-4-billion": _conf("BUFFER_SIZE 32", "BUFFER_SIZE 4294967296"),
    "conf-rate-ai": _conf("RATE_AI 50Mb/s\nR", "RATE_AI 1e99Mb/s\nR"),
    "conf-min-rate": _conf("MIN_RATE 100Mb/s", "MIN_RATE 9000Pb/s"),
    "conf-long-key": _conf("RP_TIMER", "R" * 200_000),
    "conf-long-value": _conf("RP_TIMER 900", "RP_TIMER " + "y" * 200_000),
    "conf-control": _conf("RP_TIMER", "\x1b[31m"),
    "conf-other-digits": _conf("RP_TIMER 900", "RP_TIMER ٩"),
    "conf-all-ignored": _packets(
        "--simai-config", "SimAI.conf", SimAI_conf="".join(f"{key} 1\n" for key in sorted(IGNORED_KEYS))
    ),
}

WENT_WRONG: Final = frozenset(
    {
        "start_ns=9999999999999999999999999-analytical",
        "start_ns=9999999999999999999999999-fluid",
        "delay_ns=9999999999999999999999999-analytical",
        "delay_ns=9999999999999999999999999-fluid",
        "many-bytes-on-packets",
        "long-header",
        "max_retries=2147483648",
        "max_retries=9223372036854775807",
        "max_retries=9223372036854775808",
        "pfc_frame_bytes=9223372036854775807",
        "pfc_frame_bytes=9223372036854775808",
        "switch_buffer_bytes=9223372036854775808",
        "reserve_bytes=9223372036854775808",
        "headroom_bytes=9223372036854775808",
        "resume_offset_bytes=9223372036854775808",
        "nvswitch_input_bytes=9223372036854775808",
        "skip_tolerance=1e-320",
        "retransmission_timeout=9223373s",
        "retransmission_timeout=1e99s",
        "congestion.additive_increase_bps=9223372036854775808",
        "ecn_thresholds={kmin_bytes: 0, kmax_byte",
        "ecn_by_rate={400Gbps: {kmin_bytes: 92",
        "series-1ps",
        "series-9223373s",
        "series-1e99s",
        "series-99999999999999999999",
        "bandwidth-1ps",
        "bandwidth-9223373s",
        "bandwidth-1e99s",
        "bandwidth-99999999999999999999",
        "fct-over-the-flows",
        "pfc-over-the-topology",
        "output-over-the-flows",
        "long-fct",
        "backend-of-a-kilometre",
        "setting-that-is-no-text",
        "roce-deep",
        "roce-merge-bomb",
        "roce-unknown",
        "conf-rp-timer-digits",
        "conf-kmax",
        "conf-buffer",
        "conf-rate-ai",
        "conf-long-key",
        "conf-long-value",
        "conf-all-ignored",
    }
)
"""The others never did, and run with ``--long``."""
