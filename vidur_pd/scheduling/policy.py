"""A scheduling policy: what a data-parallel rank computes in its next iteration, and which requests lose their KV.

A policy is a class with a method ``decide``, in a file of the user's own (``engine.policy: module:Class``). Each rank
has one object of it, made without arguments, so it may remember things. It reads a `RankView` and fills a `Decision`
entry by entry::

    class Fcfs(Policy):
        def decide(self, rank: RankView, decision: Decision) -> None:
            for request in rank.running:
                if not request.is_in_iteration and rank.budget_left:
                    decision.run(request, min(rank.most_tokens(request), rank.budget_left))
            ...

Each entry holds at once: queues, blocks, cached prefixes and the budget that the view shows are those after it. What
breaks a rule is refused where it is decided, changes nothing, and ends the simulation unless the policy catches it:

=============== ======================================================================================================
rule            what it asks for
=============== ======================================================================================================
budget          the tokens of an iteration are at most ``engine.max_batched_tokens``
blocks          the KV blocks that a request lacks for its tokens are free
sequences       at most ``engine.max_seqs`` requests run
tokens          a request computes 1 to ``rank.most_tokens(request)`` tokens
one iteration   a request is in one iteration at a time (asynchronous: one under way), and once in a decision
membership      it runs or waits on this rank; one that is preempted holds KV here
decision        entries are made within ``decide``, which returns nothing and raises nothing
progress        something runs as long as something could; no request is preempted a thousand times between two tokens
=============== ======================================================================================================

A policy of another kind of engine says so by ``has_token_budget``, by ``begin``, which refuses an engine that it cannot
decide for, and by ``refusal``, which turns away requests that it could never run. Settings of its own are fields of a
class ``Options`` in it, a `Section`; the configuration gives them in ``engine.policy_options``::

    class Fcfs(Policy):
        class Options(Section):
            batches: Count = 4

        options: Options

        def decide(self, rank: RankView, decision: Decision) -> None:
            ...  # self.options.batches

What is not a policy's: crediting tokens, the ends of requests, transfers of KV and reservations for them, the prefix
cache. The rules of vLLM V1 are written down in `vidur_pd.scheduling.vllm_v1_python`, as an example to fork.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Protocol

from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd._core import Decision, RankState, RankView
from vidur_pd.config.own_classes import check_shapes
from vidur_pd.scheduling.kv_blocks import BlockPool, PrefixCacheSizes

__all__ = ["BrokenRule", "Decision", "Policy", "RankView", "RequestView", "Section"]


class BrokenRule(InputError):
    """A decision that a rank does not allow: rule, what was found, what was expected."""


class RequestView(Protocol):
    """A request as a policy may read it; the same object from its first step to its last."""

    @property
    def index(self) -> int:
        """Row in the workload; unique, and a key for what a policy remembers."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrived_ps(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int:
        """Tokens that it will generate in all. No engine knows this; a policy that reads it is an oracle."""

    @property
    def max_output_tokens(self) -> int:
        """Tokens that it may generate in all; fewer where it ends early. This an engine knows."""

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV is there, or is being computed in the iteration under way."""

    @property
    def generated_tokens(self) -> int: ...
    @property
    def sequence_tokens(self) -> int:
        """Prompt + generated tokens: what has to be computed before the next token can be sampled.

        With asynchronous scheduling a token that is under way counts, though it is not generated yet.
        """

    @property
    def is_running(self) -> bool:
        """It has been admitted, and was not preempted since."""

    @property
    def is_in_iteration(self) -> bool:
        """It is in an iteration under way that has to end before it goes on: with pipeline stages, unless that has a
        chunk of its prompt and ``Policy.pipelines_chunks``; or ``is_ending``.

        With asynchronous scheduling an iteration is decided while the one before is under way, whose tokens count as
        part of their sequences, so that all other requests may go on.
        """

    @property
    def is_ending(self) -> bool:
        """Its last token is under way: there is nothing to run, but ``preempt`` returns its KV blocks one iteration
        earlier, at no cost."""

    @property
    def preemptions(self) -> int: ...
    @property
    def priority(self) -> int:
        """Of two requests the smaller goes first."""

    @property
    def last_token_ps(self) -> int | None:
        """Instant at which it got its last token so far, where tokens are delivered."""


class Policy(ABC):
    """Decides for one rank. A subclass defines ``decide``, and ``is_steady`` where the usual answer is wrong."""

    has_token_budget: ClassVar[bool] = True
    """The rank holds iterations to ``engine.max_batched_tokens``."""
    refuses_long_prompts: ClassVar[bool] = False
    """It has rules for prompts that are not cut, and refuses those that no iteration has room for: without
    ``engine.chunked_prefill`` one may be shorter than the context window."""
    watermark: ClassVar[float] = 0.0
    """Usual ``engine.watermark``: share of the KV blocks that admissions leave free."""
    pipelines_chunks: ClassVar[bool] = False
    """With pipeline stages, the next chunk of a prompt may begin while those before it are in later stages."""

    class Options(Section):
        """What ``engine.policy_options`` may say to the policy: nothing, unless it has a class of its own here."""

    options: Section
    """What the configuration says, an object of ``Options``; there from before ``begin``, not in ``__init__``."""

    @classmethod
    def prefix_cache(cls, options: Section, sizes: PrefixCacheSizes) -> BlockPool:
        """KV blocks of a rank with ``engine.prefix_caching``; those of vLLM where the policy has no others."""
        del options
        return sizes.hash_chains()

    def begin(self, rank: RankView) -> None:
        """Called once, before anything else. Raises: InputError, for a rank that the policy cannot decide for."""
        del rank

    def refusal(self, rank: RankView, request: RequestView) -> str | None:
        """Why the rank could never complete a request by this policy, besides context window and size of the pool."""
        del rank, request
        return None

    @abstractmethod
    def decide(self, rank: RankView, decision: Decision) -> None:
        """Decide the next iteration. Asked whenever one may start and a request runs or waits.

        Where requests lose their KV and none runs, no time passes and it is asked again. Where nothing runs it is
        asked again when something happens on the rank: an arrival, the end of an iteration or of a transfer.
        """

    def is_steady(self, rank: RankView) -> bool:
        """Whether every decision from now on would be to decode all running requests, in any order.

        Until one of them ends or lacks a KV block, or a request comes, that is; the loop then takes these iterations
        at once, without asking, which is most of what makes it fast. Asked where the next decision can be such a one.
        The usual answer, "while nobody waits", is right for policies that never leave out or preempt a request that
        decodes as long as all fit. A policy that does, or counts its decisions, says no.
        """
        return not rank.has_candidates

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises: TypeError, for a hook of another shape, or a method that looks like one of the rank's."""
        super().__init_subclass__(**kwargs)
        check_shapes(cls, Policy, ("decide", "is_steady", "begin", "refusal"))
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, Section)):
            raise TypeError(f"policy {cls.__name__}: found Options = {cls.Options!r}, expected a subclass of Section")
        for name in vars(cls):
            if name in NOT_A_POLICYS:
                raise TypeError(
                    f"policy {cls.__name__}: found a method {name!r}, which would never be called, "
                    "expected decide, is_steady, begin and refusal: the rest is the rank's"
                )


NOT_A_POLICYS: Final = frozenset(
    name for kind in (RankState, Decision) for name in vars(kind) if not name.startswith("_")
) | {"schedule", "finish", "credit", "abandon", "clear", "apply", "on_batch_end", "on_schedule", "add_request"}
"""Names of what ranks do themselves, and of what other simulators and engines call it."""
