"""SGLang's scheduler round by round, around its own PrefillAdder, SchedulePolicy, RadixCache and ratio tracker.

What stands here is the round itself (``Scheduler.get_next_batch_to_run``, without overlap), the choice of requests to
retract, and the bookkeeping of pages; order, admission, tree, eviction and ratio are SGLang's classes. Pages are
evicted for what is allocated, without the page per request that SGLang frees more where pages have several tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.validation.sglang_source import Settings, Source, Tensor, settings


@dataclass(frozen=True)
class Sizes:
    """Of the engine."""

    pages: int
    page: int
    chunk: int
    max_seqs: int
    max_prefill_tokens: int
    mixed_chunk: bool


class Allocator:
    """Pages by number; KV index = page · size + offset."""

    def __init__(self, source: Source, sizes: Sizes) -> None:
        self._source, self.page_size, self.device = source, sizes.page, None
        self._free = list(range(sizes.pages))

    def available_size(self) -> int:
        return len(self._free) * self.page_size

    def create_prefill_budget(self, tree: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        return self._source.PrefillBudget(self, tree, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def request_slot_reserve(self, **_: Any) -> int:
        return 0

    def free_segment(self, indices: Tensor, start_pos: int) -> None:
        del start_pos
        self._free += sorted({index // self.page_size for index in indices})

    def evict_to_free_tokens(self, tree: Any, tokens: int) -> None:
        if (shortfall := tokens - self.available_size()) > 0:
            tree.evict(self._source.EvictParams(num_tokens=shortfall))

    def extend(self, row: Tensor, tokens: int) -> None:
        """Appends the indices of so many tokens to a row."""
        for _ in range(tokens):
            fresh = len(row) % self.page_size == 0
            row.append(self._free.pop() * self.page_size if fresh else row[-1] + 1)


class Rows:
    """The KV indices of each request."""

    def __init__(self) -> None:
        self.req_to_token = self
        self.of: dict[int, Tensor] = {}

    def __getitem__(self, place: tuple[int, slice]) -> Tensor:
        found = self.of[place[0]][place[1]]
        assert isinstance(found, Tensor)
        return found

    def write(self, place: tuple[int, slice], indices: Tensor) -> None:
        self.of[place[0]][place[1]] = indices

    def free(self, request: Any) -> None:
        del self.of[request.rid]


class Req:
    """A request as SGLang's classes look at it."""

    def __init__(self, rid: int, tokens: list[int], outputs: int) -> None:
        self.rid, self.origin_input_ids, self.output_ids = rid, array("q", tokens), array("q")
        self.sampling_params = SimpleNamespace(max_new_tokens=outputs, ignore_eos=False)
        self.extra_key = self.cache_salt = self.session = self.priority = None
        self.retracted_stain = self.skip_radix_cache_insert = False
        self.prefix_len = self.extend_end = self.host_hit_length = self.swa_host_hit_length = 0
        self.storage_hit_length = self.auxiliary_swa_host_hit_length = 0
        self.storage_hit_start = self.host_hit_is_storage = self.cache_request_handle = None
        self.last_node: Any = None
        self.lock: Any = None
        self.committed = 0
        self.kv = SimpleNamespace(
            cache_protected_len=0, cache_inserted_len=0, swa_evict_floor=0, req_pool_idx=None, holds_mamba=False
        )

    @property
    def full_untruncated_fill_ids(self) -> array[int]:
        return self.origin_input_ids + self.output_ids

    @property
    def extend_len(self) -> int:
        return self.extend_end - self.prefix_len

    def finished(self) -> bool:
        return len(self.output_ids) >= int(self.sampling_params.max_new_tokens)

    def needs_host_load_back(self) -> bool:
        return False

    def materialized_host_hit_len(self) -> int:
        return 0

    def fulfilled_storage_hit_len(self, prefix: int) -> int:
        del prefix
        return 0

    def _compute_max_prefix_len(self, length: int) -> int:
        return max(length - 1, 0)


class Running:
    """The running batch."""

    def __init__(self) -> None:
        self.reqs: list[Req] = []
        self.batch_is_full = False

    def batch_size(self) -> int:
        return len(self.reqs)


