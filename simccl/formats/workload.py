"""SimAI workload files: the collectives of an iteration of training or of serving, layer by layer.

Line 1 has ``key: value`` pairs (``model_parallel_NPU_group:`` is TP, then ``ep: pp: vpp: ga: all_gpus:``), line 2 the
number of layers, then one layer per line: name, dependency, and for forward, input gradient and weight gradient the
compute time in ns, the collective and its bytes; last the update time. A collective without suffix runs in the TP
group, in the weight-gradient column in the DP group; ``_EP`` and ``_DP_EP`` name the group.

TP is consecutive ranks, DP every (ranks / DP)-th rank. What ``ep:`` counts depends on the kind of file:

- training (no ``mode:``, as Megatron counts): TP groups that share experts. EP is the same place in E consecutive TP
  groups, DP_EP the TP groups that are E apart; EP · DP_EP = DP.
- serving (``mode: 1``, AICB's inference generator and `aicb export`): GPUs that share experts, those of a TP group
  included, as engines count. EP is E consecutive ranks of a stage, DP_EP those that are max(E, TP) apart; E divides
  TP · DP.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from boundary.errors import InputError
from boundary.numbers import MOST_INT64, whole_number
from boundary.quoting import quoted
from boundary.text_files import read_text
from simccl.collective import MAX_BYTES, MAX_RANKS, Collective
from simccl.formats.busbw import Group

_OPS = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLTOALL": Collective.ALL_TO_ALL,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
}
_PASSES = ("forward", "input_gradient", "weight_gradient")
_FIELDS = 12


@dataclass(frozen=True, slots=True)
class WorkloadCollective:
    """One collective of one layer."""

    layer: str
    during: str
    """forward, input_gradient or weight_gradient"""
    op: Collective
    group: Group
    size_bytes: int
    """As the file gives it: total bytes, as in nccl-tests."""
    compute_ns: int
    """Compute time of the layer in this pass."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The collectives of a file, in its order, and how ranks are grouped."""

    tp: int
    ep: int
    pp: int
    all_gpus: int
    is_serving: bool
    """Whether ``ep`` counts GPUs, and not TP groups."""
    collectives: tuple[WorkloadCollective, ...]

    @property
    def dp(self) -> int:
        return self.all_gpus // (self.tp * self.pp)

    def members(self, group: Group) -> tuple[int, ...]:
        """The ranks of the group that rank 0 is in."""
        between_experts = 1 if self.is_serving else self.tp
        match group:
            case Group.TP:
                count, stride = self.tp, 1
            case Group.EP:
                count, stride = self.ep, between_experts
            case Group.DP:
                count, stride = self.dp, self.all_gpus // self.dp
            case Group.DP_EP:
                stride = max(self.ep, self.tp) if self.is_serving else self.tp * self.ep
                count = self.tp * self.dp // stride
            case Group.PP:
                count, stride = self.pp, self.all_gpus // self.pp
        return tuple(k * stride for k in range(count))


def read_workload(source: Path) -> Workload:
    """Reads a workload file.

    Raises:
        InputError: naming the file, the line and the field.
    """
    lines = read_text(source, "a SimAI workload").splitlines()
    if len(lines) < 2:
        raise InputError(f"{source} line 2: found nothing, expected the number of layers")
    layers = whole_number(lines[1], f"{source} line 2", "the number of layers", 0, MOST_INT64)
    sizes = _group_sizes(source, lines[0])
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], 3) if line.strip()]
    if len(rows) != layers:
        raise InputError(f"{source}: found {len(rows)} layers, expected {layers} (line 2)")
    found = tuple(collective for number, fields in rows for collective in _layer(source, number, fields))
    return Workload(*sizes, found)


def _group_sizes(source: Path, header: str) -> tuple[int, int, int, int, bool]:
    """TP, EP, PP, all GPUs, and whether the file is one of serving."""
    words = header.split()
    values = dict(pairwise(words))
    names = ("model_parallel_NPU_group:", "ep:", "pp:", "all_gpus:")
    sizes = [_count(source, 1, name.rstrip(":"), values.get(name, ""), 1, MAX_RANKS) for name in names]
    tp, ep, pp, gpus = sizes
    mode = _count(source, 1, "mode", values.get("mode:", "0"), 0, 1)
    stage = gpus // pp
    if gpus % (tp * pp) or (stage if mode else stage // tp) % ep:
        raise InputError(
            f"{source} line 1: found TP {tp}, EP {ep}, PP {pp} on {gpus} GPUs, expected TP · PP to divide these, "
            + ("EP to divide TP · DP (mode 1: EP counts GPUs)" if mode else "EP to divide DP (EP counts TP groups)")
        )
    return tp, ep, pp, gpus, bool(mode)


def _layer(source: Path, number: int, fields: list[str]) -> list[WorkloadCollective]:
    if len(fields) != _FIELDS:
        raise InputError(f"{source} line {number}: found {len(fields)} fields, expected {_FIELDS}")
    found = []
    for k, during in enumerate(_PASSES):
        compute, name, size = fields[2 + 3 * k : 5 + 3 * k]
        compute_ns = _count(source, number, f"{during} ns", compute, 0, MAX_BYTES)
        if name == "NONE":
            continue
        op, group = _operation(source, number, name, Group.DP if during == "weight_gradient" else Group.TP)
        size_bytes = _count(source, number, f"{during} bytes", size, 0, MAX_BYTES)
        found.append(WorkloadCollective(fields[0], during, op, group, size_bytes, compute_ns))
    return found


def _operation(source: Path, number: int, name: str, usual: Group) -> tuple[Collective, Group]:
    base, _, suffix = name.partition("_")
    groups = {"": usual, "EP": Group.EP, "DP_EP": Group.DP_EP}
    if base not in _OPS or suffix not in groups:
        raise InputError(
            f"{source} line {number}: found collective {quoted(name)}, expected NONE or one of {', '.join(_OPS)}, "
            "alone or with _EP or _DP_EP"
        )
    return _OPS[base], groups[suffix]


def _count(source: Path, number: int, field: str, text: str, least: int, most: int) -> int:
    return whole_number(text, f"{source} line {number}: {field}", "a whole number", least, most)
