import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import FlowGraph, create_backend, rail_optimized
from simccl import Descriptors, InputError, KvHandoff, KvLayout, LayerCache, Striping, kv_handoff_plan, kv_template
from tests.simccl.communicators import A_WEEK_PS

LLAMA_70B = LayerCache((4096 * 2 * 8 * 128 * 2,) * 80, heads=8)
"""4096 tokens, 80 layers, 8 KV heads of 128, 16 bit: 1,342.2 MB in all."""
DEEPSEEK_V3 = LayerCache((4096 * 576 * 2,) * 61, heads=None)
"""4096 tokens, 61 layers, a latent of 512 + 64, 16 bit: 287.8 MB."""


def layout(first: int, tp: int, pp: int = 1, stage_layers: tuple[int, ...] | None = None) -> KvLayout:
    return KvLayout(tuple(range(first, first + tp * pp)), tp, pp, stage_layers)


def pairs(handoff: KvHandoff) -> list[tuple[int, int]]:
    return sorted(zip(handoff.src.tolist(), handoff.dst.tolist(), strict=True))


@pytest.mark.parametrize(
    ("tp_p", "tp_d", "copies"), [(1, 1, 1), (8, 8, 1), (4, 8, 1), (8, 2, 1), (8, 16, 2), (16, 16, 2), (16, 4, 1)]
)
def test_grouped_query_attention_moves_one_copy_per_replica_of_a_head(tp_p: int, tp_d: int, copies: int) -> None:
    """8 heads: up to 8 decode ranks share one copy (1,342,177,280 B); 16 ranks hold every head twice."""
    handoff = kv_handoff_plan(layout(0, tp_p), layout(100, tp_d), kv=LLAMA_70B)
    assert handoff.total_bytes == copies * 1_342_177_280


