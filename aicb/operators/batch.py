"""Batches of one rank, and of all ranks of an instance, in one iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The requests of one data-parallel rank in one iteration; the phase is per request, never per batch.

    A request with ``new_tokens == 1`` and a non-empty past is a decode; everything else is (a chunk of) prefill.
    """

    new_tokens: NDArray[np.int64]
    """[requests] tokens computed now (q_i ≥ 1)."""
    kv_tokens: NDArray[np.int64]
    """[requests] KV length attention sees: past + new (S_i ≥ q_i)."""
    logit_rows: int
    """Rows for which logits are computed: requests that produce a token."""

    @property
    def tokens(self) -> int:
        """Tokens computed in the iteration: T = Σ q_i."""
        return int(self.new_tokens.sum())

    @property
    def is_decode(self) -> NDArray[np.bool_]:
        """[requests] whether each decodes."""
        decodes: NDArray[np.bool_] = (self.new_tokens == 1) & (self.kv_tokens > 1)
        return decodes

    def tokens_with(self, queries: int) -> int:
        """Tokens where each decode computes so many."""
        return self.tokens + (queries - 1) * int(self.is_decode.sum())

    def rows_with(self, queries: int) -> int:
        """`logit_rows` where each decode computes so many tokens, and logits of all."""
        return self.logit_rows + (queries - 1) * int(self.is_decode.sum())

    @classmethod
    def decode(cls, kv_tokens: NDArray[np.int64] | list[int]) -> Batch:
        """Batch of decodes: one new token for each request; ``kv_tokens`` includes it.

        Raises:
            InputError: a request without a past, which would be a prefill.
        """
        kv = np.asarray(kv_tokens, dtype=np.int64)
        if len(kv) and kv.min() < 2:
            raise InputError(f"Batch.kv_tokens: found {kv.min()}, expected at least 2 for a decode")
        return cls(np.ones_like(kv), kv, len(kv))

    @classmethod
    def prefill(cls, new_tokens: list[int], past_tokens: list[int] | None = None) -> Batch:
        """Batch of whole prompts (or their last chunks, after ``past_tokens``); each yields one token.

        Raises:
            InputError: a prompt without new tokens, a negative past, unequal lengths.
        """
        new = np.asarray(new_tokens, dtype=np.int64)
        past = np.zeros_like(new) if past_tokens is None else np.asarray(past_tokens, dtype=np.int64)
        if len(past) != len(new):
            raise InputError(f"Batch.past_tokens: found {len(past)} entries, expected {len(new)} (as new_tokens)")
        if len(new) and new.min() < 1:
            raise InputError(f"Batch.new_tokens: found {new.min()}, expected at least 1")
        if len(past) and past.min() < 0:
            raise InputError(f"Batch.past_tokens: found {past.min()}, expected at least 0")
        return cls(new, new + past, len(new))

    @classmethod
    def empty(cls) -> Batch:
        """Batch of an idle rank of a lockstep group."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)


def one_by_one(batch: Batch, queries: NDArray[np.int64]) -> Batch:
    """The batch with each decode as so many decodes as it has ``queries`` [requests], whose KV lengths end one after
    another; prefills as they are. KV is read once for each."""
    is_decode = batch.is_decode
    copies = np.where(is_decode, queries, 1)
    position = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    least = np.repeat(np.where(is_decode, 2, batch.new_tokens), copies)
    kv_tokens = np.maximum(np.repeat(batch.kv_tokens, copies) - position, least)
    rows = batch.logit_rows + int((copies - 1).sum())
    return Batch(np.repeat(batch.new_tokens, copies), kv_tokens, rows)


def are_divided(batches: Sequence[Batch]) -> bool:
    """Whether some ranks have prompts and others decodes alone; ``batches``: one per rank."""
    decode_alone = [bool(batch.is_decode.all()) for batch in batches if len(batch.new_tokens)]
    return any(decode_alone) and not all(decode_alone)


@dataclass(frozen=True, slots=True, eq=False)
class RankBatches:
    """The batches of the data-parallel ranks of one instance, one rank after another."""

    new_tokens: NDArray[np.int64]
    """[requests of all ranks]"""
    kv_tokens: NDArray[np.int64]
    """[requests of all ranks]"""
    requests: list[int]
    """[ranks] number of requests; 0: the rank idles."""
    logit_rows: list[int]
    """[ranks]"""

    @property
    def is_decode(self) -> bool:
        """Whether no rank has a prefill."""
        return bool(((self.new_tokens == 1) & (self.kv_tokens > 1)).all())

    def rows_with(self, queries: int) -> int:
        """`Batch.rows_with` of the rank with the most."""
        if queries == 1:
            return max(self.logit_rows, default=0)
        return max((batch.rows_with(queries) for batch in self.split()), default=0)

    @classmethod
    def decode(cls, kv_tokens: NDArray[np.int64], requests: list[int]) -> RankBatches:
        """Batches of decodes: one new token for each request; ``kv_tokens`` [requests of all ranks] includes it."""
        return cls(np.ones_like(kv_tokens), kv_tokens, requests, requests)

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> RankBatches:
        """The given batches, one per rank."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(
            np.concatenate([nothing, *(batch.new_tokens for batch in batches)]),
            np.concatenate([nothing, *(batch.kv_tokens for batch in batches)]),
            [len(batch.new_tokens) for batch in batches],
            [batch.logit_rows for batch in batches],
        )

    def split(self) -> list[Batch]:
        """[ranks] batch of each rank."""
        ends = np.cumsum(self.requests)[:-1]
        columns = (np.split(self.new_tokens, ends), np.split(self.kv_tokens, ends), self.logit_rows)
        return [Batch(new, kv, rows) for new, kv, rows in zip(*columns, strict=True)]
