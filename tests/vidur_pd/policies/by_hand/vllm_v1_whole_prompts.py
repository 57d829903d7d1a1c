"""vLLM V1 without chunked prefill: a prompt for which the rest of the budget has no room ends the admissions."""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "nobody passes a prompt that does not fit",
        requests=((0, 12, 2), (0, 10, 2), (0, 4, 1)),
        limits={"chunks_prompts": False, "budget": 20, "max_model_len": 20},
        steps=(Step({0: 12}), Step({0: 1, 1: 10, 2: 4}), Step({1: 1})),
    ),
    Case(
        "a prompt of just what is left fits",
        requests=((0, 7, 2), (0, 5, 2), (0, 10, 1)),
        limits={"chunks_prompts": False, "budget": 12, "max_model_len": 12},
        steps=(Step({0: 7, 1: 5}), Step({0: 1, 1: 1, 2: 10})),
    ),
    Case(
        "what is cached asks for no room",
        requests=((0, 16, 1), (0, 16, 2)),
        contents=((1, 2, 3), (1, 2, 3)),
        limits={"chunks_prompts": False, "caching": True, "budget": 20, "max_model_len": 20},
        steps=(Step({0: 16, 1: 4}, hits={1: 12}), Step({1: 1})),
    ),
    Case(
        "the threshold of long prompts splits them all the same",
        requests=((0, 16, 1), (0, 9, 1)),
        limits={"chunks_prompts": False, "threshold": 6, "budget": 20, "max_model_len": 20},
        steps=(Step({0: 6, 1: 6}), Step({0: 6, 1: 3}), Step({0: 4})),
    ),
    Case(
        "the first by priority holds up the others",
        requests=((0, 6, 4), (0, 5, 4), (10, 11, 1), (20, 2, 1)),
        limits={"chunks_prompts": False, "priorities": (1, 1, 0, 1), "budget": 12, "max_model_len": 12},
        steps=(
            Step({0: 6, 1: 5}),
            Step({0: 1, 1: 1}),  # request 2 needs 11 tokens, 10 are left
            Step({0: 1, 1: 1}),
            Step({0: 1, 1: 1}),
            Step({2: 11}),
            Step({3: 2}),
        ),
    ),
)
