"""SimAI's and HPCC's configuration file (SimAI.conf) as settings of the RoCE model.

Lines are ``KEY value…``; text after # is a comment. Keys and their meaning: ``common.h`` of SimAI 1.7
(github.com/aliyun/SimAI) and ``third.cc`` of the HPCC simulator. What the file leaves out has the default of
`RoceConfig`, constants of congestion control those of SimAI.conf. As there, times of congestion control are
microseconds, rates have a unit, and the maps of ECN thresholds count in 1000 bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from boundary.errors import InputError
from boundary.numbers import real_number
from boundary.text_files import read_text
from netsim.units import MOST_RATE_BPS, format_rate_bps, format_time_ps, read_rate_bps, read_time_ps

_BYTES_PER_KB: Final = 1000
_MOST: Final = 1e15
"""Of any number in the file: rates in bit/s are the largest."""
_MOST_BUFFER_MIB: Final = 2**20
"""1 TiB."""
_SCHEMES: Final = {1: "dcqcn", 3: "hpcc", 7: "timely", 8: "dctcp"}

_CONSTANTS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "ALPHA_RESUME_INTERVAL": ("us", {"dcqcn": "alpha_interval"}),
    "RATE_DECREASE_INTERVAL": ("us", {"dcqcn": "decrease_interval"}),
    "RP_TIMER": ("us", {"dcqcn": "increase_interval"}),
    "EWMA_GAIN": ("number", {"dcqcn": "gain", "dctcp": "gain"}),
    "FAST_RECOVERY_TIMES": ("count", {"dcqcn": "fast_recovery_steps"}),
    "CLAMP_TARGET_RATE": ("flag", {"dcqcn": "clamps_target"}),
    "RATE_AI": ("rate", dict.fromkeys(("dcqcn", "hpcc", "timely"), "additive_increase")),
    "RATE_HAI": ("rate", dict.fromkeys(("dcqcn", "timely"), "hyper_increase")),
    "MIN_RATE": ("rate", dict.fromkeys(_SCHEMES.values(), "min_rate")),
    "DCTCP_RATE_AI": ("rate", {"dctcp": "additive_increase"}),
    "U_TARGET": ("number", {"hpcc": "target_utilization"}),
    "MI_THRESH": ("count", {"hpcc": "max_additive_steps"}),
    "FAST_REACT": ("flag", {"hpcc": "reacts_within_rtt"}),
}
"""Kind of value, and the constant of each scheme that has it."""

_ONLY: Final = {
    "L2_BACK_TO_ZERO": ("0", "retransmission goes back to the lost packet"),
    "ERROR_RATE_PER_LINK": ("0", "losses are not modelled"),
    "RATE_BOUND": ("1", "rates are always obeyed"),
    "MULTI_RATE": ("0", "HPCC reacts to the fullest hop"),
    "SAMPLE_FEEDBACK": ("0", "every acknowledgement reports"),
    "USE_DYNAMIC_PFC_THRESHOLD": ("1", "thresholds follow the free memory"),
    "LINK_DOWN": ("0 0 0", "links fail through the Python interface"),
}
"""Keys with the one value that is modelled here, and why."""

_IGNORED: Final = frozenset(
    {
        "FLOW_FILE", "TOPOLOGY_FILE", "TRACE_FILE", "TRACE_OUTPUT_FILE", "FCT_OUTPUT_FILE", "PFC_OUTPUT_FILE",
        "SIMULATOR_STOP_TIME", "ENABLE_TRACE", "PAUSE_TIME", "DATA_RATE", "LINK_DELAY", "NIC_TOTAL_PAUSE_TIME",
        "L2_CHUNK_SIZE", "L2_ACK_INTERVAL", "GLOBAL_T", "INT_MULTI", "PINT_LOG_BASE", "PINT_PROB", "QLEN_MON_FILE",
        "BW_MON_FILE", "RATE_MON_FILE", "CNP_MON_FILE", "MON_START", "MON_END", "QP_MON_INTERVAL",
        "QLEN_MON_INTERVAL", "BW_MON_INTERVAL", "QLEN_MON_START", "QLEN_MON_END",
    }
)  # fmt: skip
"""Keys about files, traces and monitors (here: options of ``netsim run``), or without effect in the originals too."""

_READ_HERE: Final = (
    "ENABLE_QCN", "PACKET_PAYLOAD_SIZE", "CC_MODE", "HAS_WIN", "VAR_WIN", "ACK_HIGH_PRIO",
    "KMIN_MAP", "KMAX_MAP", "PMAX_MAP", "BUFFER_SIZE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimaiConfig:
    """What a configuration file says."""

    settings: dict[str, object]
    """Fields of `RoceConfig` that it sets."""
    ignored: tuple[str, ...]
    """Its keys that have no meaning here."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The text behind a key."""

    text: str
    where: str

    def refused(self, expected: str) -> InputError:
        return InputError(f"{self.where}: found {self.text!r}, expected {expected}")

    def number(self) -> float:
        return real_number(self.text, self.where, "a number", 0, _MOST)

    def numbers(self) -> list[float]:
        return [_Entry(field, self.where).number() for field in self.text.split()]

    def count(self, least: int = 0, most: int = 2**31 - 1) -> int:
        value = self.number()
        if not value.is_integer() or not least <= value <= most:
            raise self.refused(f"a whole number, {least} to {most}")
        return int(value)

    def flag(self) -> bool:
        return bool(self.count(0, 1))

    def microseconds(self) -> str:
        try:
            return format_time_ps(read_time_ps(f"{self.text}us"))
        except InputError:
            raise self.refused("microseconds, whole in ps") from None

    def rate(self) -> str:
        return format_rate_bps(read_rate_bps(self.text, self.where))

    def by_rate(self) -> dict[str, float]:
        """``n (rate_bps value)…``, by rate as text with a unit."""
        fields = [_Entry(field, self.where) for field in self.text.split()]
        count = fields[0].count() if fields else 0
        if not count or len(fields) != 1 + 2 * count:
            raise self.refused("`n`, then n times `rate_bps value`")
        return {
            format_rate_bps(rate.count(1, MOST_RATE_BPS)): value.number()
            for rate, value in zip(fields[1::2], fields[2::2], strict=True)
        }


