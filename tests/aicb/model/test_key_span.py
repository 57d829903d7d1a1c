"""Keys that a query sees: windows and chunks, against counting them one by one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb.kernels.prefill_attention import PrefillAttention
from aicb.model.key_span import KeySpan

SPANS = st.builds(KeySpan, st.sampled_from(["sliding", "chunked"]), st.integers(1, 40))


def sees(span: KeySpan, query: int, key: int) -> bool:
    """Whether the token at position ``query`` sees that at position ``key``."""
    if span.kind == "sliding":
        return query - span.tokens < key <= query
    return key <= query and key // span.tokens == query // span.tokens


@given(span=SPANS, kv=st.integers(1, 200))
def test_a_decode_sees_what_the_mask_shows(span: KeySpan, kv: int) -> None:
    shown = sum(sees(span, kv - 1, key) for key in range(kv))
    assert span.seen(np.array([kv])).tolist() == [shown]
    assert span.seen_by_last(kv) == shown


@given(span=SPANS, past=st.integers(0, 100), new=st.integers(1, 150))
def test_a_chunk_of_a_prompt_computes_the_pairs_of_the_mask(span: KeySpan, past: int, new: int) -> None:
    pairs = sum(sees(span, query, key) for query in range(past, past + new) for key in range(past + new))
    news, kvs = span.kernel_requests(np.array([new]), np.array([past + new]))
    assert PrefillAttention(news, kvs, 1, 1, 64, 64, span=span).pairs.sum() == pairs
    assert news.sum() == new
    assert (news <= kvs).all()
    assert (news >= 1).all()


@given(span=SPANS, past=st.integers(0, 60), new=st.integers(1, 60), tokens=st.integers(0, 10))
def test_requests_of_a_batch_are_cut_one_by_one(span: KeySpan, past: int, new: int, tokens: int) -> None:
    pairs = [(new, past + new), (tokens + 1, tokens + 1)]
    parts = [span.kernel_requests(np.array([q]), np.array([s])) for q, s in pairs]
    both = span.kernel_requests(np.array([q for q, _ in pairs]), np.array([s for _, s in pairs]))
    for column in (0, 1):
        assert both[column].tolist() == [*parts[0][column], *parts[1][column]]


@pytest.mark.parametrize(
    ("kind", "tokens", "new", "kv", "expected"),
    [
        ("chunked", 8192, 1000, 5000, ([1000], [5000])),
        ("chunked", 8192, 10_000, 20_000, ([6384, 3616], [8192, 3616])),
        ("sliding", 128, 100, 100, ([100], [100])),
        ("sliding", 128, 3, 5000, ([3], [5000])),
    ],
)
def test_requests_that_a_kernel_gets(
    kind: Literal["sliding", "chunked"], tokens: int, new: int, kv: int, expected: tuple[list[int], list[int]]
) -> None:
    """Chunks end at multiples of 8192: tokens 10,000 to 16,383, 16,384 to 19,999. A window leaves requests whole."""
    new_tokens, kv_tokens = KeySpan(kind, tokens).kernel_requests(np.array([new]), np.array([kv]))
    assert (new_tokens.tolist(), kv_tokens.tolist()) == expected


@given(span=SPANS, block=st.integers(1, 20), kv=st.integers(1, 300))
def test_no_request_needs_more_blocks_than_its_span_lies_in(span: KeySpan, block: int, kv: int) -> None:
    seen = span.seen_by_last(kv)
    blocks = (kv - 1) // block - (kv - seen) // block + 1
    assert blocks <= span.most_blocks(block)
