"""SimAI.conf as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsim import InputError, single_switch
from netsim.formats.roce_file import parse_roce_config
from netsim.formats.simai_config import read_simai_config
from netsim.roce.config import core_parameters, ecn_thresholds
from netsim.roce.congestion import congestion_parameters
from tests.samples import SIMAI_CONF


def write(folder: Path, text: str) -> Path:
    path = folder / "SimAI.conf"
    path.write_text(text)
    return path


def test_a_file_like_simais_gives_its_published_set_and_lists_what_has_no_meaning_here(tmp_path: Path) -> None:
    simai = read_simai_config(write(tmp_path, SIMAI_CONF))
    config = parse_roce_config(simai.settings, "SimAI.conf")
    assert simai.ignored == ("TRACE_FILE", "FCT_OUTPUT_FILE", "L2_CHUNK_SIZE", "L2_ACK_INTERVAL", "GLOBAL_T")
    assert (config.mtu_bytes, config.switch_buffer_bytes, config.window) == (9000, 32 * 2**20, "variable")
    assert (config.acks_first, config.ecn) == (False, True)
    kmin, kmax, pmax = ecn_thresholds(config, single_switch(2))
    assert (kmin[0], kmax[0], pmax[0]) == (800_000, 3_200_000, 0.2)
    core_parameters(config, single_switch(2))
    own = congestion_parameters("dcqcn", "simai", config.congestion)
    published = congestion_parameters("dcqcn", "simai", {})
    for name in ("alpha_interval_ps", "decrease_interval_ps", "increase_interval_ps", "gain", "fast_recovery_steps"):
        assert getattr(own, name) == getattr(published, name)
    assert (own.min_rate_bps, own.clamps_target) == (published.min_rate_bps, published.clamps_target)
    for name in ("additive_increase", "hyper_increase"):
        assert getattr(own, name).at(400 * 10**9) == getattr(published, name).at(400 * 10**9)


@pytest.mark.parametrize(
    ("mode", "scheme", "constants"),
    [
        (1, "dcqcn", {"additive_increase": "7Mbps", "hyper_increase": "8Mbps", "gain": 0.5}),
        (3, "hpcc", {"additive_increase": "7Mbps", "target_utilization": 0.9}),
        (7, "timely", {"additive_increase": "7Mbps", "hyper_increase": "8Mbps"}),
        (8, "dctcp", {"additive_increase": "9Mbps", "gain": 0.5}),
    ],
)
def test_each_scheme_takes_the_keys_that_it_has(
    tmp_path: Path, mode: int, scheme: str, constants: dict[str, object]
) -> None:
    text = f"CC_MODE {mode}\nRATE_AI 7Mb/s\nRATE_HAI 8Mb/s\nDCTCP_RATE_AI 9Mb/s\nEWMA_GAIN 0.5\nU_TARGET 0.9\n"
    settings = read_simai_config(write(tmp_path, text)).settings
    assert settings == {"congestion_control": scheme, "congestion_preset": "simai", "congestion": constants}
    core_parameters(parse_roce_config(settings, "S"), single_switch(2))


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("HAS_WIN 0\nVAR_WIN 1", "unbounded"),
        ("HAS_WIN 1\nVAR_WIN 0", "fixed"),
        ("HAS_WIN 1", "fixed"),
        ("VAR_WIN 1", "variable"),
    ],
)
def test_windows_follow_both_keys(tmp_path: Path, text: str, window: str) -> None:
    assert read_simai_config(write(tmp_path, text)).settings["window"] == window


def test_thresholds_of_dctcp_may_be_equal(tmp_path: Path) -> None:
    """30 KB per 10 Gbit/s, all packets marked above (HPCC's DCTCP runs)."""
    maps = "KMIN_MAP 1 400000000000 1200\nKMAX_MAP 1 400000000000 1200\nPMAX_MAP 1 400000000000 1.0\n"
    settings = read_simai_config(write(tmp_path, f"CC_MODE 8\n{maps}")).settings
    kmin, kmax, _ = ecn_thresholds(parse_roce_config(settings, "S"), single_switch(2))
    assert kmin[0] == kmax[0] == 1_200_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CC_MODES 1", r"SimAI.conf line 1 CC_MODES: unknown key, .* nearest: CC_MODE"),
        ("\nCC_MODE 10", r"line 2 CC_MODE: found '10', expected 1 \(dcqcn\), 3 \(hpcc\), 7 \(timely\), 8 \(dctcp\)"),
        ("CC_MODE 1\nCC_MODE 1", "line 2 CC_MODE: found the key again, expected it once"),
        ("CC_MODE", "line 1 CC_MODE: found no value, expected one"),
        ("PACKET_PAYLOAD_SIZE 100000", "PACKET_PAYLOAD_SIZE: found '100000', expected a whole number, 256 to 65536"),
        ("BUFFER_SIZE 0", "BUFFER_SIZE: found '0', expected a whole number, 1 to"),
        ("RATE_AI 50", "RATE_AI: found '50', expected a rate with a unit"),
        ("RP_TIMER soon", "RP_TIMER: found 'soon', expected microseconds"),
        ("RP_TIMER -1", "RP_TIMER: found '-1', expected microseconds"),
        ("EWMA_GAIN nan", "EWMA_GAIN: found 'nan', expected a number"),
        ("FAST_REACT 2", "FAST_REACT: found '2', expected a whole number, 0 to 1"),
        ("ERROR_RATE_PER_LINK 0.01", "found '0.01', expected 0 .losses are not modelled"),
        ("LINK_DOWN 5 0 1", "found '5 0 1', expected 0 0 0"),
        ("L2_BACK_TO_ZERO 1", "found '1', expected 0 .retransmission"),
        ("KMIN_MAP 1 400000000000 800", "KMIN_MAP, KMAX_MAP, PMAX_MAP: found 1 of them, expected all or none"),
        ("KMIN_MAP 2 1000 5\nKMAX_MAP 1 1000 6\nPMAX_MAP 1 1000 1", "KMIN_MAP: found '2 1000 5', expected `n`, then"),
        ("KMIN_MAP 1 1000 5\nKMAX_MAP 1 2000 6\nPMAX_MAP 1 1000 1", "KMIN_MAP: .* the same rates as in the other two"),
        ("KMIN_MAP 1 1000 7\nKMAX_MAP 1 1000 6\nPMAX_MAP 1 1000 1", "KMIN_MAP: .* at most 6 at 1kbps"),
        ("KMIN_MAP 1 1000 5\nKMAX_MAP 1 1000 6\nPMAX_MAP 1 1000 2", "PMAX_MAP: .* at most 1 at 1kbps"),
    ],
)
def test_unknown_keys_and_impossible_values_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_simai_config(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.conf: found no such file"):
        read_simai_config(tmp_path / "none.conf")
