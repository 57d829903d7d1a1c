"""Splitwise's machines: prompts first and whole, with the decodes that still fit; others wait with their KV.

Rules: ``SplitwiseInstance`` in ``instance.py`` of github.com/Mutinifni/splitwise-sim (8f99e7d). A batch has at most
``budget`` tokens and ``max_seqs`` requests. Order: left out by four iterations; prompts; decodes that the iteration
before has left out; its decodes, by when they joined; others by arrival. A prompt takes blocks for its tokens, a decode
that begins for all P + D - 1. Blocks have 4 tokens.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "prompts join the decodes",
        requests=((0, 5, 4), (500, 6, 2), (1500, 3, 1)),
        steps=(
            Step({0: 5}),  # 0 to 1005; request 1 comes at 500
            Step({1: 6, 0: 1}),  # prompts first
            Step({2: 3, 0: 1, 1: 1}),  # the decode of the batch before, then the one that begins
            Step({0: 1}),
        ),
    ),
    Case(
        "a prompt pauses the latest decodes, which keep their KV and go on first",
        requests=((0, 2, 5), (0, 2, 5), (0, 2, 5), (2000, 8, 2)),
        limits={"budget": 10},
        steps=(
            Step({0: 2, 1: 2, 2: 2}),  # 0 to 1006
            Step({0: 1, 1: 1, 2: 1}),  # to 2009; request 3 comes at 2000
            Step({3: 8, 0: 1, 1: 1}),  # 10 tokens: request 2 is left out
            Step({2: 1, 0: 1, 1: 1, 3: 1}),  # it goes before the others
            Step({0: 1, 1: 1, 2: 1}),  # the order is that of joining: 2 has joined last; 0 and 1 are done
            Step({2: 1}),
        ),
    ),
    Case(
        "who has been left out four times goes before prompts",
        # A prompt of 10 fills each batch; one comes in each iteration, which takes 1010.
        requests=((0, 2, 2), (900, 10, 1), (1900, 10, 1), (2900, 10, 1), (3900, 10, 1), (4900, 10, 1)),
        limits={"budget": 10},
        steps=(
            Step({0: 2}),  # 0 to 1002
            Step({1: 10}),  # to 2012
            Step({2: 10}),  # to 3022
            Step({3: 10}),  # to 4032
            Step({4: 10}),  # to 5042; request 0 has been left out four times
            Step({0: 1}),  # 9 tokens are left, too few for the prompt of request 5
            Step({5: 10}),
        ),
    ),
    Case(
        "a prompt beyond the budget is computed alone, in chunks",
        requests=((0, 2, 4), (500, 25, 1)),
        limits={"budget": 10},
        steps=(
            Step({0: 2}),
            Step({1: 10}),
            Step({1: 10}),
            Step({1: 5, 0: 1}),
            Step({0: 1}),
            Step({0: 1}),
        ),
    ),
    Case(
        "a decode begins only with blocks for all of its output",
        # 5 blocks. Request 0 has 4 + 8 - 1 = 11 tokens, 3 blocks; request 1 has 1 block for its prompt and 2 for its
        # 4 + 3 - 1 tokens in all; request 2 has 1 block for 3 and for 3 + 2 - 1.
        requests=((0, 4, 8), (0, 4, 3), (0, 3, 2)),
        limits={"usable_blocks": 5, "budget": 8},
        steps=(
            Step({0: 4, 1: 4}),  # 2 blocks; 8 tokens, no room for the prompt of request 2
            Step({2: 3, 0: 1}),  # 1 + 2 more, all 5 are taken; request 1 lacks its second
            *[Step({0: 1})] * 6,  # request 2 has the one block that it needs, but is behind request 1; 0 is done
            Step({1: 1, 2: 1}),
            Step({1: 1}),
        ),
    ),
    Case(
        "prompts have taken all blocks: the latest gives its own up",
        requests=((0, 4, 5), (0, 4, 5)),
        limits={"usable_blocks": 2},
        steps=(
            Step({0: 4, 1: 4}),  # each decode lacks a block
            Step({0: 1}, preempts=(1,)),
            Step({0: 1}),
            Step({0: 1}),
            Step({0: 1}),
            Step({1: 5}),
            Step({1: 1}),
            Step({1: 1}),
            Step({1: 1}),
        ),
    ),
    Case(
        "a batch holds at most max_seqs requests",
        requests=((0, 2, 3), (0, 3, 1), (0, 4, 2)),
        limits={"max_seqs": 2},
        steps=(
            Step({0: 2, 1: 3}),
            Step({2: 4, 0: 1}),
            Step({0: 1, 2: 1}),
        ),
    ),
)
