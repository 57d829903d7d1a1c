"""Settings of the RoCE model from YAML and ``name=value``, and constants of congestion control with units."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsim import InputError, WireFormat, rail_optimized, single_switch
from netsim.formats.roce_file import apply_settings, merge_documents, parse_roce_config, read_roce_document
from netsim.roce.config import RoceConfig, core_parameters, ecn_thresholds
from netsim.roce.congestion import congestion_parameters

ROW = {"kmin_bytes": 1000, "kmax_bytes": 2000, "pmax": 0.5}


def test_settings_go_on_top_of_a_file_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "roce.yaml"
    path.write_text("mtu_bytes: 1024\ncongestion: {gain: 0.5, min_rate: 100Mbps}\n")
    document = apply_settings(read_roce_document(path), ["mtu_bytes=9000", "congestion.gain=0.25", "nack_interval=1us"])
    config = parse_roce_config(document, str(path))
    assert config == RoceConfig(mtu_bytes=9000, nack_interval="1us", congestion={"gain": 0.25, "min_rate": "100Mbps"})
    assert config.nack_interval == 1_000_000


def test_the_largest_packets_and_longest_silences_have_a_wire_format() -> None:
    config = RoceConfig(mtu_bytes=65536, header_bytes=65536, ack_bytes=65536, packets_per_ack=16383)
    assert config.wire == WireFormat(mtu_bytes=65536, header_bytes=65536, ack_bytes=65536, packets_per_ack=16383)
    assert RoceConfig().wire == WireFormat()


def test_a_file_goes_on_top_of_another_and_sections_are_merged() -> None:
    base: dict[str, object] = {"mtu_bytes": 1024, "congestion": {"gain": 0.5, "min_rate": "1Gbps"}}
    changes = {"congestion": {"gain": 0.25}, "pfc": False}
    assert merge_documents(base, changes) == {
        "mtu_bytes": 1024,
        "congestion": {"gain": 0.25, "min_rate": "1Gbps"},
        "pfc": False,
    }
    assert base["congestion"] == {"gain": 0.5, "min_rate": "1Gbps"}


def test_written_settings_are_read_back() -> None:
    config = parse_roce_config(
        {
            "ecn_by_rate": {"400Gbps": ROW},
            "retransmission_timeout": "2.5us",
            "congestion": {"gain": 1, "min_rate": "1Gbps"},
        },
        "settings",
    )
    assert parse_roce_config(config.model_dump(mode="json"), "settings") == config


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"mtu": 9000}, "S mtu: unknown field, expected one of mtu_bytes, "),
        ({"mtu": 9000}, "nearest: mtu_bytes"),
        ({"mtu_bytes": 9000, "ecn_thresholds": {"kmin": 1}}, "S ecn_thresholds.kmin: unknown field"),
        ({"mtu_bytes": 1}, "S mtu_bytes: found 1, expected: input should be greater than or equal to 256"),
        ({"header_bytes": 65537}, "S header_bytes: found 65537, expected: input should be less than or equal to 65536"),
        ({"ack_bytes": 2**31}, "S ack_bytes: found 2147483648, expected: input should be less than or equal to 65536"),
        ({"packets_per_ack": 16384}, "S packets_per_ack: found 16384, expected: input should be less than or equal"),
        ({"nack_interval": 5}, "S nack_interval: found 5, expected a time with a unit"),
        ({"window": "big"}, "S window: found 'big', expected: input should be 'unbounded', 'fixed' or 'variable'"),
        ({"ecn_by_rate": {"400": ROW}}, "S ecn_by_rate.400: found '400', expected a rate with a unit"),
        (
            {"ecn_thresholds": {**ROW, "kmin_bytes": 2001}},
            "S ecn_thresholds: expected kmin_bytes: found 2001, expected at most",
        ),
        (
            {"ecn_thresholds": ROW, "ecn_by_rate": {"400Gbps": ROW}},
            "S expected ecn_thresholds or ecn_by_rate, not both",
        ),
        ({"load_balancing": "adaptive", "recovery": "go_back_n"}, "S expected recovery selective_repeat"),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_field(document: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_roce_config(document, "S")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["mtu_bytes", "=3", "congestion.=1", "mtu_bytes=[1"])
def test_a_malformed_setting_is_refused(setting: str) -> None:
    with pytest.raises(InputError, match="--set"):
        apply_settings({}, [setting])


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.yaml: found no such file"):
        read_roce_document(tmp_path / "nowhere.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(InputError, match=r"list.yaml: found .1, 2., expected settings of the RoCE model: a mapping"):
        read_roce_document(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(InputError, match=r"broken.yaml line 2: not YAML"):
        read_roce_document(tmp_path / "broken.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_roce_document(tmp_path / "empty.yaml") == {}


def test_constants_are_given_with_units_or_by_their_full_names() -> None:
    """A step of 5 Mbit/s per 25 Gbit/s is 80 Mbit/s on a line of 400 Gbit/s."""
    named = congestion_parameters(
        "dcqcn",
        "simai",
        {"increase_interval": "300us", "min_rate": "1Gbps", "additive_increase": "5Mbps per 25Gbps", "gain": 0.5},
    )
    plain = congestion_parameters("dcqcn", "simai", {"increase_interval_ps": 300_000_000, "min_rate_bps": 10**9})
    steps = congestion_parameters("dcqcn", "hpcc", {"hyper_increase_bps": 40_000_000})
    assert steps.hyper_increase.at(10**9) == steps.hyper_increase.at(400 * 10**9) == 40_000_000
    for constants in (named, plain):
        assert (constants.increase_interval_ps, constants.min_rate_bps) == (300_000_000, 10**9)
        assert constants.hyper_increase.at(400 * 10**9) == 100_000_000
    assert (named.gain, named.additive_increase.at(400 * 10**9)) == (0.5, 80_000_000)
    assert plain.gain == 1 / 256


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        ("dcqcn", {"gian": 1}, "congestion.gian: unknown constant of dcqcn, expected one of .*; nearest: gain"),
        ("none", {"gain": 1}, "congestion.gain: unknown constant of none, expected no constants"),
        ("dcqcn", {"gain": "half"}, "congestion.gain: found 'half', expected a number"),
        ("dcqcn", {"gain": 2.0}, "congestion: .*gain of DCQCN must be at least"),
        ("dcqcn", {"clamps_target": 1}, "congestion.clamps_target: found 1, expected true or false"),
        ("dcqcn", {"fast_recovery_steps": -1}, "congestion.fast_recovery_steps: found -1, expected a whole number"),
        ("dcqcn", {"fast_recovery_steps": 2**40}, "congestion: .*'fast_recovery_steps' cannot be"),
        ("dcqcn", {"additive_increase": 0.5}, "congestion.additive_increase: found 0.5, expected a rate as 50Mbps"),
        (
            "dcqcn",
            {"additive_increase": "5 per 25Gbps"},
            "congestion.additive_increase: found '5 per 25Gbps', expected",
        ),
        ("dcqcn", {"increase_interval": 300}, "congestion.increase_interval: found 300, expected a time with a unit"),
        ("hpcc", {"min_rate": "fast"}, "congestion.min_rate: found 'fast', expected a positive rate"),
    ],
)
def test_a_wrong_constant_is_named(scheme: str, changes: dict[str, float | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        congestion_parameters(scheme, None, changes)
    with pytest.raises(InputError, match=r"congestion_preset: .*'slow' of dcqcn does not exist"):
        congestion_parameters("dcqcn", "slow", {})


def test_ecn_rows_hold_for_the_rate_of_a_link_and_all_rates_that_leave_switches_need_one() -> None:
    """The NVLinks of an NVSwitch never mark, and need no row."""
    topology = rail_optimized(2, 2)
    config = parse_roce_config({"ecn_by_rate": {"400Gbps": ROW, "100Gbps": {**ROW, "pmax": 1}}}, "S")
    kmin, _, pmax = ecn_thresholds(config, topology)
    is_nic = topology.capacity_bps == 400 * 10**9
    assert set(kmin[is_nic]) == {1000}
    assert set(pmax[is_nic]) == {0.5}
    core_parameters(config, topology)
    missing = parse_roce_config({"ecn_by_rate": {"100Gbps": ROW}}, "S")
    with pytest.raises(InputError, match=r"ecn_by_rate: found rows for 100Gbps, expected also one for 400Gbps links"):
        core_parameters(missing, single_switch(2))
