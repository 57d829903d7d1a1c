"""Orca: iteration-level batching. Requests join and leave at every iteration, prefill and decode in one batch.

Residents first, in the order in which their last iterations ended, then whole prompts from the queue. A request is
reserved the blocks of ``max_model_len`` tokens until it ends. No token budget. With s pipeline stages a micro-batch
has at most ``max_seqs // s`` requests.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "prompts join the decodes",
        requests=((0, 5, 4), (500, 6, 2), (1500, 3, 1)),
        limits={"max_model_len": 16, "max_seqs": 4},
        steps=(
            Step({0: 5}),  # 0 to 1005; request 1 comes at 500
            Step({0: 1, 1: 6}),  # 1005 to 2012; request 2 comes at 1500
            Step({0: 1, 1: 1, 2: 3}),  # requests 1 and 2 are done
            Step({0: 1}),
        ),
    ),
    Case(
        "fragmentation: tokens are free, reservations are not",
        # 4 blocks each of 9: two fit. Their KV is 2 of 9 blocks when request 2, which needs one, is left waiting.
        requests=((0, 4, 2), (0, 4, 3), (0, 4, 1)),
        limits={"max_model_len": 16, "usable_blocks": 9},
        steps=(
            Step({0: 4, 1: 4}),
            Step({0: 1, 1: 1}),  # request 0 ends and frees its 4
            Step({1: 1, 2: 4}),
        ),
    ),
    Case(
        "a batch holds at most max_seqs requests",
        requests=((0, 2, 3), (0, 3, 1), (0, 4, 2), (0, 1, 1)),
        limits={"max_model_len": 16, "max_seqs": 2},
        steps=(
            Step({0: 2, 1: 3}),  # request 1 is done
            Step({0: 1, 2: 4}),
            Step({0: 1, 2: 1}),  # both are done
            Step({3: 1}),
        ),
    ),
    Case(
        "prompts know no token budget, outputs of one token end with them",
        requests=((0, 30, 1), (0, 12, 1), (0, 1, 2)),
        limits={"max_model_len": 40, "budget": 10},
        steps=(Step({0: 30, 1: 12, 2: 1}), Step({2: 1})),
    ),
    Case(
        "residents go first, in order",
        requests=((0, 2, 4), (0, 2, 4), (100, 2, 2), (1100, 2, 1)),
        limits={"max_model_len": 16, "max_seqs": 3},
        steps=(
            Step({0: 2, 1: 2}),  # 0 to 1004
            Step({0: 1, 1: 1, 2: 2}),  # 1004 to 2008; request 3 comes, and waits for a place
            Step({0: 1, 1: 1, 2: 1}),  # request 2 is done
            Step({0: 1, 1: 1, 3: 2}),  # all are done
        ),
    ),
    Case(
        "two stages: micro-batches of two, a place in one is taken by who waits",
        requests=((0, 4, 2), (0, 4, 3), (0, 2, 2), (0, 6, 1), (0, 3, 1)),
        limits={"max_model_len": 16, "max_seqs": 4, "stages": 2},
        steps=(
            Step({0: 4, 1: 4}),  # first stage 0 to 1008, second to 2016
            Step({2: 2, 3: 6}),  # second stage 2016 to 3024
            Step({0: 1, 1: 1}),  # from 2016: full, request 4 waits; second stage 3024 to 4026
            Step({2: 1, 4: 3}),  # from 3024: request 3 is done; second stage 4028 to 5032
            Step({1: 1}),  # from 4026: request 0 is done
        ),
    ),
    Case(
        "two stages and three sequences make micro-batches of one",
        requests=((0, 2, 2), (0, 3, 1), (0, 4, 1)),
        limits={"max_model_len": 16, "max_seqs": 3, "stages": 2},
        steps=(
            Step({0: 2}),  # ends at 2004
            Step({1: 3}),  # ends at 3008
            Step({0: 1}),  # the resident before request 2
            Step({2: 4}),
        ),
    ),
    Case(
        "the reservation is rounded up to whole blocks",
        # 18 tokens are 5 blocks: one of two fits into 9. Vidur takes 18 // 4 = 4, which 17 tokens of KV would overflow.
        requests=((0, 4, 2), (0, 4, 2)),
        limits={"max_model_len": 18, "usable_blocks": 9},
        steps=(Step({0: 4}), Step({0: 1}), Step({1: 4}), Step({1: 1})),
    ),
    Case(
        "who comes at the instant when an iteration ends joins the next",
        requests=((0, 5, 3), (1005, 4, 2), (1006, 4, 1)),
        limits={"max_model_len": 16},
        steps=(
            Step({0: 5}),  # to 1005
            Step({0: 1, 1: 4}),
            Step({0: 1, 1: 1, 2: 4}),
        ),
    ),
)
