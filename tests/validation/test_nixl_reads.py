"""Costs of NIXL's descriptors are those of its measured reads."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from vidur_pd.config.kv_transfer import ConnectorConfig

FILE = Path(__file__).resolve().parents[1] / "data" / "network" / "h200-nixl-reads.json"
CONNECTOR = ConnectorConfig.model_validate({"kind": "nixl", "posted_by": "decode"})
FEW = 64
"""Runs from which on costs are taken, with what a transfer itself takes (0.1 to 0.2 ms)."""


def reads(*, threads: int, is_direct: bool = True) -> list[tuple[int, int, float]]:
    """Bytes of a run, runs and µs of each transfer that was measured."""
    found = []
    for recording in json.loads(FILE.read_text())["recordings"]:
        if recording["threads"] == threads and (recording["transports"] == "all") == is_direct:
            for size_bytes, pieces, run, *parts_us in recording["rows"]:
                found.append((size_bytes * run, pieces // run, sum(parts_us)))
    return found


def each_us(rows: list[tuple[int, int, float]], least: int, most: int) -> list[float]:
    return [time_us / runs for _, runs, time_us in rows if least <= runs <= most]


def test_costs_are_medians_of_what_was_measured() -> None:
    way, rows = CONNECTOR.within_node, reads(threads=4)
    assert way.threads_from == 1024
    assert way.descriptor_us == pytest.approx(median(each_us(rows, FEW, way.threads_from - 1)), rel=0.01)
    assert way.thread_us == pytest.approx(median(each_us(rows, way.threads_from, way.threads_from)), rel=0.01)
    assert way.threads_us == pytest.approx(median(each_us(rows, 2 * way.threads_from, 10**6)), rel=0.01)


def test_a_descriptor_takes_as_long_whatever_its_size() -> None:
    """From 16 to 128 KiB in a transfer of many, alone or in runs: within a tenth of the median in four of five."""
    times_us = each_us(reads(threads=4), 2048, 10**6)
    near = [abs(time_us / CONNECTOR.within_node.threads_us - 1) <= 0.1 for time_us in times_us]
    assert sum(near) >= 0.8 * len(near)


def test_one_thread_takes_as_long_for_each_of_many() -> None:
    few, many = (median(each_us(reads(threads=0), *of)) for of in ((FEW, 1023), (1024, 10**6)))
    assert many == pytest.approx(few, rel=0.15)


def test_copies_through_hosts_take_their_rate() -> None:
    way = CONNECTOR.through_host
    assert way is not None
    assert way.gbytes_per_s is not None
    for size_bytes, runs, time_us in reads(threads=4, is_direct=False):
        if runs >= FEW:
            expected_us = way.descriptor_us + size_bytes / way.gbytes_per_s / 1e3
            assert time_us / runs == pytest.approx(expected_us, rel=0.16)
