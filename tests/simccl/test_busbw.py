from pathlib import Path

import numpy as np
import pytest

from simccl import Collective, InputError
from simccl.formats.busbw import Group, read_busbw
from simccl.formats.pricing import Pricing, Request
from tests.samples import BUSBW


def written(folder: Path, text: str = BUSBW) -> Path:
    file = folder / "busbw.yaml"
    file.write_text(text)
    return file


def times(folder: Path, group: Group, op: Collective, size: int, ranks: int) -> float:
    return float(read_busbw(written(folder)).times_us(group, op, np.array([size]), np.array([ranks]))[0])


def test_times_follow_from_bus_bandwidths(tmp_path: Path) -> None:
    """8 ranks, 300 MB at 300 GB/s: 2 · 7/8 ms; 80 MB all_to_all at 80 GB/s between 4: 3/4 ms; 47.5 kB sent: 1 µs."""
    assert times(tmp_path, Group.TP, Collective.ALL_REDUCE, 300_000_000, 8) == pytest.approx(1750)
    assert times(tmp_path, Group.EP, Collective.ALL_TO_ALL, 80_000_000, 4) == pytest.approx(750)
    assert times(tmp_path, Group.PP, Collective.SEND_RECV, 47_500, 2) == pytest.approx(1)
    assert times(tmp_path, Group.DP_EP, Collective.ALL_GATHER, 380_000, 2) == pytest.approx(0.5)


def test_sizes_above_16_gib_and_any_rank_count_have_a_time(tmp_path: Path) -> None:
    assert times(tmp_path, Group.TP, Collective.ALL_REDUCE, 1 << 40, 7) == pytest.approx(2 * 6 / 7 * 2**40 / 300e3)


def test_null_is_no_bandwidth(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none for all_reduce in DP of 'test'"):
        times(tmp_path, Group.DP, Collective.ALL_REDUCE, 1, 2)


def test_rows_priced_by_bus_bandwidth_are_named_in_errors(tmp_path: Path) -> None:
    pricing = Pricing(busbw=read_busbw(written(tmp_path)))
    good = Request(op="all_reduce", size_bytes=300_000_000, ranks=8, nodes=1, gpu="h100")
    table = pricing.times([good])
    assert (table.time_us.tolist(), table.algorithm.tolist()) == ([pytest.approx(1750)], ["busbw"])
    bad = Request(op="broadcast", size_bytes=1, ranks=8, nodes=1, gpu="h100")
    with pytest.raises(InputError, match="row 1: busbw: found none for broadcast"):
        pricing.times([good, bad])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no bandwidth"),
        ("test\nXP:\n", "line 2: found section 'XP'"),
        ("test\nTP:\n  allreduce,: fast\n", "line 3: found 'fast', expected GB/s"),
        ("test\nTP:\n  allreduce,: -1\n", "line 3: found '-1'"),
        ("test\n  allreduce,: 300\n", "line 2: found 'allreduce,: 300'"),
        ("test\nTP:\n  gossip,: 300\n", "line 3: found 'gossip,: 300'"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"busbw\.yaml.*{message}"):
        read_busbw(written(tmp_path, text))
