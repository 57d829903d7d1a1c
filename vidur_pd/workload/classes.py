"""Classes of requests: which one each belongs to, and what lengths that means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config.request_classes import RequestClasses
from vidur_pd.config.workload import SyntheticWorkload
from vidur_pd.workload.lengths import sample_lengths, sample_tokens
from vidur_pd.workload.pacing import NOBODY
from vidur_pd.workload.workload import Classes, Workload

Streams = Callable[[str], np.random.Generator]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LengthsByClass:
    """Prompt and output tokens that each request would have in each class."""

    prefill: Rows
    """[classes, requests]"""
    decode: Rows
    asked: Rows
    """Output tokens that were asked for; less come out where a request ends early."""

    def of(self, classes: Rows) -> tuple[Rows, Rows, Rows]:
        """[requests] each, for requests of these classes [requests]."""
        row = np.arange(len(classes))
        return self.prefill[classes, row], self.decode[classes, row], self.asked[classes, row]


def draw_lengths(config: SyntheticWorkload, rng: Streams) -> LengthsByClass:
    """One class where there are none. Lengths of a class's own come from streams of its own."""
    common = sample_lengths(config.lengths, config.requests, rng)
    drawn = [
        common if each.lengths is None else sample_lengths(each.lengths, config.requests, _streams_of(name, rng))
        for name, each in (config.classes or {}).items()
    ]
    prefill, decode = zip(*(drawn or [common]), strict=True)
    asked = np.stack(decode)
    if config.early_end is None:
        return LengthsByClass(np.stack(prefill), asked, asked)
    ends = rng("early_ends").random(config.requests) < config.early_end.share
    after = sample_tokens(config.early_end.after_tokens, config.requests, rng("early_end_tokens"))
    return LengthsByClass(np.stack(prefill), np.where(ends, np.minimum(asked, after), asked), asked)


def draw_classes(config: SyntheticWorkload, count: int, rng: Streams) -> Rows:
    """[count] positions of classes; all the first where there are none."""
    if config.classes is None:
        return np.zeros(count, dtype=np.int64)
    limits = np.cumsum([each.share for each in config.classes.values()])
    drawn = np.searchsorted(limits / limits[-1], rng("classes").random(count), side="right")
    return np.asarray(drawn, dtype=np.int64)


def classified(workload: Workload, classes: RequestClasses | None, of: Rows) -> Workload:
    """The workload with its classes, ``of`` [requests] positions in them, and their priorities."""
    if classes is None:
        return workload
    priorities = np.array([each.priority for each in classes.values()], dtype=np.int64)
    return replace(workload, classes=Classes(tuple(classes), of), priority=priorities[of])


def named_classes(names: list[str]) -> Classes | None:
    """Classes of rows that say theirs, in the order of their first row; an empty name is none."""
    known = {name: place for place, name in enumerate(dict.fromkeys(name for name in names if name))}
    if not known:
        return None
    return Classes(tuple(known), np.array([known.get(name, NOBODY) for name in names], dtype=np.int64))


def _streams_of(name: str, rng: Streams) -> Streams:
    return lambda consumer: rng(f"classes.{name}.{consumer}")
