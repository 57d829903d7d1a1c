"""Types of the C++ core (vidur_pd/core/bindings.cpp)."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from aicb._core import IterationPricing
from netsim import LinkLog, PeriodicLoads, SteppedNetwork
from vidur_pd.metrics.request_figures import RequestFigures
from vidur_pd.scheduling.policy import RequestView
from vidur_pd.workload.request import RequestStatus

def seconds_texts(durations_ps: NDArray[np.int64], absent: int) -> list[str]:
    """Exact decimal seconds without trailing zeros, of durations from zero; ``absent`` ones are empty text."""

class Request(RequestFigures[int, int | None, int | None, int | None]):
    """One request; mutable, with one owner at a time: the queue, the scheduler or the transfer that has it.

    ``prompt_tokens`` (P) and ``output_tokens`` (D) are the original ones for ever; preemption changes only the
    progress. Its figures are set by whoever computes them, those of progress by its rank alone.
    Raises ``InputError`` for a prompt or an output of less than one token.
    """

    def __init__(
        self,
        index: int,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        arrived_ps: int,
        block_hashes: Sequence[int] | None = None,
    ) -> None: ...
    @property
    def index(self) -> int:
        """Row in the workload; unique."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def arrived_ps(self) -> int: ...
    @property
    def block_hashes(self) -> list[int] | None:
        """Content ids of consecutive blocks (Mooncake: 512 tokens each), the last maybe partial: those of the prompt,
        and beyond it of the answer."""

    hashed_tokens: int
    """Leading tokens whose content the ids name: the prompt at first, up to prompt and answer."""
    server: int
    """Of the frontend, that it came through; 0 without one."""

    @property
    def status(self) -> RequestStatus: ...
    @property
    def status_reason(self) -> str | None:
        """Why it was rejected or failed."""

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV the present instance has, or is computing in the iteration under way."""

    @property
    def is_running(self) -> bool:
        """Admitted by a rank, in an iteration or between two."""

    @property
    def is_in_iteration(self) -> bool:
        """In an iteration under way that has to end before it goes on."""

    @property
    def is_ending(self) -> bool:
        """Its last token is under way."""

    @property
    def role(self) -> str:
        """What its rank serves of it: ``mixed``, all of it; ``prefill``; or ``decode``."""

    @property
    def sequence_tokens(self) -> int:
        """Prompt + generated tokens, one under way included where ranks plan ahead.

        What has to be computed before the next token can be sampled.
        """

    def restart(self, kept: int) -> None:
        """Begin again without KV, with the first ``kept`` generated tokens; stamps of stages are forgotten."""

class KvGroups:
    def __init__(self, *, whole: int, spanned: int, most_spanned_blocks: int) -> None:
        """Groups of layers with blocks of their own: that keep every token, and that keep those within a span."""

class BlockPool:
    """KV blocks of one rank."""

class CountingBlockPool(BlockPool):
    def __init__(self, num_blocks: int, block_tokens: int = 16, groups: KvGroups = ...) -> None: ...

class PrefixCachingBlockPool(BlockPool):
    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = 16,
        hash_block_tokens: int = 512,
        groups: KvGroups = ...,
        drops_last_hit: bool = False,
        when_computed: bool = False,
    ) -> None:
        """``when_computed``: others can have what has been computed, not what is scheduled."""

class RadixBlockPool(BlockPool):
    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = 1,
        hash_block_tokens: int = 512,
        eviction: str = "lru",
        groups: KvGroups = ...,
    ) -> None: ...
    @property
    def evictable_tokens(self) -> int:
        """Cached, in nodes that no request locks."""

    @property
    def nodes(self) -> list[tuple[int, int, int, int]]:
        """(first token, end, locks, hits) of each node of the tree, parents first."""

class ScheduledBatch:
    @property
    def requests(self) -> list[Request]: ...
    @property
    def new_tokens(self) -> NDArray[np.int64]: ...
    @property
    def kv_tokens(self) -> NDArray[np.int64]: ...
    @property
    def drafts(self) -> NDArray[np.int64]: ...
    @property
    def samples(self) -> NDArray[np.bool_]: ...
    @property
    def admitted(self) -> list[Request]: ...
    @property
    def preempted(self) -> list[Request]: ...
    @property
    def logit_rows(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...

class RankState:
    """What one data-parallel rank holds, and the iteration that is being decided (``core/rank_state.hpp``).

    Raises ``InputError`` for a limit below 1.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        role: str = "mixed",
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        drafts_per_step: int = 0,
        watermark_blocks: int = 0,
        pipeline_stages: int = 1,
        plans_ahead: bool = False,
        by_priority: bool = False,
        chunks_prompts: bool = True,
        pipelines_chunks: bool = False,
        lookahead_tokens: int = 0,
    ) -> None: ...
    @property
    def waiting_requests(self) -> int: ...
    @property
    def running_requests(self) -> int: ...
    @property
    def queued_requests(self) -> int:
        """Those that have all that they need to run, and do not."""

    @property
    def outstanding_tokens(self) -> int:
        """To compute before every local request is a plain decode, those under way included."""

    @property
    def load_tokens(self) -> int:
        """The same plus the context of all requests that decode here."""

    @property
    def used_blocks(self) -> int: ...
    @property
    def usable_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""

    def rejection_reason(self, request: Request, role: str | None = None) -> str | None: ...
    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request whose KV the prefix cache has."""

    def add(self, request: Request, role: str | None = None) -> None: ...
    def add_remote(self, request: Request) -> None: ...
    def admit_remote(self) -> list[Request]: ...
    def make_room_for_remote(self, request: Request, reserved: list[Request]) -> list[Request]: ...
    def remote_arrived(self, request: Request, computed_tokens: int) -> None: ...
    def release(self, request: Request) -> None: ...
    def keep(self, request: Request, computed_tokens: int) -> None:
        """A prefilled request goes on here, with the KV that is held for its transfer."""

    def abandon_remote(self, request: Request) -> None: ...
    def load_from(
        self, tiers: Sequence[ChunkIndex], least_tokens: Sequence[int], *, is_layerwise: bool = False
    ) -> None:
        """Prompts are looked up in tiers from now on; fewer than so many tokens [tiers] are not loaded.

        ``is_layerwise``: a request runs while it is loaded, and each layer waits for its KV.
        """

    def log_evictions(self, chunk_tokens: int) -> None:
        """Notes from now on which chunks of so many tokens the prefix cache has no more."""

    def take_evicted(self) -> list[int]:
        """Contents of those that have gone since the last call, ends of prefixes first."""

    def chunk_contents(self, request: Request, chunk_tokens: int, tokens: int) -> list[int]:
        """[chunks] among the first ``tokens`` tokens of a request that others can have."""

    def hold(self, request: Request, is_held: bool) -> None:
        """Whether a request that waits keeps its place and does not run."""

    def take_loads(self) -> list[TierLoad]:
        """Those that have begun since the last call."""

    def loaded(self, request: Request, tokens: int) -> None:
        """A load has ended with so many tokens of the request here."""

    def abandon_load(self, request: Request) -> None:
        """A load has failed: the request waits again, first in the queue, and computes all."""

    def open_decision(self, now_ps: int) -> None:
        """The next iteration is decided from now on, until the loop goes on."""

    def asks_again(self) -> bool:
        """Whether the decision so far runs nothing and has freed blocks since the last answer, which takes no time."""

@final
class ChunkKeys:
    """Numbers of chunks of prompts (``core/chunk_index.hpp``)."""

    def __init__(self, chunk_tokens: int, hash_block_tokens: int) -> None: ...
    @property
    def chunk_tokens(self) -> int: ...
    def of(self, request: Request, tokens: int) -> list[int]:
        """[chunks] of the full chunks among the first ``tokens`` tokens that other requests can have."""

@final
class ChunkIndex:
    """Which chunks are in one tier."""

    def __init__(self, keys: ChunkKeys) -> None: ...
    def add(self, keys: Sequence[int]) -> None: ...
    def remove(self, keys: Sequence[int]) -> None: ...
    def __contains__(self, key: int) -> bool: ...
    def __len__(self) -> int: ...
    def reach(self, request: Request, start: int, tokens: int) -> int:
        """End of the chunks in a row that are here, from token ``start`` on and among the first ``tokens``."""

class LayerArrivals:
    """When the layers of a load come, see `Loop.set_arrivals`."""

class TierLoad:
    """What tiers have of a request behind its ``cached`` tokens: ``reaches`` is where each tier [tiers] ends."""

    @property
    def request(self) -> Request: ...
    @property
    def cached(self) -> int: ...
    @property
    def reaches(self) -> list[int]: ...
    @property
    def end(self) -> int: ...
    @property
    def arrivals(self) -> LayerArrivals | None:
        """Of a load whose request runs meanwhile."""

@final
class RankView:
    """What a policy may read of its rank: the state at this instant, entries of the decision so far included."""

    def __init__(self, rank: RankState) -> None: ...
    @property
    def role(self) -> str:
        """``mixed``; ``prefill``: requests end with their first token; ``decode``: their KV comes from elsewhere."""

    @property
    def now_ps(self) -> int:
        """Instant of the decision."""

    @property
    def unasked_iterations(self) -> int:
        """Iterations so far, in runs of plain decodes (`Policy.is_steady`), for which the policy was not asked."""

    @property
    def running(self) -> list[RequestView]:
        """In order of admission, those of this decision included."""

    @property
    def waiting(self) -> list[RequestView]:
        """Without KV: those that were preempted, the last first, then in order of arrival; or all ``by_priority``."""

    @property
    def arrived(self) -> list[RequestView]:
        """Their KV has come from elsewhere, in this order; they hold blocks for it, and count among those that may
        begin to run."""

    @property
    def running_requests(self) -> int: ...
    @property
    def has_candidates(self) -> bool:
        """Some request waits or has arrived."""

    @property
    def is_transferring(self) -> bool:
        """KV is on its way to this rank."""

    @property
    def budget_left(self) -> int:
        """Tokens that the iteration still has room for."""

    @property
    def free_blocks(self) -> int:
        """KV blocks that no request holds; those with cached content count, they are evicted on demand."""

    @property
    def usable_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def max_batched_tokens(self) -> int: ...
    @property
    def max_seqs(self) -> int: ...
    @property
    def long_prefill_token_threshold(self) -> int:
        """Most tokens of one prompt in an iteration; 0: no such limit. The rank does not ask for it."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def watermark_blocks(self) -> int:
        """KV blocks that admissions are to leave free; the rank does not ask for it."""

    @property
    def pipeline_stages(self) -> int:
        """Iterations that may be under way at a time."""

    @property
    def by_priority(self) -> bool:
        """The queues are by (priority, arrival), victims at their place among the others: ``engine.scheduling_policy``.
        Whom to preempt is the policy's."""

    @property
    def chunks_prompts(self) -> bool:
        """A prompt may begin with less than all that is left of it; the rank does not ask for it."""

    @property
    def drafts_per_step(self) -> int: ...
    def most_tokens(self, request: RequestView) -> int:
        """The most that the request can compute now: the rest of its sequence, with drafts, less what is cached."""

    def most_drafts(self, request: RequestView) -> int:
        """How many of these are drafts, which a decode may leave out. Drafts follow an iteration with a new token."""

    def cached_tokens(self, request: RequestView) -> int:
        """The longest prefix of a waiting request that the cache has, short of its last token, and what tiers load
        behind it layer by layer while it runs."""

    def lacking_blocks(self, request: RequestView, tokens: int) -> int:
        """Free blocks that so many more tokens of a request take, those of its look-ahead included."""

    def whole_blocks(self, request: RequestView) -> int:
        """Free blocks that the whole sequence of a request that waits takes, without a look-ahead."""

    def content(self, request: RequestView, tokens: int) -> int | None:
        """What the first ``tokens`` tokens of a request are, of whole blocks where there is no radix tree: equal for
        two requests exactly where these are. ``None`` where no other request can have them, or without caching."""

    def depth_first(self, requests: list[RequestView]) -> list[int]:
        """Places of requests in the depth-first order of a radix tree, of two subtrees the one first that has more of
        these requests; unchanged where the pool has none. Looks all of them up, as `Decision.touch`."""

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""

