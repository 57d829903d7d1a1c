"""vLLM V1, first come, first served: running requests in order of admission, then, unless one was preempted, others.

A request is admitted with free blocks for its whole sequence, a victim is the last of the running list and heads the
queue. With asynchronous scheduling a step is decided when the one before begins.
"""

from tests.vidur_pd.policies.by_hand.case import Case, Step

CASES = (
    Case(
        "decodes come with chunks of prompts",
        requests=((0, 20, 2), (0, 5, 2)),
        limits={"budget": 8},
        steps=(
            Step({0: 8}),
            Step({0: 8}),
            Step({0: 4, 1: 4}),
            Step({0: 1, 1: 1}),  # the last token of the prompt of request 1
            Step({1: 1}),
        ),
    ),
    Case(
        "chunks follow each other through a pipeline",
        # the first stage is free after 1008 ps, 2016, 3024; the last chunk of request 0 leaves the second at 4032
        requests=((0, 20, 2), (0, 5, 1)),
        limits={"budget": 8, "stages": 2, "pipelines_chunks": True},
        steps=(
            Step({0: 8}),
            Step({0: 8}),
            Step({0: 4, 1: 4}),
            Step({1: 1}),  # request 0 waits for its token
            Step({0: 1}),
        ),
    ),
    Case(
        "the threshold of long prompts leaves room for those behind",
        requests=((0, 12, 2), (0, 7, 1), (0, 3, 2)),
        limits={"budget": 20, "threshold": 5},
        steps=(Step({0: 5, 1: 5, 2: 3}), Step({0: 5, 1: 2, 2: 1}), Step({0: 2}), Step({0: 1})),
    ),
    Case(
        "the last of the running list loses its KV, be it the one that lacks a block",
        # 2 + 2 + 1 of 5 blocks; request 2 is done after the first step
        requests=((0, 8, 4), (0, 8, 4), (0, 4, 1)),
        limits={"usable_blocks": 5},
        steps=(
            Step({0: 8, 1: 8, 2: 4}),
            Step({0: 1}, preempts=(1,)),  # token 9: the free block goes to request 0
            Step({0: 1}),  # request 1 has 9 tokens, 3 blocks; 2 are free
            Step({0: 1}),
            Step({1: 9}),
            Step({1: 1}),
            Step({1: 1}),
        ),
    ),
    Case(
        "a step that preempts admits nobody, and a victim heads the queue",
        requests=((0, 8, 3), (0, 8, 3), (500, 4, 1)),
        limits={"usable_blocks": 4},
        steps=(
            Step({0: 8, 1: 8}),
            Step({0: 1}, preempts=(1,)),  # of the 2 blocks of request 1 one is left, which request 2 would need
            Step({0: 1}),  # request 1 needs 3 blocks, and nobody passes it
            Step({1: 9, 2: 4}),
            Step({1: 1}),
        ),
    ),
    Case(
        "an admission leaves the watermark free while something runs",
        # 5 - 2 = 3 blocks; 3 + 1 are asked for. The last prompt needs all 5, when nothing runs.
        requests=((0, 8, 2), (0, 12, 1), (0, 20, 1)),
        limits={"usable_blocks": 5, "watermark_blocks": 1},
        steps=(Step({0: 8}), Step({0: 1}), Step({1: 12}), Step({2: 20})),
    ),
    Case(
        "full blocks of an equal prefix are hit, short of the last token",
        # ids stand for 6 tokens: requests 0 and 1 share 12, which are 3 blocks
        requests=((0, 14, 2), (0, 14, 2), (5000, 12, 1)),
        contents=((1, 2, 3), (1, 2, 9), (1, 2)),
        limits={"caching": True},
        steps=(
            Step({0: 14, 1: 2}, hits={1: 12}),  # in the step that computes them
            Step({0: 1, 1: 1}),
            Step({2: 4}, hits={2: 8}),  # its last token has to be computed: so has the block that it is in
        ),
    ),
    Case(
        "a victim hits what it has left",
        requests=((0, 8, 4), (0, 8, 3)),
        contents=((1, 1), (2, 2)),
        limits={"caching": True, "usable_blocks": 5},
        steps=(
            Step({0: 8, 1: 8}),
            Step({0: 1}, preempts=(1,)),
            Step({0: 1}),  # 9 tokens: 2 blocks with its content and one more, where 2 are free
            Step({0: 1}),
            Step({1: 1}, hits={1: 8}),
            Step({1: 1}),
        ),
    ),
    Case(
        "two batches in flight: who comes during a step joins the next but one",
        requests=((0, 12, 3), (0, 6, 2), (1500, 3, 1)),
        limits={"budget": 8, "plans_ahead": True},
        steps=(
            Step({0: 8}),  # 0 to 1008
            Step({0: 4, 1: 4}),  # decided at 0; to 2016
            Step({0: 1, 1: 2}),  # decided at 1008
            Step({0: 1, 1: 1, 2: 3}),  # decided at 2016
        ),
    ),
)