@pytest.mark.parametrize(("tp_p", "tp_d"), [(4, 8), (8, 8), (2, 16), (8, 16), (1, 4)])
def test_decode_ranks_read_from_the_prefill_rank_with_their_heads(tp_p: int, tp_d: int) -> None:
    """As NIXL does where decode has at least as many ranks: rank i reads from floor(i · tp_p / tp_d)."""
    handoff = kv_handoff_plan(layout(0, tp_p), layout(100, tp_d), kv=LLAMA_70B)
    assert pairs(handoff) == sorted((i * tp_p // tp_d, 100 + i) for i in range(tp_d))


def test_a_layer_with_a_window_sends_the_tokens_in_it() -> None:
    """3 layers of 80 B per token on two ranks of 40: two keep 128 tokens; one that stays on its GPU counts the same."""
    kv = LayerCache((80, 80, 80), heads=2, most_tokens=(128, None, 128))
    template = kv_template(layout(0, 2), layout(100, 2), kv=kv)
    flows = template.between(layout(0, 2), layout(100, 2))
    for tokens, kept in ((100, 100), (1000, 128)):
        expected = [40 * (tokens + 2 * kept)] * 2
        assert flows.handoff(tokens).size_bytes.tolist() == flows.graph(tokens).size_bytes.tolist() == expected
        partly = template.between(layout(0, 2), KvLayout((0, 101), 2, 1)).handoff(tokens)
        assert (partly.size_bytes.tolist(), partly.local_bytes) == (expected[:1], expected[0])
    with pytest.raises(InputError, match="most_tokens: found 2, expected 3, or none"):
        LayerCache((80, 80, 80), heads=2, most_tokens=(128, None))


def test_fewer_decode_ranks_gather_their_heads_and_skip_replicas() -> None:
    """4 heads on 8 prefill ranks, two copies each; 2 decode ranks need two heads each: one copy of each is read."""
    kv = LayerCache((4000,), heads=4)
    handoff = kv_handoff_plan(layout(0, 8), layout(100, 2), kv=kv)
    assert pairs(handoff) == [(0, 100), (2, 100), (4, 101), (6, 101)]
    assert handoff.size_bytes.tolist() == [1000] * 4


@pytest.mark.parametrize(("tp_p", "tp_d"), [(8, 8), (4, 8), (8, 4), (1, 8), (8, 1)])
def test_a_latent_goes_whole_to_every_decode_rank_from_different_prefill_ranks(tp_p: int, tp_d: int) -> None:
    handoff = kv_handoff_plan(layout(0, tp_p), layout(100, tp_d), kv=DEEPSEEK_V3)
    assert handoff.total_bytes == tp_d * 287_834_112
    assert pairs(handoff) == sorted((j % tp_p, 100 + j) for j in range(tp_d))


def test_pipeline_stages_exchange_the_layers_they_have_in_common() -> None:
    """10 layers of 7 B as 6 + 4 and as 3 + 3 + 4: the pairs share 3, 3 and 4 layers."""
    kv = LayerCache((7,) * 10, heads=None)
    handoff = kv_handoff_plan(layout(0, 1, 2, (6, 4)), layout(100, 1, 3, (3, 3, 4)), kv=kv)
    columns = ("src", "dst", "size_bytes", "first_layer", "last_layer")
    rows = [tuple(int(getattr(handoff, column)[flow]) for column in columns) for flow in range(3)]
    assert rows == [(0, 100, 21, 0, 2), (0, 101, 21, 3, 5), (1, 102, 28, 6, 9)]


def test_layers_are_spread_evenly_with_the_surplus_first() -> None:
    assert layout(0, 1, 3).stage_of_layer(8).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_recurrent_state_travels_once_divided_by_its_own_heads_at_the_end() -> None:
    """Layers 0 and 2 keep a state of 32 heads, layers 1 and 3 KV of 2 heads; both tp are 2."""
    kv = LayerCache((0, 200, 0, 200), heads=2)
    state = LayerCache((3200, 0, 3200, 0), heads=32)
    ready = (10, 20, 30, 40)
    handoff = kv_handoff_plan(layout(0, 2), layout(100, 2), kv=kv, state=state, layer_ready_ps=ready, layers_per_flow=1)
    assert handoff.total_bytes == 400 + 6400
    assert handoff.size_bytes[handoff.is_state].tolist() == [3200, 3200]
    assert set(handoff.ready_ps[handoff.is_state].tolist()) == {40}
    assert sorted(handoff.ready_ps[~handoff.is_state].tolist()) == [20, 20, 40, 40]


@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(4, 13),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_decode_rank_receives_what_it_will_hold_and_no_more(
    tp_p: int, tp_d: int, pp_p: int, pp_d: int, layers: int, layers_per_flow: int | None
) -> None:
    """Layer l has 4·(1 + l) B in 4 heads; a rank holds max(1, 4/tp) heads of the layers of its stage."""
    sizes = tuple(4 * (1 + layer) for layer in range(layers))
    source, destination = layout(0, tp_p, pp_p), layout(100, tp_d, pp_d)
    handoff = kv_handoff_plan(source, destination, kv=LayerCache(sizes, heads=4), layers_per_flow=layers_per_flow)
    received = np.bincount(handoff.dst - 100, weights=handoff.size_bytes, minlength=tp_d * pp_d)
    held = np.bincount(destination.stage_of_layer(layers), weights=sizes, minlength=pp_d)
    assert received.tolist() == np.repeat(held * max(1, 4 // tp_d) / 4, tp_d).tolist()


def test_layer_wise_transfers_hide_all_but_the_last_layer() -> None:
    """10 layers of 5 MB, one every 200 µs, over 50 GB/s (100 µs each): the last ends 100 µs after prefill.

    Whole, the 50 MB need 1000 µs after the prefill's 2000 µs.
    """
    ready = [200_000_000 * (layer + 1) for layer in range(10)]
    kv = LayerCache((5_000_000,) * 10, heads=None)
    ends = []
    for layers_per_flow in (1, None):
        handoff = kv_handoff_plan(
            layout(0, 1), layout(8, 1), kv=kv, layer_ready_ps=ready, layers_per_flow=layers_per_flow
        )
        backend = create_backend("fluid", rail_optimized(2, 8))
        backend.submit(handoff.graph(), 0)
        ends.append(backend.advance(A_WEEK_PS)[-1].at_ps)
    propagation_ps = 1_000_000
    assert ends == [2_100_000_000 + propagation_ps, 3_000_000_000 + propagation_ps]


def test_flows_of_a_pair_keep_their_order_and_pay_the_setup_once() -> None:
    handoff = kv_handoff_plan(
        layout(0, 1), layout(8, 1), kv=LayerCache((1000,) * 3, heads=None), layers_per_flow=1, setup_ps=7
    )
    graph = handoff.graph()
    assert graph.deps.tolist() == [0, 1]
    assert graph.delay_ps.tolist() == [7, 0, 0]


def test_bytes_stay_local_where_both_layouts_share_a_gpu() -> None:
    handoff = kv_handoff_plan(layout(0, 2), layout(1, 2), kv=LayerCache((100,), heads=2))
    assert pairs(handoff) == [(0, 1), (1, 2)]
    handoff = kv_handoff_plan(layout(0, 2), layout(0, 2), kv=LayerCache((100,), heads=2))
    assert (len(handoff.graph()), handoff.local_bytes) == (0, 100)


@given(
    st.sampled_from([(1, 1, 2, 1), (4, 1, 2, 2), (2, 2, 8, 1), (8, 1, 8, 1)]),
    st.sampled_from([4, None]),
    st.integers(1, 10**6),
    st.sampled_from([3, 100]),
    st.one_of(st.none(), st.integers(1, 5)),
    st.lists(st.integers(0, 10**9), min_size=6, max_size=6),
)
def test_a_template_filled_in_is_the_plan_flow_by_flow(
    shape: tuple[int, int, int, int], heads: int | None, tokens: int, first: int, span: int | None, ready: list[int]
) -> None:
    """Layers 1 and 4 keep a state, the others KV; with GPUs from 3 on some are in both layouts. The template is that of
    other GPUs."""
    tp_p, pp_p, tp_d, pp_d = shape
    token_bytes, times = (8, 0, 16, 40, 0, 8), sorted(ready)
    state = LayerCache((0, 160, 0, 0, 320, 0), heads=16)
    template = kv_template(
        layout(500, tp_p, pp_p),
        layout(600, tp_d, pp_d),
        kv=LayerCache(token_bytes, heads),
        state=state,
        layers_per_flow=span,
        setup_ps=7,
    )
    ends = layout(0, tp_p, pp_p), layout(first, tp_d, pp_d)
    flows = template.between(*ends)
    kv = LayerCache(tuple(size * tokens for size in token_bytes), heads)
    plan = kv_handoff_plan(*ends, kv=kv, state=state, layer_ready_ps=times, layers_per_flow=span, setup_ps=7)
    assert flows.handoff(tokens, times).local_bytes == plan.local_bytes
    filled, expected = flows.graph(tokens, times), plan.graph()
    for field in dataclasses.fields(FlowGraph):
        assert np.array_equal(getattr(filled, field.name), getattr(expected, field.name)), field.name


def test_a_template_with_kv_needs_tokens() -> None:
    """A flow of no tokens would carry nothing; one of state needs none."""
    none, some = LayerCache((0,), None), LayerCache((8,), None)
    with pytest.raises(InputError, match="tokens: found 0, expected at least 1"):
        kv_template(layout(0, 1), layout(1, 1), kv=some).between(layout(0, 1), layout(1, 1)).graph(0)
    state = kv_template(layout(0, 1), layout(1, 1), kv=none, state=some)
    assert state.between(layout(0, 1), layout(1, 1)).graph(0).size_bytes.tolist() == [8]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KvLayout((0, 1), 1), "expected tp·pp = 1 different GPUs"),
        (lambda: KvLayout((0, 0), 2), "different GPUs"),
        (lambda: KvLayout((0,), 1, 1, (1, 2)), "expected 1 counts"),
        (lambda: layout(0, 1, 2, (1, 2)).stage_of_layer(4), "found 3 layers in all, expected 4"),
        (lambda: LayerCache((10,), heads=3), r"layer_bytes\[0\]: found 10, expected a multiple of 3"),
        (lambda: LayerCache((1,), heads=0), "heads: found 0"),
        (lambda: kv_handoff_plan(layout(0, 3), layout(4, 1), kv=LayerCache((8,), heads=4)), "3 ranks for 4 heads"),
        (
            lambda: kv_handoff_plan(layout(0, 1), layout(4, 1), kv=LayerCache((8, 8), None), layer_ready_ps=[2, 1]),
            "not decreasing",
        ),
        (
            lambda: kv_handoff_plan(layout(0, 1), layout(4, 1), kv=LayerCache((8,), None), layers_per_flow=0),
            "layers_per_flow: found 0",
        ),
        (
            lambda: kv_handoff_plan(
                layout(0, 1), layout(4, 1), kv=LayerCache((8,), None), state=LayerCache((1, 1), None)
            ),
            "found 2 layers, expected 1",
        ),
    ],
)
def test_layouts_that_do_not_fit_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_descriptors_cost_their_number_before_each_flow_leaves() -> None:
    """3 layers of 1,000 B for one rank in blocks of 300 B: four descriptors per layer. As one flow 12 · 5 ns before it
    leaves, layer by layer 4 · 5 ns before each."""
    kv, posted = LayerCache((1000,) * 3, heads=None), Descriptors(300, 5_000)
    whole = kv_handoff_plan(layout(0, 1), layout(100, 1), kv=kv, descriptors=posted, setup_ps=7)
    assert whole.graph().delay_ps.tolist() == [60_007]
    layers = kv_handoff_plan(layout(0, 1), layout(100, 1), kv=kv, descriptors=posted, layers_per_flow=1, setup_ps=7)
    assert layers.graph().delay_ps.tolist() == [20_007, 20_000, 20_000]


def test_stripes_use_the_nics_of_the_node_at_once() -> None:
    """1 GB from GPU 1 to GPU 10 (rails 1 and 2), over 4 rails of 50 GB/s: the stripe on rail 1 needs no first leg, the
    one on rail 2 no last one, and those on 3 and 4 both. 5 ms instead of 20."""
    kv = LayerCache((1_000_000_000,), heads=None)
    source, destination = KvLayout((1,), 1), KvLayout((10,), 1)
    topology = rail_optimized(2, 8)
    took = {}
    for rails in (1, 4):
        handoff = kv_handoff_plan(source, destination, kv=kv, striping=Striping(8, rails))
        assert handoff.total_bytes == 1_000_000_000
        assert handoff.rail.tolist() == [1, 2, 3, 4][:rails]
        backend = create_backend("fluid", topology)
        backend.submit(handoff.graph(), 0)
        took[rails] = backend.advance(A_WEEK_PS)[-1].at_ps
    assert took[1] == pytest.approx(20e9, rel=0.001)
    assert took[4] == pytest.approx(5e9, rel=0.001)
    legs = list(zip(handoff.graph().src.tolist(), handoff.graph().dst.tolist(), strict=True))
    assert legs == [(1, 9), (9, 10), (1, 2), (2, 10), (1, 3), (3, 11), (11, 10), (1, 4), (4, 12), (12, 10)]


@given(st.integers(1, 10**9), st.integers(1, 8), st.integers(0, 7), st.integers(8, 15))
def test_stripes_lose_no_byte_and_small_transfers_are_not_cut(size: int, rails: int, src: int, dst: int) -> None:
    stripes = Striping(8, rails).stripes(src, dst, size)
    assert sum(part for _, part in stripes) == size
    assert len(stripes) == min(rails, -(-size // 65_536))
    assert all(part > 0 for _, part in stripes)
    assert len({rail for rail, _ in stripes}) == len(stripes)


def test_layers_of_a_stripe_wait_for_all_legs_of_the_layer_before() -> None:
    kv = LayerCache((1_000_000,) * 2, heads=None)
    handoff = kv_handoff_plan(KvLayout((1,), 1), KvLayout((11,), 1), kv=kv, layers_per_flow=1, striping=Striping(8, 2))
    graph = handoff.graph()
    assert handoff.previous.tolist() == [-1, -1, 0, 1]
    # Legs 0, 1 are the first layer on rail 1, 2 to 4 on rail 2; then the same for the second layer.
    assert len(graph) == 10
    deps = [graph.deps[a:b].tolist() for a, b in zip(graph.dep_offsets, graph.dep_offsets[1:], strict=False)]
    assert deps == [[]] * 5 + [[0, 1]] * 2 + [[2, 3, 4]] * 3


@pytest.mark.parametrize("make", [lambda: Striping(8, 9), lambda: Striping(8, 0), lambda: Descriptors(0, 1)])
def test_bad_stripes_and_descriptors_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="expected"):
        make()