@final
class Decision:
    """What a policy decides for its rank, entry by entry; each holds at once. Raises ``BrokenRule``."""

    def __init__(self, rank: RankState) -> None: ...
    def run(self, request: RequestView, tokens: int, held_tokens: int = 0) -> None:
        """The request computes so many tokens in this iteration: it goes on running, or begins to, with KV blocks for
        ``held_tokens`` if that is more than it has tokens."""

    def preempt(self, request: RequestView) -> None:
        """A running request, or one whose KV has arrived, loses its KV and is first in the queue, with the tokens
        generated so far. One that takes part in this decision does not any more."""

    def touch(self, request: RequestView, tokens: int) -> int:
        """Looks the first ``tokens`` tokens of a request up as if to use them, and returns how many are cached; in a
        radix tree that refreshes them and splits the node that they end in. 0 without prefix caching."""

    def evict(self, blocks: int) -> None:
        """Evicts cached content of a radix tree until so many blocks are free without it, or nothing is left."""

class CorePolicy:
    """A policy of the core."""

@final
class VllmV1(CorePolicy):
    """vLLM V1 (``core/vllm_v1.hpp``). A policy in Python may call it for its own rank."""

    def __init__(self) -> None: ...
    def decide(self, rank: RankView, decision: Decision) -> None: ...
    def is_steady(self, rank: RankView) -> bool: ...

