"""FasterTransformer: a batch is served to its last token before another begins.

A request is reserved the blocks of ``max_model_len`` tokens from its admission to the end of its whole batch. No
token budget. With s pipeline stages there are s batches of at most ``max_seqs // s`` requests.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "nobody joins a batch under way, and finished rows stay empty",
        requests=((0, 5, 3), (0, 3, 2), (100, 4, 2)),
        limits={"max_model_len": 16, "max_seqs": 4},
        steps=(
            Step({0: 5, 1: 3}),  # 0 to 1008 ps; request 2 comes at 100
            Step({0: 1, 1: 1}),  # request 1 has its 2 tokens
            Step({0: 1}),  # a row and 3 sequences are free, request 2 waits all the same
            Step({2: 4}),
            Step({2: 1}),
        ),
    ),
    Case(
        "a batch holds at most max_seqs requests",
        requests=((0, 4, 2), (0, 4, 1), (0, 4, 2)),
        limits={"max_model_len": 16, "max_seqs": 2},
        steps=(Step({0: 4, 1: 4}), Step({0: 1}), Step({2: 4}), Step({2: 1})),
    ),
    Case(
        "a request reserves blocks for the longest sequence",
        # 16 // 4 = 4 blocks each: 2 x 4 of 9, the ninth block is left over, and request 2 (5 tokens: 2 blocks) waits
        requests=((0, 4, 2), (0, 4, 2), (0, 4, 2)),
        limits={"max_model_len": 16, "usable_blocks": 9},
        steps=(Step({0: 4, 1: 4}), Step({0: 1, 1: 1}), Step({2: 4}), Step({2: 1})),
    ),
    Case(
        "the reservation is rounded up to whole blocks",
        # 18 tokens are 5 blocks: one of two fits into 9. Vidur takes 18 // 4 = 4, which 17 tokens of KV would overflow.
        requests=((0, 4, 2), (0, 4, 2)),
        limits={"max_model_len": 18, "usable_blocks": 9},
        steps=(Step({0: 4}), Step({0: 1}), Step({1: 4}), Step({1: 1})),
    ),
    Case(
        "outputs of one token end with the prompt",
        requests=((0, 3, 1), (0, 3, 1), (0, 3, 1), (10_000, 2, 1)),
        limits={"max_model_len": 16, "max_seqs": 2},
        steps=(
            Step({0: 3, 1: 3}),
            Step({2: 3}),  # ends at 2009 ps, the rank is idle until 10000
            Step({3: 2}),
        ),
    ),
    Case(
        "prompts know no token budget",
        requests=((0, 30, 1), (0, 12, 2)),
        limits={"max_model_len": 32, "budget": 10},
        steps=(Step({0: 30, 1: 12}), Step({1: 1})),
    ),
    Case(
        "two stages serve two batches of two",
        requests=((0, 4, 3), (0, 4, 1), (0, 2, 2), (0, 2, 2), (0, 3, 1)),
        limits={"max_model_len": 16, "max_seqs": 4, "stages": 2},
        steps=(
            Step({0: 4, 1: 4}),  # first stage 0 to 1008, second to 2016
            Step({2: 2, 3: 2}),  # first stage 1008 to 2012, second 2016 to 3020
            Step({0: 1}),  # from 2016 to 4021; request 1 is done, and request 4 does not take its row
            Step({2: 1, 3: 1}),  # from 3020 to 5024: the second batch ends
            Step({0: 1}),  # from 4021, ends at 6025
            Step({4: 3}),  # from 5024
        ),
    ),
    Case(
        "a finished request's reservation lasts until its batch ends",
        # 2 x 4 blocks are all 8: there is no second micro-batch, not even when request 1 is done after the first step
        requests=((0, 4, 3), (0, 4, 1), (0, 4, 1)),
        limits={"max_model_len": 16, "max_seqs": 4, "stages": 2, "usable_blocks": 8},
        steps=(Step({0: 4, 1: 4}), Step({0: 1}), Step({0: 1}), Step({2: 4})),
    ),
)
