"""FasterTransformer, as Vidur has it: batches that stay as they began until their last request ends."""

from __future__ import annotations

from vidur_pd.scheduling.policies import residents
from vidur_pd.scheduling.policies.orca import check_reservation, has_room, line
from vidur_pd.scheduling.policy import Decision, Policy, RankView, RequestView


class FasterTransformer(Policy):
    """A batch computes its prompts whole, then decodes; requests that end leave a gap.

    Only where no batch is left to go on with does another one form, one per pipeline stage.

    Blocks for ``engine.max_model_len`` are reserved per request, and return when its whole batch ends: until then no
    batch on another pipeline stage gets those of a request that has ended.
    """

    has_token_budget = False

    def __init__(self) -> None:
        self._batches: list[list[RequestView]] = []
        """As they were formed, in the order in which they come out of their iterations."""

    def begin(self, rank: RankView) -> None:
        check_reservation(rank, "faster_transformer")

    def decide(self, rank: RankView, decision: Decision) -> None:
        running = {request.index for request in rank.running}
        rows = [(batch, left) for batch in self._batches if (left := [each for each in batch if each.index in running])]
        self._batches = [batch for batch, _ in rows]
        next_row = next((row for row in rows if not all(each.is_in_iteration for each in row[1])), None)
        if next_row is None:
            gaps = sum(len(batch) - len(left) for batch, left in rows)
            batch = self._form(rank, decision, gaps) if len(rows) < rank.pipeline_stages else []
        else:
            batch, left = next_row
            self._batches.remove(batch)
            for request in left:
                if not request.is_in_iteration:
                    decision.run(request, rank.most_tokens(request))
        if batch:
            self._batches.append(batch)

    def is_steady(self, rank: RankView) -> bool:
        """Nobody joins a batch; with pipeline stages nothing is asked."""
        return rank.running_requests > 0

    def _form(self, rank: RankView, decision: Decision, gaps: int) -> list[RequestView]:
        """A new batch; ``gaps``: requests that have ended in batches that go on."""
        batch: list[RequestView] = []
        for request in line(rank, decision):
            is_full = len(batch) == residents.micro_batch(rank) or rank.running_requests == rank.max_seqs
            if is_full or not has_room(rank, request, kept=gaps):
                break
            decision.run(request, rank.most_tokens(request), held_tokens=rank.max_model_len)
            batch.append(request)
        return batch