def read_simai_config(path: Path) -> SimaiConfig:
    """Reads the file.

    Raises:
        InputError: naming the file, the line, the key, what was found and what was expected; for an unknown key also
            the nearest known one.
    """
    entries = _entries(path)
    for key, (value, why) in _ONLY.items():
        if key in entries and entries[key].numbers() != [float(field) for field in value.split()]:
            raise entries[key].refused(f"{value} ({why})")
    scheme = _scheme(entries.get("CC_MODE"))
    settings: dict[str, object] = {
        "congestion_control": scheme,
        "congestion_preset": "simai",
        "congestion": _constants(entries, scheme),
        **_window(entries),
    }
    if (entry := entries.get("PACKET_PAYLOAD_SIZE")) is not None:
        settings["mtu_bytes"] = entry.count(256, 65536)
    if (entry := entries.get("BUFFER_SIZE")) is not None:
        settings["switch_buffer_bytes"] = entry.count(1, _MOST_BUFFER_MIB) * 2**20
    if (entry := entries.get("ACK_HIGH_PRIO")) is not None:
        settings["acks_first"] = entry.flag()
    if (entry := entries.get("ENABLE_QCN")) is not None:
        settings["ecn"] = entry.flag()
    if rows := _ecn_rows([entries.get(key) for key in ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP")], path):
        settings["ecn_by_rate"] = rows
    return SimaiConfig(settings, tuple(key for key in entries if key in _IGNORED))


def _scheme(entry: _Entry | None) -> str:
    if entry is None:
        return "dcqcn"
    if (mode := entry.count()) not in _SCHEMES:
        raise entry.refused(", ".join(f"{mode} ({name})" for mode, name in _SCHEMES.items()))
    return _SCHEMES[mode]


def _constants(entries: Mapping[str, _Entry], scheme: str) -> dict[str, float | int | bool | str]:
    """Those of the scheme; the values of others are read too, since a wrong one is wrong."""
    constants: dict[str, float | int | bool | str] = {}
    for key, (kind, names) in _CONSTANTS.items():
        if (entry := entries.get(key)) is None:
            continue
        value: float | int | bool | str
        match kind:
            case "us":
                value = entry.microseconds()
            case "rate":
                value = entry.rate()
            case "count":
                value = entry.count()
            case "flag":
                value = entry.flag()
            case _:
                value = entry.number()
        if scheme in names:
            constants[names[scheme]] = value
    return constants


def _window(entries: Mapping[str, _Entry]) -> dict[str, object]:
    """A window at all, and one that shrinks with the rate."""
    has_window, is_variable = entries.get("HAS_WIN"), entries.get("VAR_WIN")
    if has_window is None and is_variable is None:
        return {}
    if has_window is not None and not has_window.flag():
        return {"window": "unbounded"}
    return {"window": "variable" if is_variable is not None and is_variable.flag() else "fixed"}


def _ecn_rows(maps: Sequence[_Entry | None], path: Path) -> dict[str, dict[str, float]]:
    """Thresholds of each rate, which all three maps have."""
    given = [entry for entry in maps if entry is not None]
    if not given:
        return {}
    if len(given) < len(maps):
        raise InputError(f"{path} KMIN_MAP, KMAX_MAP, PMAX_MAP: found {len(given)} of them, expected all or none")
    kmin, kmax, pmax = (entry.by_rate() for entry in given)
    if not kmin.keys() == kmax.keys() == pmax.keys():
        raise given[0].refused("the same rates as in the other two maps")
    for rate in kmin:
        if kmin[rate] > kmax[rate]:
            raise given[0].refused(f"at most {kmax[rate]:g} at {rate}, as KMAX_MAP says")
        if pmax[rate] > 1:
            raise given[2].refused(f"at most 1 at {rate}")
    return {
        rate: {
            "kmin_bytes": round(kmin[rate] * _BYTES_PER_KB),
            "kmax_bytes": round(kmax[rate] * _BYTES_PER_KB),
            "pmax": pmax[rate],
        }
        for rate in kmin
    }


def _entries(path: Path) -> dict[str, _Entry]:
    text = read_text(path, "SimAI's configuration")
    known = (*_READ_HERE, *_CONSTANTS, *_ONLY, *sorted(_IGNORED))
    entries: dict[str, _Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, *rest = line.partition("#")[0].split() or [""]
        if not key:
            continue
        where = f"{path} line {number} {key}"
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0)[0]
            raise InputError(f"{where}: unknown key, expected one of SimAI's and HPCC's; nearest: {nearest}")
        if key in entries:
            raise InputError(f"{where}: found the key again, expected it once")
        if not rest and key not in _IGNORED:
            raise InputError(f"{where}: found no value, expected one")
        entries[key] = _Entry(" ".join(rest), where)
    return entries
