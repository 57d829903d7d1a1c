"""Batches: phases per request, and bad lengths refused."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Batch, InputError


def test_the_phase_belongs_to_the_request() -> None:
    """One new token after a past decodes; a chunk, a one-token prompt and a whole prompt prefill."""
    batch = Batch(np.array([1, 1, 64, 100]), np.array([50, 1, 128, 100]), logit_rows=3)
    assert batch.is_decode.tolist() == [True, False, False, False]
    assert batch.tokens == 166


def test_constructors_count_tokens_and_logit_rows() -> None:
    decode, prefill, empty = Batch.decode([10, 20]), Batch.prefill([5, 6], [0, 100]), Batch.empty()
    assert (decode.tokens, decode.logit_rows, decode.is_decode.all()) == (2, 2, True)
    assert (prefill.tokens, prefill.logit_rows, prefill.kv_tokens.tolist()) == (11, 2, [5, 106])
    assert (empty.tokens, empty.logit_rows) == (0, 0)


def test_lengths_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"Batch.kv_tokens: found 1, expected at least 2 for a decode"):
        Batch.decode([8, 1])
    with pytest.raises(InputError, match=r"Batch.new_tokens: found 0, expected at least 1"):
        Batch.prefill([0])
    with pytest.raises(InputError, match=r"Batch.past_tokens: found -1, expected at least 0"):
        Batch.prefill([5], [-1])
    with pytest.raises(InputError, match=r"Batch.past_tokens: found 1 entries, expected 2"):
        Batch.prefill([5, 6], [0])
