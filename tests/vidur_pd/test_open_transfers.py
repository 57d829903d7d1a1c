"""Transfers that are open: chunks of their prompts, and where they are found."""

from __future__ import annotations

from tests.vidur_pd.test_kv_sender import CASES, first_ranks, state_of
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.kv.transfer.open_transfers import OpenTransfers
from vidur_pd.kv.transfer.transfer import Chunk, KvTransfer, LayerTimes
from vidur_pd.workload.request import Request


class Nobody:
    """Does nothing that modes ask for."""

    def reserve(self, transfer: KvTransfer) -> None: ...

    def send(self, transfer: KvTransfer, until_tokens: int) -> None: ...


def begun(open_transfers: OpenTransfers, source: Rank, index: int = 0) -> KvTransfer:
    request = Request(index, f"r{index}", 1_000, 5, 0)
    return open_transfers.begin(request, source, Nobody(), travels=True)


def test_a_prompt_that_begins_anew_has_launched_what_it_computes_now() -> None:
    """Chunks up to 400 and 800; after a preemption one up to 300, then one up to 700: KV up to 600 is computed in the
    last one, up to 300 in the one before."""
    source, _ = first_ranks(state_of(*CASES["heads"]))
    transfer = begun(OpenTransfers(), source)
    assert transfer.launched_tokens == 0
    times = [LayerTimes(start_ps, start_ps + 10) for start_ps in (0, 10, 100, 110)]
    launched = []
    for until_tokens, layers in zip((400, 800, 300, 700), times, strict=True):
        transfer.add_chunk(Chunk(until_tokens, layers))
        launched.append(transfer.launched_tokens)
    assert launched == [400, 800, 300, 700]
    assert transfer.layers_up_to(600) == times[3]
    assert transfer.layers_up_to(300) == times[2]
    transfer.is_prefilled = True
    assert transfer.launched_tokens == 1_000
    assert transfer.layers_up_to(600) is None


def test_transfers_are_found_at_both_ends_until_they_end() -> None:
    source, destination = first_ranks(state_of(*CASES["heads"]))
    open_transfers = OpenTransfers()
    first, second = (begun(open_transfers, source, index) for index in range(2))
    open_transfers.assign(second, destination)
    open_transfers.stick(second)
    assert open_transfers.at(source.instance) == [first, second]
    assert open_transfers.at(destination.instance) == open_transfers.to(destination) == [second]
    assert open_transfers.stuck_at(destination) == [second]
    open_transfers.lose_destination(second)
    assert (open_transfers.to(destination), open_transfers.stuck_at(destination)) == ([], [])
    open_transfers.end(first)
    open_transfers.end(second)
    assert len(open_transfers) == 0
    assert open_transfers.at(source.instance) == []
