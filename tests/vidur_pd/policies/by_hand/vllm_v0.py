"""vLLM before V1: prompts first, in batches of their own; otherwise all residents decode, in order of arrival.

A prompt of n in a batch is admitted while n * longest <= budget, and while its blocks leave the watermark free. A
decode asks for a free block whether it needs one or not; where there is none the latest resident that is not yet in
the batch loses its KV, and goes to the head of the queue as a prompt of all its tokens.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "prompts stall the decodes",
        requests=((0, 6, 4), (500, 5, 2), (1100, 7, 1)),
        limits={"budget": 32},
        steps=(
            Step({0: 6}),  # 0 to 1006; request 1 comes at 500
            Step({1: 5}),  # 1006 to 2011; request 2 comes at 1100
            Step({2: 7}),  # to 3018: request 0 has not got a token since 1006
            Step({0: 1, 1: 1}),
            Step({0: 1}),
            Step({0: 1}),
        ),
    ),
    Case(
        "prompts are counted as padded to the longest",
        # 1 x 3, 2 x 5 = 10, 3 x 6 = 18 > 16, although 3 + 5 + 6 + 2 = 16; then 1 x 6, 2 x 6 = 12
        requests=((0, 3, 1), (0, 5, 1), (0, 6, 2), (0, 2, 1)),
        limits={"budget": 16},
        steps=(Step({0: 3, 1: 5}), Step({2: 6, 3: 2}), Step({2: 1})),
    ),
    Case(
        "an admission leaves the watermark free",
        # 9 - 3 = 6, 6 - 4 = 2: just the watermark; 2 - 2 = 0 < 2
        requests=((0, 12, 2), (0, 16, 2), (0, 8, 1)),
        limits={"usable_blocks": 9, "watermark_blocks": 2},
        steps=(
            Step({0: 12, 1: 16}),
            Step({0: 1, 1: 1}),  # the watermark is for decodes: each takes a block, none is free; both are done
            Step({2: 8}),
        ),
    ),
    Case(
        "a decode asks for a free block though its last has room",
        # 2 + 2 of 4 blocks are held. Token 6 of request 0 has room in its second block.
        requests=((0, 5, 3), (0, 6, 2)),
        limits={"usable_blocks": 4},
        steps=(
            Step({0: 5, 1: 6}),
            Step({0: 1}, preempts=(1,)),
            Step({1: 7}),  # 6 + 1 generated in 2 blocks, before request 0 goes on; yields its second token
            Step({0: 1}),
        ),
    ),
    Case(
        "the latest arrival is the victim, and the head of the queue",
        # 2 blocks each of 7, one is free
        requests=((0, 8, 3), (0, 8, 3), (10, 8, 3), (2030, 4, 1)),
        limits={"usable_blocks": 7},
        steps=(
            Step({0: 8, 1: 8}),  # 0 to 1016
            Step({2: 8}),  # to 2024
            # request 0 takes the last block for token 9, request 1 asks for one: request 2 gives 2, 1 stays free
            Step({0: 1, 1: 1}, preempts=(2,)),  # to 3026; request 3 comes at 2030
            # request 2 (9 tokens) needs 3 blocks; request 3 needs the one that is free, and is not the head
            Step({0: 1, 1: 1}),
            Step({2: 9, 3: 4}),
            Step({2: 1}),
        ),
    ),
    Case(
        "the last in order preempts itself",
        # 2 + 2 of 5: request 0 takes the fifth, nobody comes after request 1
        requests=((0, 8, 2), (0, 8, 2)),
        limits={"usable_blocks": 5},
        steps=(Step({0: 8, 1: 8}), Step({0: 1}, preempts=(1,)), Step({1: 9})),
    ),
    Case(
        "alone in a pool that it fills, a request is recomputed for every token",
        # 13 to 16 tokens are all 4 blocks, and a decode asks for a fifth. (Vidur forms no batch after that, and none
        # later if nobody comes; here the rank asks once more where a decision only preempts.)
        requests=((0, 13, 4), (500, 13, 1)),
        limits={"usable_blocks": 4},
        steps=(
            Step({0: 13}),
            Step({0: 14}, preempts=(0,)),
            Step({0: 15}, preempts=(0,)),
            Step({0: 16}, preempts=(0,)),
            Step({1: 13}),
        ),
    ),
    Case(
        "several victims keep their order",
        # 4 blocks for 4 prompts of 4 tokens; each computes a fifth token after it
        requests=((0, 4, 3), (0, 4, 3), (0, 4, 3), (0, 4, 3)),
        limits={"usable_blocks": 4},
        steps=(
            Step({0: 4, 1: 4, 2: 4, 3: 4}),
            Step({0: 1, 1: 1}, preempts=(3, 2)),  # 0 takes the block of 3, 1 that of 2; queue 2, 3; none is free
            Step({0: 1}, preempts=(1,)),  # 0 needs none but asks for one; it is done and frees 2; queue 1, 2, 3
            Step({1: 6, 2: 5}),  # 2 blocks each; 1 is done and frees 2
            Step({3: 5}),  # before the decode of 2; none is free
            Step({2: 1}, preempts=(3,)),  # 2 is done
            Step({3: 6}),
        ),
    ),
    Case(
        "at most max_seqs requests are resident",
        requests=((0, 2, 2), (0, 2, 1), (0, 2, 1)),
        limits={"max_seqs": 2},
        steps=(
            Step({0: 2, 1: 2}),  # request 1 is done
            Step({2: 2}),
            Step({0: 1}),
        ),
    ),
    Case(
        "a prompt longer than the budget is refused, one of just its length is not",
        requests=((0, 16, 1), (0, 17, 1), (0, 4, 1), (0, 4, 1)),
        limits={"budget": 16},
        steps=(Step({0: 16}), Step({2: 4, 3: 4})),
        refused=(1,),
    ),
    Case(
        "what would never fit is refused",
        # request 0: 4 blocks of 5 leave 1; 1: 17 tokens are 5 blocks and leave 0; 2: its token 17 takes the last block,
        # and token 18 asks for a free one; 3: with tokens 15 and 16 it holds 4, and one is free
        requests=((0, 16, 1), (0, 17, 1), (0, 15, 4), (0, 14, 3)),
        limits={"usable_blocks": 5, "watermark_blocks": 1},
        steps=(Step({0: 16}), Step({3: 14}), Step({3: 1}), Step({3: 1})),
        refused=(1, 2),
    ),
    Case(
        "two stages: micro-batches of two, max_seqs counts both",
        requests=((0, 4, 2), (0, 4, 2), (0, 4, 2), (0, 4, 1), (0, 2, 2)),
        limits={"max_seqs": 4, "stages": 2},
        steps=(
            Step({0: 4, 1: 4}),  # first stage 0 to 1008, second to 2016
            Step({2: 4, 3: 4}),  # second stage 2016 to 3024
            Step({0: 1, 1: 1}),  # from 2016: four are resident, request 4 waits; second stage 3024 to 4026
            Step({4: 2}),  # from 3024: request 3 is done, and the prompt goes before the decode of request 2
            Step({2: 1}),  # from 4026
            Step({4: 1}),  # from 5028
        ),
    ),
    Case(
        "two stages: who is under way cannot be a victim",
        # 2 + 2 of 4 blocks. At 2016 request 0 asks for one; request 1 is later, but under way until 3024.
        requests=((0, 8, 2), (0, 8, 3)),
        limits={"max_seqs": 2, "stages": 2, "usable_blocks": 4},
        steps=(
            Step({0: 8}),
            Step({1: 8}),
            Step({1: 1}, preempts=(0,)),  # request 0 (9 tokens) needs 3 of the 2, then 1 free
            Step({1: 1}),
            Step({0: 9}),
        ),
    ),
)
