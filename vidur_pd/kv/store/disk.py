"""The disks of a rank: one queue, first come, first served, at the rates of reads and writes."""

from __future__ import annotations

from netsim.units import PS_PER_S


class Disk:
    """Reads and writes follow each other; the latency of a read overlaps with others. Our choice: real devices serve
    several at a time at the same total rate."""

    def __init__(self, read_bps: int, written_bps: int, latency_ps: int) -> None:
        self._read_bps, self._written_bps, self._latency_ps = read_bps, written_bps, latency_ps
        self._free_ps = 0

    def read(self, size_bytes: int, now_ps: int) -> int:
        """When what is asked for now is in CPU memory."""
        return self._take(size_bytes, self._read_bps, now_ps) + self._latency_ps

    def write(self, size_bytes: int, now_ps: int) -> int:
        """When what is in CPU memory now is on the disks."""
        return self._take(size_bytes, self._written_bps, now_ps)

    def alone_ps(self, size_bytes: int) -> int:
        """What a read takes on disks that have nothing else to do."""
        return -(-size_bytes * 8 * PS_PER_S // self._read_bps) + self._latency_ps

    def _take(self, size_bytes: int, rate_bps: int, now_ps: int) -> int:
        self._free_ps = max(self._free_ps, now_ps) + -(-size_bytes * 8 * PS_PER_S // rate_bps)
        return self._free_ps
