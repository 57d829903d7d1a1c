"""LightLLM: prompts or decodes, never both; prompts when nobody is resident, or after 10 iterations of decodes.

Blocks of one token. A prompt is admitted while the sum of prompts is <= budget and the peak of KV is < all slots.
The peak: of P prompt, D output and g generated tokens a resident has run = P + g and left = max(0, D - g - 1); a
candidate run = P + 1 and left = max(0, D - 2). Sorted by falling left, peak = max over k of
left_k * k + run_1 + ... + run_k.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "a prompt waits for ten iterations of decodes",
        requests=((0, 3, 15), (500, 4, 2)),
        limits={"block_tokens": 1},
        steps=(
            Step({0: 3}),
            *[Step({0: 1})] * 10,  # 11 tokens
            Step({1: 4}),
            Step({0: 1, 1: 1}),  # 12 tokens; request 1 is done
            *[Step({0: 1})] * 3,
        ),
    ),
    Case(
        "the ten are counted anew after a prompt",
        requests=((0, 1, 24), (100, 1, 1), (12_000, 1, 1)),
        limits={"block_tokens": 1},
        steps=(
            Step({0: 1}),  # to 1001
            *[Step({0: 1})] * 10,  # to 11011
            Step({1: 1}),  # to 12012; request 2 comes at 12000
            *[Step({0: 1})] * 10,  # 21 tokens
            Step({2: 1}),
            *[Step({0: 1})] * 3,
        ),
    ),
    Case(
        "a prompt runs at once when nobody is resident",
        requests=((0, 3, 3), (500, 4, 2)),
        limits={"block_tokens": 1},
        steps=(Step({0: 3}), Step({0: 1}), Step({0: 1}), Step({1: 4}), Step({1: 1})),
    ),
    Case(
        "a peak of 15 fits 16 slots",
        # (run, left) = (6, 2), (7, 1): 2 + 6 = 8, 1 * 2 + 13 = 15 < 16
        requests=((0, 5, 4), (0, 6, 3)),
        limits={"block_tokens": 1, "usable_blocks": 16},
        steps=(Step({0: 5, 1: 6}), Step({0: 1, 1: 1}), Step({0: 1, 1: 1}), Step({0: 1})),
    ),
    Case(
        "a peak of 15 does not fit 15 slots",
        requests=((0, 5, 4), (0, 6, 3)),
        limits={"block_tokens": 1, "usable_blocks": 15},
        steps=(Step({0: 5}), *[Step({0: 1})] * 3, Step({1: 6}), *[Step({1: 1})] * 2),
    ),
    Case(
        "the peak is not the sum of the longest",
        # (3, 18), (11, 0): 18 + 3 = 21, 0 * 2 + 14 = 14: 21 < 22, where 11 + 21 = 32 tokens of KV would not fit
        requests=((0, 10, 2), (0, 2, 20)),
        limits={"block_tokens": 1, "usable_blocks": 22},
        steps=(Step({0: 10, 1: 2}), Step({0: 1, 1: 1}), *[Step({1: 1})] * 18),
    ),
    Case(
        "a resident counts with what it has generated: 24 of 25",
        # after 11 of 14 tokens: (4 + 11, 2), (7, 1): 2 + 15 = 17, 1 * 2 + 22 = 24 < 25
        requests=((0, 4, 14), (500, 6, 3)),
        limits={"block_tokens": 1, "usable_blocks": 25},
        steps=(
            Step({0: 4}),
            *[Step({0: 1})] * 10,
            Step({1: 6}),
            Step({0: 1, 1: 1}),
            Step({0: 1, 1: 1}),
            Step({0: 1}),
        ),
    ),
    Case(
        "a resident counts with what it has generated: 24 of 24",
        requests=((0, 4, 14), (500, 6, 3)),
        limits={"block_tokens": 1, "usable_blocks": 24},
        steps=(Step({0: 4}), *[Step({0: 1})] * 13, Step({1: 6}), *[Step({1: 1})] * 2),
    ),
    Case(
        "after a try in vain the next one is ten iterations later",
        # at first: (3, 24), (3, 14): 27, 28 + 6 = 34 < 36
        # after 11 tokens: (13, 14), (13, 4), (11, 0): 27, 8 + 26 = 34, 37 >= 36
        # after 21 of request 0, request 1 being done: (23, 4), (11, 0): 27, 34 < 36
        requests=((0, 2, 26), (0, 2, 16), (500, 10, 2)),
        limits={"block_tokens": 1, "usable_blocks": 36},
        steps=(
            Step({0: 2, 1: 2}),
            *[Step({0: 1, 1: 1})] * 10,
            *[Step({0: 1, 1: 1})] * 5,  # request 1 has 16; request 2 would fit from now on
            *[Step({0: 1})] * 5,
            Step({2: 10}),
            Step({0: 1, 2: 1}),
            *[Step({0: 1})] * 4,
        ),
    ),
    Case(
        "prompts are summed, not padded",
        # 3 + 5 + 6 + 2 = 16
        requests=((0, 3, 1), (0, 5, 1), (0, 6, 2), (0, 2, 1), (0, 1, 1)),
        limits={"block_tokens": 1, "budget": 16},
        steps=(Step({0: 3, 1: 5, 2: 6, 3: 2}), Step({2: 1}), Step({4: 1})),
    ),
    Case(
        "at most max_seqs requests are resident",
        requests=((0, 2, 2), (0, 2, 3), (0, 2, 1)),
        limits={"block_tokens": 1, "max_seqs": 2},
        steps=(Step({0: 2, 1: 2}), Step({0: 1, 1: 1}), Step({1: 1}), Step({2: 2})),
    ),
    Case(
        "a prompt longer than the budget, or a peak of all slots, is refused",
        # 8 + 11 = 19 < 20; 17 > 16; 8 + 12 = 20
        requests=((0, 8, 12), (0, 17, 1), (0, 8, 13)),
        limits={"block_tokens": 1, "budget": 16, "usable_blocks": 20},
        steps=(Step({0: 8}), *[Step({0: 1})] * 11),
        refused=(1, 2),
    ),
)
