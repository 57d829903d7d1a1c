"""FasterTransformer, as Vidur has it: batches that stay as they began until their last request ends."""

from __future__ import annotations

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policies.orca import check_reservation, has_room, line
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class FasterTransformer(Policy):
    """A batch computes its prompts whole, then decodes; requests that end leave a gap.

    Only where no batch is left to go on with does another one form, one per pipeline stage.

    Blocks for ``engine.max_model_len`` are reserved per request. Those of a request return when it ends, which changes
    no decision: no batch forms before the last of them has ended, or on another pipeline stage.
    """

    has_token_budget = False

    def __init__(self) -> None:
        self._batches: list[list[RequestView]] = []
        """In the order in which they come out of their iterations."""

    def begin(self, rank: RankView) -> None:
        check_reservation(rank, "faster_transformer")

    def decide(self, rank: RankView, decision: Decision) -> None:
        running = {request.index for request in rank.running}
        left = [[request for request in batch if request.index in running] for batch in self._batches]
        self._batches = [batch for batch in left if batch]
        batch = next((batch for batch in self._batches if not all(request.is_in_iteration for request in batch)), None)
        if batch is None:
            batch = self._form(rank, decision) if len(self._batches) < rank.pipeline_stages else []
        else:
            self._batches.remove(batch)
            for request in batch:
                if not request.is_in_iteration:
                    decision.run(request, rank.most_tokens(request))
        if batch:
            self._batches.append(batch)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody joins a batch; with pipeline stages nothing is asked."""
        return rank.running_requests > 0

    def _form(self, rank: RankView, decision: Decision) -> list[RequestView]:
        batch: list[RequestView] = []
        for request in line(rank, decision):
            is_full = len(batch) == residents.micro_batch(rank) or rank.running_requests == rank.max_seqs
            if is_full or not has_room(rank, request):
                break
            decision.run(request, rank.most_tokens(request), held_tokens=rank.max_model_len)
            batch.append(request)
        return batch
