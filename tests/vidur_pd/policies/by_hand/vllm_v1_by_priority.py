"""vLLM V1 by priority: the queue goes by (priority, arrival), the smaller first; a victim is the last in that order.

A victim may stand before the request that lacks a block. If it takes part in the step, its tokens are free again.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "the smaller number goes first, then who came first",
        requests=((0, 4, 1), (10, 4, 1), (20, 4, 1), (30, 4, 1)),
        limits={"priorities": (1, 1, 0, 0), "max_seqs": 1},
        steps=(Step({0: 4}), Step({2: 4}), Step({3: 4}), Step({1: 4})),
    ),
    Case(
        "the victim may stand before the one that lacks a block",
        requests=((0, 8, 3), (500, 8, 3)),
        limits={"priorities": (2, 0), "usable_blocks": 5},
        steps=(
            Step({0: 8}),
            Step({0: 1, 1: 8}),  # 3 + 2 blocks
            Step({1: 1}, preempts=(0,)),  # token 10 of request 0 was to run
            Step({1: 1}),  # request 0 has 10 tokens, 3 blocks; 2 are free
            Step({0: 10}),
        ),
    ),
    Case(
        "tokens of a victim are free for those behind",
        requests=((0, 2, 5), (10, 4, 3), (20, 8, 1)),
        limits={"priorities": (2, 0, 1), "budget": 4, "usable_blocks": 4},
        steps=(
            Step({0: 2}),
            Step({0: 1, 1: 3}),
            Step({0: 1, 1: 1, 2: 2}),  # a block each, one is free
            # request 0 takes it, request 1 lacks one; 4 - 1 tokens are left for request 2, not 2
            Step({1: 1, 2: 3}, preempts=(0,)),
            Step({1: 1, 2: 3}),
            Step({0: 4}),
            Step({0: 1}),
            Step({0: 1}),
        ),
    ),
    Case(
        "the last by priority gives up its own KV, though it heads the running list",
        requests=((0, 4, 6), (500, 12, 3), (600, 9, 1)),
        limits={"priorities": (2, 0, 1), "budget": 6, "usable_blocks": 8},
        steps=(
            Step({0: 4}),
            Step({0: 1, 1: 5}),
            Step({0: 1, 1: 5}),
            Step({0: 1, 1: 2, 2: 3}),  # 2 + 3 + 1 blocks
            Step({0: 1, 1: 1, 2: 4}),  # 2 + 4 + 2
            Step({1: 1, 2: 2}, preempts=(0,)),  # for token 9; a decision without a batch, and at once another
            Step({0: 6}),
            Step({0: 3}),
        ),
    ),
    Case(
        "two batches in flight: a victim that ends costs the one behind its turn",
        requests=((0, 2, 3), (10, 4, 2), (10, 3, 2)),
        limits={"priorities": (2, 0, 1), "usable_blocks": 3, "plans_ahead": True},
        steps=(
            Step({0: 2}),
            Step({0: 1}),  # decided at 0 as well
            Step({0: 1, 1: 4, 2: 3}),  # the last token of request 0
            Step({1: 1}, preempts=(0,)),  # request 0 gives its block for token 5; request 2 has one, and is left out
            Step({2: 1}),
        ),
    ),
)