class Engine:
    """Steps; a step that computes nothing returns an empty batch."""

    def __init__(self, source: Source, sizes: Sizes, setting: Settings) -> None:
        settings.__dict__.update(vars(setting))
        self._source, self._sizes = source, sizes
        self.allocator, self.rows = Allocator(source, sizes), Rows()
        self.tree = source.RadixCache(
            source.CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=sizes.page,
                eviction_policy=setting.eviction_policy,
                enable_metrics=False,
            )
        )
        self.tree.update_eviction_metrics = lambda *_: None
        self.policy = source.SchedulePolicy(setting.schedule_policy, self.tree, False, False, False)
        self.ratio = source.NewTokenRatioTracker.from_config()
        self.waiting: list[Req] = []
        self.running, self.chunked = Running(), None
        self._fresh: list[Req] = []
        """Prefilled by the last step."""
        self._last_chunked: Req | None = None
        self.retracted: list[int] = []

    def add(self, request: Req) -> None:
        self.waiting.append(request)

    def nodes(self) -> list[tuple[int, int, int, int]]:
        """(first token, end, locks, hits) of each node of the tree, sorted."""
        found, line = [], [(self.tree.root_node, 0)]
        while line:
            node, start = line.pop()
            end = start + len(node.key)
            if node is not self.tree.root_node:
                found.append((start, end, node.lock_ref, node.hit_count))
            line += [(child, end) for child in node.children.values()]
        return sorted(found)

    def step(self) -> dict[int, int]:
        """New tokens of each request in the next batch, which is computed and credited."""
        if self.chunked is not None and self.chunked.extend_end > self.chunked.prefix_len:
            self._source.checkpoint_kv_cache(self.chunked, self.tree)
        self._merge()
        batch = self._prefill()
        if batch:
            return self._finish_extend(batch)
        if self.running.reqs and (decoding := self._decode()):
            self._finish_decode(decoding)
            return {request.rid: 1 for request in decoding}
        if not (self.waiting or self.running.reqs or self.chunked):
            self.ratio.reset()
        return {}

    def _merge(self) -> None:
        if self._last_chunked is not None or any(request.finished() for request in self._fresh):
            self.running.batch_is_full = False
        before = len(self.running.reqs)
        self.running.reqs = [request for request in self.running.reqs if not request.finished()]
        if len(self.running.reqs) < before:
            self.running.batch_is_full = False
        self.running.reqs += [request for request in self._fresh if not request.finished()]
        self._fresh, self._last_chunked = [], None

    def _prefill(self) -> list[tuple[Req, bool]]:
        """Requests of an extend, and whether they decode beside it."""
        running, sizes, source = self.running, self._sizes, self._source
        if not running.reqs:
            running.batch_is_full = False
        if (running.batch_is_full or not self.waiting) and self.chunked is None:
            return []
        if self.chunked is None and len(running.reqs) >= sizes.max_seqs:
            running.batch_is_full = True
            return []
        self.policy.calc_priority(self.waiting, running)
        adder = source.PrefillAdder(
            sizes.page,
            self.tree,
            self.allocator,
            running,
            self.ratio.current,
            sizes.max_prefill_tokens,
            sizes.chunk,
            len(running.reqs) if sizes.mixed_chunk else 0,
        )
        if self.chunked is not None:
            self.chunked = adder.add_chunked_req(self.chunked)
        for request in self.waiting:
            if adder.budget_state() == source.AddReqResult.OTHER:
                break
            if len(adder.can_run_list) >= sizes.max_seqs - len(running.reqs):
                running.batch_is_full = True
            if running.batch_is_full:
                break
            tokens = request.full_untruncated_fill_ids
            source.match_kv_cache(request, self.tree, tokens, max_prefix_len=len(tokens) - 1)
            request.kv.cache_protected_len = request.prefix_len
            result = adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None)
            if result == source.AddReqResult.NO_TOKEN:
                running.batch_is_full = bool(adder.can_run_list or running.reqs)
            if result != source.AddReqResult.CONTINUE:
                break
        if not adder.can_run_list:
            return []
        self.waiting = [request for request in self.waiting if request not in adder.can_run_list]
        self.chunked = adder.new_chunked_req or self.chunked
        self._allocate_extend(adder.can_run_list)
        return [(request, False) for request in adder.can_run_list] + self._mix()

    def _allocate_extend(self, requests: list[Req]) -> None:
        page = self._sizes.page
        needed = sum(
            -(-request.extend_end // page) - -(-request.committed // page)
            for request in requests
            if request.kv.req_pool_idx is not None
        )
        needed += sum(
            -(-request.extend_end // page) - request.prefix_len // page
            for request in requests
            if request.kv.req_pool_idx is None
        )
        self.allocator.evict_to_free_tokens(self.tree, needed * page)
        for request in requests:
            if request.kv.req_pool_idx is None:
                request.kv.req_pool_idx = request.rid
                self.rows.of[request.rid] = Tensor(self.tree.path_device_indices(request.last_node))
            row = self.rows.of[request.rid]
            self.allocator.extend(row, request.extend_end - len(row))
            request.committed = request.extend_end

    def _mix(self) -> list[tuple[Req, bool]]:
        running = self.running
        if not (self._sizes.mixed_chunk and running.reqs and self._fits(running.reqs)):
            return []
        self._allocate_decode(running.reqs)
        mixed = [(request, True) for request in running.reqs]
        running.reqs = []
        return mixed

    def _fits(self, requests: list[Req]) -> bool:
        page = self._sizes.page
        needed = page * sum(request.committed % page == 0 for request in requests)
        self.allocator.evict_to_free_tokens(self.tree, needed)
        return self.allocator.available_size() >= needed

    def _allocate_decode(self, requests: list[Req]) -> None:
        for request in requests:
            self.allocator.extend(self.rows.of[request.rid], 1)
            request.committed += 1

    def _decode(self) -> list[Req]:
        running, before = self.running, len(self.running.reqs)
        if self._fits(running.reqs):
            self.ratio.decay_step()
        else:
            self._retract()
        if len(running.reqs) < before:
            running.batch_is_full = False
        self._allocate_decode(running.reqs)
        return list(running.reqs)

    def _retract(self) -> None:
        """The rules of ``ScheduleBatch.retract_decode``, whose module needs a GPU's libraries."""
        line = sorted(
            self.running.reqs, key=lambda each: (len(each.output_ids), -len(each.origin_input_ids)), reverse=True
        )
        gone: list[Req] = []
        while len(line) > 1 and (not gone or not self._fits(line)):
            gone.append(line.pop())
            self._release(gone[-1], False)
            self.allocator.evict_to_free_tokens(self.tree, 20 * len(line))
        if not self._fits(line):
            gone.append(line.pop())
            self._release(gone[-1], False)
        self.running.reqs = [request for request in self.running.reqs if request in line]
        self.ratio.current = self._source.NewTokenRatioTracker.estimate_new_token_ratio_after_retract(line)
        for request in gone:
            request.kv.cache_protected_len = request.kv.cache_inserted_len = 0
            request.prefix_len = request.extend_end = request.committed = 0
            request.retracted_stain = True
            self.retracted.append(request.rid)
            self.waiting.append(request)

    def _release(self, request: Req, insert: bool) -> None:
        """``release_kv_cache``."""
        if insert:
            self.tree.checkpoint(request, up_to=request.committed)
        row = self.rows.of[request.rid]
        self.allocator.free_segment(row[request.kv.cache_protected_len :], 0)
        self.tree.unlock(request.lock)
        request.lock = None
        del self.rows.of[request.rid]
        request.kv.req_pool_idx = None

    def _finish_extend(self, batch: list[tuple[Req, bool]]) -> dict[int, int]:
        computed = {}
        for request, is_decode in batch:
            computed[request.rid] = 1 if is_decode else request.extend_len
            if request is self.chunked:
                continue
            self._sample(request)
            if request.finished():
                self._release(request, True)
            elif not is_decode:
                self._source.checkpoint_kv_cache(request, self.tree)
        self._fresh = [request for request, _ in batch if request is not self.chunked]
        self._last_chunked = self.chunked
        return computed

    def _finish_decode(self, batch: list[Req]) -> None:
        for request in batch:
            self._sample(request)
            if request.finished():
                self._release(request, True)

    def _sample(self, request: Req) -> None:
        """A token that no other request has."""
        request.output_ids.append(10**9 + request.rid * 10**6 + len(request.output_ids))
