"""Sarathi: every batch is a chunk of ``budget`` tokens, of decodes, then begun prompts, then new ones.

A new prompt takes the blocks of all its tokens with its first chunk, and leaves the watermark free. Decodes ask for
a free block, and find victims, as in vLLM before V1; a victim heads the queue, which is read in the same decision.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "prompts are cut into chunks, and what is left of one goes to the next",
        requests=((0, 20, 3), (0, 5, 2)),
        limits={"budget": 8},
        steps=(
            Step({0: 8}),  # nothing is left for request 1
            Step({0: 8}),
            Step({0: 4, 1: 4}),
            Step({0: 1, 1: 1}),  # the last token of the prompt of request 1
            Step({0: 1, 1: 1}),
        ),
    ),
    Case(
        "decodes are not stalled by prompts",
        # the requests of "prompts stall the decodes" of vLLM
        requests=((0, 6, 4), (500, 5, 2), (1100, 7, 1)),
        limits={"budget": 32},
        steps=(Step({0: 6}), Step({0: 1, 1: 5}), Step({0: 1, 1: 1, 2: 7}), Step({0: 1})),
    ),
    Case(
        "decodes first, then begun prompts, then new ones",
        requests=((0, 3, 5), (1100, 10, 2), (1200, 4, 2)),
        limits={"budget": 6, "max_seqs": 6},
        steps=(
            Step({0: 3}),  # to 1003
            Step({0: 1}),  # to 2004; requests 1 and 2 come
            Step({0: 1, 1: 5}),
            Step({0: 1, 1: 5}),  # request 2 waits for the begun prompt
            Step({0: 1, 1: 1, 2: 4}),  # requests 0 and 1 are done
            Step({2: 1}),
        ),
    ),
    Case(
        "a share of one token, and none",
        # a chunk of 3 for up to 3 requests: decodes leave a token of it for a new prompt, and never less while one may
        # join (Vidur lets decodes overdraw a smaller chunk; here an engine with max_seqs > chunk is refused)
        requests=((0, 1, 6), (0, 1, 3), (0, 2, 2), (0, 1, 1)),
        limits={"budget": 3, "max_seqs": 3},
        steps=(
            Step({0: 1, 1: 1, 2: 1}),
            Step({0: 1, 1: 1, 2: 1}),  # the begun prompt has the one token that the decodes leave
            Step({0: 1, 1: 1, 2: 1}),  # request 3 has neither a place nor a token; requests 1 and 2 are done
            Step({0: 1, 3: 1}),
            Step({0: 1}),
            Step({0: 1}),
        ),
    ),
    Case(
        "a prompt is admitted with the blocks of all its tokens",
        # request 0 holds 4 of 6 blocks. Of the second chunk 2 tokens are left, but request 1 needs 3 blocks.
        requests=((0, 14, 2), (0, 12, 1)),
        limits={"budget": 8, "usable_blocks": 6},
        steps=(Step({0: 8}), Step({0: 6}), Step({0: 1}), Step({1: 8}), Step({1: 4})),
    ),
    Case(
        "an admission leaves the watermark free",
        # 5 - 2 = 3, 3 - 3 = 0 < 1: though 8 tokens of the chunk are left
        requests=((0, 8, 2), (0, 12, 1)),
        limits={"budget": 16, "usable_blocks": 5, "watermark_blocks": 1},
        steps=(Step({0: 8}), Step({0: 1}), Step({1: 12})),
    ),
    Case(
        "a half-prefilled prompt is the victim, and begins again",
        requests=((0, 7, 4), (500, 16, 1)),
        limits={"budget": 8, "usable_blocks": 6},
        steps=(
            Step({0: 7}),
            Step({0: 1, 1: 7}),  # token 8 has room; request 1 takes the 4 blocks that are left
            # token 9 needs a block: request 1 gives 4, 3 stay free. (Vidur would restart request 1 as a prompt of the 7
            # tokens computed and take the other 9 for output; the prompt is still 16 tokens, 4 blocks.)
            Step({0: 1}, preempts=(1,)),
            Step({0: 1}),
            Step({1: 8}),
            Step({1: 8}),
        ),
    ),
    Case(
        "a victim may come back in the same decision",
        # 2 + 2 of 5 blocks, then 3 + 2: every decode of request 0 asks for a block that it does not need, takes the
        # begun prompt of request 1 for it, and request 1 begins again with the 2 blocks that it had
        requests=((0, 8, 4), (500, 8, 2)),
        limits={"budget": 8, "usable_blocks": 5},
        steps=(
            Step({0: 8}),
            Step({0: 1, 1: 7}),  # token 9: a third block; request 1 takes the other 2
            Step({0: 1, 1: 7}, preempts=(1,)),
            Step({0: 1, 1: 7}, preempts=(1,)),  # request 0 is done
            Step({1: 1}),
            Step({1: 1}),
        ),
    ),
    Case(
        "alone in a pool that it fills, a request is recomputed for every token",
        # 13 to 16 tokens are all 4 blocks, and a decode asks for a fifth; it comes back in the same decision
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
        "the last token of a prompt that is recomputed is no decode",
        # one block of 16, and none free for a decode. 8 + 1 tokens are recomputed in chunks of 8 and 1, 8 + 2 in 8 and
        # 2: a begun prompt holds the blocks of all its tokens, and asks for none
        requests=((0, 8, 3),),
        limits={"block_tokens": 16, "usable_blocks": 1, "budget": 8},
        steps=(
            Step({0: 8}),
            Step({0: 8}, preempts=(0,)),
            Step({0: 1}),
            Step({0: 8}, preempts=(0,)),
            Step({0: 2}),
        ),
    ),
    Case(
        "the last in order preempts itself",
        requests=((0, 8, 2), (0, 8, 2)),
        limits={"budget": 64, "usable_blocks": 5},
        steps=(Step({0: 8, 1: 8}), Step({0: 1}, preempts=(1,)), Step({1: 9})),
    ),
    Case(
        "at most max_seqs requests are resident",
        requests=((0, 2, 3), (0, 2, 1), (0, 2, 1)),
        limits={"budget": 16, "max_seqs": 2},
        steps=(Step({0: 2, 1: 2}), Step({0: 1, 2: 2}), Step({0: 1})),
    ),
    Case(
        "outputs of one token end with the prompt",
        requests=((0, 4, 1), (0, 4, 1), (0, 4, 1)),
        limits={"budget": 10},
        steps=(Step({0: 4, 1: 4, 2: 2}), Step({2: 2})),
    ),
    Case(
        "two stages: chunks of micro-batches of two",
        requests=((0, 12, 2), (0, 4, 3), (0, 3, 1), (0, 5, 2)),
        limits={"budget": 8, "max_seqs": 4, "stages": 2},
        steps=(
            Step({0: 8}),  # first stage 0 to 1008, second to 2016
            Step({1: 4, 2: 3}),  # two of them, a token of the chunk is left; second stage 2016 to 3023
            Step({0: 4, 3: 4}),  # from 2016; second stage 3024 to 4032
            Step({1: 1}),  # from 3023; request 2 is done; second stage 4032 to 5033
            Step({0: 1, 3: 1}),  # from 4032; second stage 5034 to 6036
            Step({1: 1}),  # from 5033
            Step({3: 1}),  # from 6036
        ),
    ),
    Case(
        "two stages: who is under way cannot be a victim",
        # 2 + 2 of 4 blocks. At 2016 request 0 asks for one; request 1 is later, but under way until 3024.
        requests=((0, 8, 2), (0, 8, 3)),
        limits={"max_seqs": 2, "stages": 2, "usable_blocks": 4},
        steps=(Step({0: 8}), Step({1: 8}), Step({1: 1}, preempts=(0,)), Step({1: 1}), Step({0: 9})),
    ),
)
