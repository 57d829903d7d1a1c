"""Host of an engine from the parts of its steps: medians and differences of medians, nothing of tokens' times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, quantiles

from aicb.iteration.drafting_host import UNMEASURED, DraftingHost
from aicb.iteration.host import OF_WORKERS, HostModel, slowest_of
from aicb.iteration.launches import Launches
from aicb.profiling.engine_host.parts import Step, middle_us
from boundary.errors import InputError


def host_of(
    steps: Sequence[Step],
    launches: Launches,
    request_latency_us: float,
    tp: int = 1,
    dp: int = 1,
    slowest_rank_factor: float = 1.0,
    drafting: DraftingHost = UNMEASURED,
) -> HostModel:
    """The times of a host, of a worker in the mean, whatever the model (`aicb.iteration.launches`).

    Steps have the times of the slowest of ``tp`` workers, of all ranks; what that is longer is taken off, so that the
    slowest of all is as slow as recorded (`HostModel.speed_spread`). With several, hand-over and agreement are apart;
    gathering logits cannot be separated from sampling and stays in it. Drafting is no part of sampling, and what
    preparing takes more where drafts are verified is taken off.

    Args:
        steps: decodes of one request and of more in full graphs, prompts alone within the captured sizes and beyond.
        launches: of the stage that ran.
        request_latency_us: from the client to the scheduler, and from a result to the client.
        tp, dp: workers of a data-parallel rank, and ranks that share experts.
        slowest_rank_factor: how many times longer the slowest rank takes than the steps of all in the median.
        drafting: of an engine with drafts.

    Raises:
        InputError: a kind of step is missing.
    """
    one = _only(steps, "decodes of one request", lambda step: step.mode == "full" and step.requests == 1)
    many = _only(steps, "decodes of several requests", lambda step: step.mode == "full" and step.requests > 1)
    pieces = _only(steps, "prompts in pieces", lambda step: step.mode == "piecewise" and step.requests == 1)
    eager = _only(steps, "eager prompts", lambda step: step.mode == "eager" and step.requests == 1)
    most = max(step.requests for step in many)
    fullest = [step for step in many if step.requests == most]
    longest = max(step.tokens for step in eager)
    long, short = [step for step in eager if step.tokens == longest], pieces
    shortest = min(step.tokens for step in short)
    short = [step for step in short if step.tokens == shortest]
    token_us = max(0.0, (_preparing_us(long) - _preparing_us(short)) / (longest - shortest))
    replay_us, launch_us = middle_us(one, "launch_s"), middle_us(eager, "launch_s") / launches.eager_time
    decode_us = _preparing_us(one) - launch_us * (drafting.preparing + drafting.request)
    fullest_us = _preparing_us(fullest) - launch_us * (drafting.preparing + drafting.request * most)
    prompt_us = _preparing_us(short) - token_us * shortest - decode_us
    found = HostModel(
        launch_us=replay_us,
        piece_launch_us=(middle_us(pieces, "launch_s") - replay_us) / launches.pieces_time,
        eager_launch_us=launch_us,
        prepare_us=max(0.0, decode_us - launch_us * launches.preparing),
        prompt_us=max(0.0, prompt_us - launch_us * launches.prompt_preparing),
        prompt_token_us=token_us,
        request_us=max(0.0, (fullest_us - decode_us) / (most - 1)),
        sample_us=median(step.sample_s - _taken_s(step, "draft") for step in one) * 1e6,
        request_latency_us=request_latency_us,
    )
    if tp * dp == 1:
        return found
    slowest = slowest_of(tp * dp, found.speed_spread) / slowest_rank_factor
    return replace(
        found,
        **{name: getattr(found, name) / slowest for name in OF_WORKERS},
        hand_over_us=middle_us(eager, "hand_over_s"),
        agree_us=median(_taken_s(step, "agree") for step in one) * 1e6 if dp > 1 else None,
        logits_us=0.0 if tp > 1 else None,
    )


def launch_range_us(steps: Sequence[Step], launches: Launches, tp: int = 1) -> tuple[float, float]:
    """10th and 90th percentile of a launch over eager prompts, of a worker in the mean [µs].

    Where they are 1.4 times apart and more, the processor had several speeds meanwhile (`aicb.iteration.host`).
    """
    eager = _only(steps, "eager prompts", lambda step: step.mode == "eager" and step.requests == 1)
    unit = launches.eager_time * slowest_of(tp, HostModel().speed_spread) * 1e-6
    tenths = quantiles((step.launch_s / unit for step in eager), n=10, method="inclusive")
    return tenths[0], tenths[-1]


def _preparing_us(steps: Sequence[Step]) -> float:
    """From the result before to the forward pass, without agreeing with other ranks and without hand-over to a worker,
    which waits for the step before."""
    return median(step.schedule_s + step.prepare_s - _taken_s(step, "agree") + step.output_s for step in steps) * 1e6


def _taken_s(step: Step, call: str) -> float:
    return step.calls.get(call, (0, 0.0))[1]


def _only(steps: Sequence[Step], what: str, is_wanted: Callable[[Step], bool]) -> list[Step]:
    wanted = [step for step in steps if is_wanted(step)]
    if not wanted:
        raise InputError(f"steps: found none that are {what}, expected some")
    return wanted
