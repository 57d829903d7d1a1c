"""Content keys of KV blocks: equal exactly when all tokens up to the block's end are equal."""

from __future__ import annotations

from collections.abc import Iterator

from vidur_pd.errors import InputError
from vidur_pd.request import Request

_BLOCKS_PER_REQUEST_BITS = 32
_ROOT = 0


class BlockKeys:
    """Turns the content ids of a trace (one per ``hash_block_tokens`` prompt tokens) into keys of KV blocks.

    Ids are chained: the same id after another prefix is other content. A KV block that ends at token e inside trace
    block j is identified by (chain of ids 0…j, offset of e in block j), so any two block lengths go together. A partial
    last trace block yields keys up to its last full KV block. Blocks that contain a generated token, and prompts
    without ids, are unique to their request.
    """

    def __init__(self, block_tokens: int, hash_block_tokens: int) -> None:
        if hash_block_tokens < 1:
            raise InputError(f"hash_block_tokens: found {hash_block_tokens}, expected at least 1")
        self._block_tokens = block_tokens
        self._hash_block_tokens = hash_block_tokens
        self._chains: dict[tuple[int, int], int] = {}  # (chain of the preceding ids, id) -> chain

    def of(self, request: Request, start: int, end: int) -> Iterator[int]:
        """Keys of the request's full KV blocks ``start`` … ``end`` − 1, lazily."""
        hash_tokens = self._hash_block_tokens
        hashes = request.block_hashes or ()
        identified_tokens = min(request.prompt_tokens, len(hashes) * hash_tokens)
        shareable = min(end, identified_tokens // self._block_tokens)
        chain, chained = _ROOT, 0
        for block in range(start, shareable):
            block_end = (block + 1) * self._block_tokens
            needed = -(-block_end // hash_tokens)
            while chained < needed:
                link = (chain, hashes[chained])
                chain = self._chains.setdefault(link, len(self._chains) + 1)
                chained += 1
            yield chain * hash_tokens + block_end - (needed - 1) * hash_tokens - 1
        unique = (request.index + 1) << _BLOCKS_PER_REQUEST_BITS
        for block in range(max(start, shareable), end):
            yield -(unique + block)