class Candidates:
    """What a router chooses among; ``measure`` is ``none``, ``requests`` or ``tokens`` (``core/candidates.hpp``)."""

    def __init__(self, candidates: Sequence[Sequence[RankState]], measure: str) -> None: ...
    def set_open(self, place: int, is_open: bool) -> None: ...
    def open(self, spans: Sequence[tuple[int, int]]) -> int:
        """Number of open candidates in the spans."""

    def nth(self, spans: Sequence[tuple[int, int]], number: int) -> int | None:
        """The ``number``-th open candidate in the spans, from 0 on."""

    def next(self, spans: Sequence[tuple[int, int]], start: int) -> int | None:
        """The first open candidate in the spans at or after ``start``, or else the first of all."""

    def least(self, spans: Sequence[tuple[int, int]]) -> int | None:
        """The open candidate of the least load in the spans, the first of equals."""

    @property
    def loads_read(self) -> int:
        """How often a load has been read."""

class GapCounts:
    """How many requests saw each gap between two of their tokens."""

    def add(self, gap_ps: int, requests: int) -> None: ...
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(gaps [ps], requests), rising."""

class GroupBatch:
    """What the ranks of an instance compute in one iteration."""

    @property
    def batches(self) -> list[ScheduledBatch | None]:
        """[ranks]"""

    @property
    def requests(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def decode_tokens(self) -> int: ...
    @property
    def most_drafts(self) -> int:
        """That one decode verifies."""

    def new_tokens(self) -> NDArray[np.int64]:
        """[requests of all ranks, one rank after another]"""

    def kv_tokens(self) -> NDArray[np.int64]: ...
    def drafts(self) -> NDArray[np.int64]: ...

class HostClock:
    """When the host of an instance is ready (vidur_pd/core/host_clock.hpp); instances have one of their own."""

    def __init__(self, *, plans_ahead: bool, launches_apart: bool = False) -> None: ...
    def expose(
        self,
        work: tuple[int, int],
        *,
        decided_ps: int,
        start_ps: int,
        device_ps: NDArray[np.int64],
        communication_ps: int = 0,
        hand_over_ps: int = 0,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[steps] what each takes in all, and when the host has launched it; ``work``: preparing, handing over
        included, and launching."""

    def end(self, *, launched_ps: int, began_ps: int, ended_ps: int) -> None:
        """Of an iteration: when its last step had been launched, began and ended."""

    def ready(self, decided_ps: int) -> int:
        """When the host turns to an iteration."""

class Stage:
    """One pipeline stage of an iteration: what it computes, and what it communicates on an idle fabric and now."""

    def __init__(
        self,
        compute_ps: int,
        communication_ps: int,
        load: int,
        host_ps: int = 0,
        phase_ps: Sequence[int] = ...,
        estimated_ps: int = 0,
        not_overlapped_ps: float = 0.0,
        overlapped: Sequence[tuple[float, float, float]] = ...,
        prepare_ps: int = 0,
        launch_ps: int = 0,
        attention_ps: int = 0,
        ffn_ps: int = 0,
        pauses_ps: Sequence[int] = ...,
        hand_over_ps: int = 0,
    ) -> None:
        """``communication_ps``: all collectives one after another; ``load``: number of what it leaves on links;
        ``prepare_ps``, ``launch_ps``: what the host does for it, of which the loop adds what it exposes,
        ``hand_over_ps``: the part of the former before its workers;
        ``estimated_ps``: part of compute that rests on estimates; ``not_overlapped_ps``, ``overlapped``: see
        ``aicb.TwoBatchOverlap``, less ``compute_ps``; ``attention_ps``, ``ffn_ps``: what attention workers and FFN
        workers compute, where they are apart, ``pauses_ps`` piece by piece (`vidur_pd.execution.iteration.workers`)."""

    @property
    def compute_ps(self) -> int: ...
    @property
    def host_ps(self) -> int:
        """With what the loop has added."""

    @property
    def pauses_ps(self) -> NDArray[np.int64]: ...
    @property
    def communication_ps(self) -> int: ...
    @property
    def slowdown(self) -> float:
        """How much longer communication takes than on an idle fabric."""

    @property
    def load(self) -> int: ...

class RunningIteration:
    """An iteration, or a run of equal decode iterations, in progress on an instance."""

    ends_ps: NDArray[np.int64]
    """[steps] as far as known; set when launched."""

    @property
    def number(self) -> int:
        """Unique in its loop."""

    @property
    def instance(self) -> int: ...
    @property
    def batch(self) -> GroupBatch | None:
        """The micro-batches of the ranks; ``None``: a run that repeats the running decodes of every rank."""

    @property
    def stages(self) -> list[Stage]: ...
    @property
    def start_ps(self) -> int: ...
    @property
    def compute_ps(self) -> NDArray[np.int64]:
        """[steps] summed over pipeline stages."""

    @property
    def end_ps(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def is_run(self) -> bool: ...
    @property
    def is_pipelined(self) -> bool: ...
    @property
    def communication_ps(self) -> int:
        """Of one step at the present slowdown, over all stages, as far as compute does not hide it."""

    def set_stages(self, stages: list[Stage], compute_ps: NDArray[np.int64]) -> None:
        """The price of the iteration."""

class Instance:
    """A serving instance in the loop (``core/instance.hpp``); `vidur_pd.execution.instances.instance` derives one."""

    def __init__(self, index: int, ranks: Sequence[RankState], policy: CorePolicy | None, stages: int) -> None:
        """Without a policy each iteration is asked for by the notice `DecideIteration`."""

    @property
    def index(self) -> int: ...
    @property
    def is_up(self) -> bool: ...
    @property
    def running_iterations(self) -> list[RunningIteration]: ...
    def set_waits_for_room(self, waits: bool) -> None:
        """Requests wait for blocks here: the loop asks by `BeforeStep` before every step."""

    def set_polls(self, polls: bool) -> None:
        """The instance looks in every step for KV that has come: the loop says by `BeforeStep` when it decides one, and
        none are taken together as a run."""

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing that ran goes on."""

    @property
    def iterations_ended(self) -> int:
        """Iterations that have ended or were broken off."""

    def hold(self, until_ps: int) -> None:
        """The host is busy: no iteration begins before ``until_ps``."""

    def wake(self) -> None:
        """Something new may be scheduled: act at this instant, or as soon as the step in progress ends."""

    def note_kv_use(self) -> int:
        """Records the KV blocks held from now on, and returns them."""

    def break_off(self, iteration: RunningIteration) -> list[Request]:
        """An iteration of one step has come to nothing: returns its requests, which the instance has no more."""

    def halt(self) -> list[Request]:
        """The instance fails now and launches nothing until ``resume``.

        Steps of a run that have ended by now count, tokens and all. The step in progress and all other iterations come
        to nothing and are not recorded. All requests leave, and all KV is gone, that held for transfers and cached
        content too. Returns the requests that the ranks had alone (``RankState::clear``), rank by rank.
        """

    def resume(self) -> None:
        """The instance is back, empty, and may launch from now on."""

    def set_compute_slowdown(self, factor: float) -> None:
        """Iterations launched from now on compute ``factor`` times as long; of those under way, a run ends with the
        step in progress, and nothing else changes."""

    def set_communication(self, stage: int, number: int, communication_ps: int, load: int) -> None:
        """An answer to `PriceCollectives`."""

    def forget_communication(self) -> None:
        """Its next iterations ask for what their collectives take again; those in progress keep theirs."""

    def estimates_met(self) -> list[int]:
        """Numbers of sets of estimated operators that its iterations have met."""

class CallDue:
    """A call is due, which Python has scheduled."""

    @property
    def number(self) -> int: ...

class BeforeStep:
    """The instance is about to schedule: remote requests may be admitted."""

    @property
    def instance(self) -> Instance: ...

class DecideIteration:
    """Policies in Python decide, or let the instance decode ``steps`` times (`Loop.decode_run`), if not 0."""

    @property
    def instance(self) -> Instance: ...
    @property
    def steps(self) -> int: ...

class PriceIteration:
    """The iteration needs stages and compute times."""

    @property
    def instance(self) -> Instance: ...
    @property
    def iteration(self) -> RunningIteration: ...

class PriceNextHost:
    """The host work of the batch that is next is asked for (`Loop.set_next_host`); without one all running requests
    decode."""

    @property
    def instance(self) -> Instance: ...
    @property
    def batch(self) -> GroupBatch | None: ...

class PriceOperators:
    """The pricing of the instance lacks operators."""

    @property
    def instance(self) -> Instance: ...

class PriceCollectives:
    """The instance lacks the price of a list of collectives."""

    @property
    def instance(self) -> Instance: ...
    @property
    def stage(self) -> int: ...
    @property
    def number(self) -> int: ...

class LaunchIteration:
    """The iteration needs times and the event that ends it."""

    @property
    def instance(self) -> Instance: ...
    @property
    def iteration(self) -> RunningIteration: ...

class IterationLaunched:
    """The iteration has begun."""

    @property
    def instance(self) -> Instance: ...
    @property
    def iteration(self) -> RunningIteration: ...

class AcceptDrafts:
    """The iteration needs the drafts that its decodes keep (`Loop.set_accepted`)."""

    @property
    def instance(self) -> Instance: ...
    @property
    def iteration(self) -> RunningIteration: ...

class PromptPrefilled:
    """A prefill instance has computed the prompt of a request."""

    @property
    def request(self) -> Request: ...

class TiersDue:
    """An iteration is decided with which loads from tiers have begun (`RankState.take_loads`), or chunks have been
    evicted (`RankState.take_evicted`)."""

    @property
    def instance(self) -> Instance: ...

class PromptsComputed:
    """The instance, whose ranks have tiers, has computed prompts."""

    @property
    def instance(self) -> Instance: ...
    @property
    def prompts(self) -> list[tuple[int, Request]]:
        """With the rank of each."""

class InstanceRests:
    """An iteration has ended, and nothing waits to run on the instance (``reports_rest``)."""

    @property
    def instance(self) -> Instance: ...

class RequestsCompleted:
    """Requests have got their last tokens (after `Loop.report_completions`)."""

    @property
    def requests(self) -> list[Request]: ...

class GraphEnded:
    """A flow graph has come to its end on the network, or failed."""

    @property
    def graph(self) -> int: ...
    @property
    def is_failed(self) -> bool: ...

Notice = (
    CallDue
    | BeforeStep
    | DecideIteration
    | PriceIteration
    | PriceNextHost
    | PriceOperators
    | PriceCollectives
    | LaunchIteration
    | IterationLaunched
    | AcceptDrafts
    | PromptPrefilled
    | TiersDue
    | PromptsComputed
    | InstanceRests
    | RequestsCompleted
    | GraphEnded
)
"""What Python has to do before the loop goes on (``core/notices.hpp``)."""

class IterationLog:
    """Sums over iterations; times are picoseconds."""

    @property
    def iterations(self) -> int: ...
    @property
    def busy_ps(self) -> NDArray[np.int64]:
        """[instances]"""

    @property
    def attention_ps(self) -> NDArray[np.int64]:
        """[instances] what attention workers have computed where FFN workers are apart."""

    @property
    def ffn_ps(self) -> NDArray[np.int64]:
        """[instances] what FFN workers have computed."""

    @property
    def busy_at_arrival_ps(self) -> NDArray[np.int64]:
        """[instances] the same when the last request had arrived."""

    @property
    def computing_ps(self) -> NDArray[np.int64]:
        """[instances]"""

    @property
    def activity(self) -> list[dict[str, NDArray[Any]]]:
        """[kinds] of iterations with prompts and of those of decodes alone: ``Activity`` of
        ``core/iteration_log.hpp``, [instances] by name."""

    @property
    def compute_ps(self) -> int: ...
    @property
    def communication_ps(self) -> int: ...
    @property
    def idle_communication_ps(self) -> int: ...
    @property
    def estimated_ps(self) -> int: ...
    @property
    def gap_counts(self) -> GapCounts: ...
    def kv_block_seconds(self, instance: int) -> float: ...
    def kv_peak(self, instance: int) -> int: ...
    def take_runs(self) -> dict[str, Any]:
        """Columns of the runs kept since the last call; arrays over runs, ``ends_ps``, ``compute_ps`` and
        ``communication_ps`` over their iterations, ``phase_ps`` a list of columns."""

    def take_members(self) -> dict[str, NDArray[np.int64]]:
        """Columns of the members kept since the last call: ``number`` of the run, row of the ``request``,
        ``new_tokens`` and ``kv_tokens`` of the first step."""

class RequestLog:
    """Rows of requests that have ended."""

    @property
    def ended(self) -> int: ...
    def __len__(self) -> int:
        """Rows that have not been taken."""

    def take(self) -> dict[str, Any]:
        """Columns of the requests that have ended since the last call, in the order of their ends; -1 where something
        does not apply, and ``reasons``: (index, text)."""

class Loop:
    """The simulation loop (``core/loop.hpp``)."""

    def __init__(self, instances: int, keeps_runs: bool, links: LinkLog | None, keeps_members: bool = False) -> None:
        """``links`` gets what priced collectives carry, as traffic 1."""

    def add(
        self,
        instance: Instance,
        *,
        has_runs: bool,
        has_drafts: bool,
        reports_launches: bool,
        launches_itself: bool,
        pricing: Sequence[IterationPricing],
        reports_rest: bool = False,
        launches_apart: bool = False,
        replayed_tokens: int = ...,
    ) -> None:
        """Adds the next instance; ``pricing`` is [stages], empty where Python prices. ``replayed_tokens``: most of a
        rank for which decodes are one launch; by default any."""

    def serve_through(self, servers: int, *, message_ps: int, process_ps: int, send_ps: int) -> None:
        """Clients are behind a frontend (``core/frontend.hpp``); to be said before instances are added."""

    def work_of_server(self, server: int, work_ps: int) -> int:
        """Gives a server of the frontend work, now; returns when it will be done."""

    def deliver(self, request: Request) -> None:
        """A request gets a token that the loop does not deliver by itself."""

    def note_arrival(self) -> None:
        """A request arrives: ``iterations.busy_at_arrival_ps`` is what instances have done up to the last one."""

    def report_completions(self) -> None:
        """`RequestsCompleted` tells of the requests that complete here from now on."""

    def run(self, before_ps: int) -> Notice | None:
        """Runs the events before an instant, up to the first that Python has to deal with."""

    def batches(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int], list[int]]:
        """Of the iteration to price, or of what is next: new tokens and KV tokens [requests of all ranks], requests and
        logit rows [ranks]."""

    def set_next_host(self, stage: Stage) -> None:
        """Answers `PriceNextHost`: the host work of the first stage."""

    def next_event_ps(self) -> int | None: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def executed(self) -> int:
        """Events so far."""

    def schedule_call(self, at_ps: int, priority: int) -> int: ...
    def schedule_end(self, iteration: RunningIteration) -> None: ...
    def set_end_times(self, iteration: RunningIteration) -> None: ...
    def end(self, iteration: RunningIteration) -> None: ...
    def await_write(self, instance: Instance) -> LayerArrivals | None:
        """Lets the batch that is planned wait until `set_arrivals`; ``None``: there is none."""

    def set_arrivals(
        self, instance: Instance, arrivals: LayerArrivals, at_ps: NDArray[np.int64], recomputing_ps: int = 0
    ) -> None:
        """All layers of a load have come at these times [layers]; tokens that have not are computed for so long."""

    def decode_run(self) -> None:
        """An answer to `DecideIteration`: its iterations decode all running requests."""

    def set_accepted(self, accepted: list[list[int]], drafted: list[list[int]] = ...) -> None:
        """[ranks][requests that sample] drafts kept, and those made for the next step; by default as many as fit."""

    def advance_with(self, network: SteppedNetwork | None) -> None:
        """Advances a network of netsim's core together with the events, by itself."""

    def arrive(self, at_ps: int, graphs: Sequence[tuple[int, bool]]) -> None:
        """Graphs have come to their end on a network that is advanced elsewhere, or failed."""

    def couple(self, loads: PeriodicLoads) -> None:
        """Iterations are loads on the links of the network, which slow each other and transfers down."""

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on; of no effect where iterations are no loads."""

    def remember(
        self,
        links: NDArray[np.int64],
        link_bytes: NDArray[np.float64],
        link_flows: NDArray[np.float64],
        link_busy_ps: NDArray[np.float64],
    ) -> int:
        """Number, from 0 on, of what a list of collectives leaves on links, see ``LinkLoad``."""

    def complete(self, request: Request) -> None: ...
    def reject(self, request: Request, reason: str) -> None: ...
    def fail(self, request: Request, reason: str) -> None: ...
    @property
    def iterations(self) -> IterationLog: ...
    @property
    def requests(self) -> RequestLog: ...
