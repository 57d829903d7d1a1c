"""What ``vidur-pd run`` prints of a finished simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from aicb.iteration.host import MEDIAN_HOST, slowest_over_fastest
from vidur_pd.metrics.error_text import host_waits, model_errors
from vidur_pd.metrics.quantities import rate_text, share_text
from vidur_pd.metrics.summary import Interval, PlannerSummary, PoolSummary, Summary, Throughput, TierSummary, UnderLoad
from vidur_pd.metrics.verdict.limits import percent

LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
QUANTILES = ("mean", "p50", "p90", "p99")
MOST_REASONS = 3
OF_SAME_REQUESTS = " of the same requests (random routes, choices of experts and accepted drafts differ)"
"""What seeds change where the workload draws nothing."""
VERDICT_COLOURS = {"meets": "bold green"}
"""By outcome; all others are red."""


def print_result(summary: Summary) -> None:
    """The verdict, headline figures, and what they leave out."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    if summary.verdict is not None:
        color = VERDICT_COLOURS.get(summary.verdict.outcome, "bold red")
        console.print(f"[{color}]{escape(summary.verdict.sentence)}[/]", highlight=False)
    for line in _headline(summary):
        console.print(escape(line), highlight=False)
    color = "bold red" if summary.requests and not summary.completed else "yellow"
    for line in _warnings(summary):
        console.print(f"[{color}]{escape(line)}[/]", highlight=False)
    console.print(_latencies(summary))


def _headline(summary: Summary) -> Iterator[str]:
    gpus = Counter[str]()
    for pool in summary.pools:
        of_ffn = 0 if pool.ffn is None else pool.ffn.gpus
        gpus[pool.hardware] += pool.gpus - of_ffn
        if pool.ffn is not None:
            gpus[pool.ffn.hardware] += of_ffn
    if summary.planner is not None:  # GPUs with two roles count once
        gpus[summary.hardware] -= sum(pool.gpus for pool in summary.pools) - summary.gpus
    yield (
        f"{summary.model} on {' + '.join(f'{number} × {kind}' for kind, number in gpus.items())}: "
        f"{summary.completed} of {summary.requests} requests in {summary.makespan_s:.1f} simulated seconds "
        f"({summary.simulator.wall_s:.1f} s of wall time)"
    )
    rates, cached = summary.throughput, summary.cached_input_share
    if rates.requests_per_s is None:
        return
    yield f"whole run: {rate_text(rates.requests_per_s)} requests/s, {_tokens(rates)}" + (
        f"; {percent(cached)} of the input was cached" if cached else ""
    )
    load = summary.under_load
    if load is not None:
        first = f"{summary.first_arrival_s or 0.0:.1f}"
        began = "" if first == "0.0" else f", the first at {first} s"  # where simulated seconds begin to count
        yield (
            f"under load ({load.from_s:.1f} s to the last arrival at {load.until_s:.1f} s{began}): "
            f"{_arrivals(load)}; {_tokens(load)}"
        )
    yield (
        f"{share_text(summary.goodput_share or 0.0)} of all requests meet the objectives: "
        f"{rate_text(summary.goodput or 0.0)} requests/s over the whole run"
    )
    for pool in summary.pools:
        yield f"pool {pool.name}: {_use(pool)}"
    if summary.planner is not None:
        yield _planned(summary.planner)
    for tier in summary.tiers or ():
        yield f"tier {tier.kind}: {_tier(tier)}"
    yield from _host(summary)
    yield from _money(summary)
    yield from uncertainty(summary)
    for each in summary.classes or ():
        yield (
            f"class {each.name}: {each.completed} of {each.requests} requests completed, "
            f"{share_text(each.goodput_share or 0.0)} meet its objectives ({rate_text(each.goodput or 0.0)} requests/s)"
        )


def _arrivals(load: UnderLoad) -> str:
    """Requests that arrived and that completed: more than arrived, where some were waiting when the window began."""
    arrived, completed = load.arrivals_per_s or 0.0, load.requests_per_s or 0.0
    before = " (some came before)" if completed > arrived else ""
    return f"{rate_text(arrived)} requests/s arrived, {rate_text(completed)} completed{before}"


def _tier(tier: TierSummary) -> str:
    """What it gave to GPUs and to CPU memory, and what it holds."""
    parts = [f"{tier.loaded_tokens:,} tokens ({tier.loaded_bytes / 1e9:.3g} GB) loaded"]
    if tier.loads:
        parts.append(
            f"loading took {tier.load_s:.3g} s, recomputing these tokens would have taken {tier.recompute_s:.3g} s"
        )
    if tier.prefetched_chunks:
        parts.append(f"{tier.prefetched_chunks:,} chunks prefetched into CPU memory")
    parts.append(f"{tier.stored_bytes / 1e9:.3g} GB stored, {tier.held_bytes / 1e9:.3g} GB held")
    return "; ".join(parts)


def _planned(planner: PlannerSummary) -> str:
    """What was held, and how many instances served."""
    pools = ", ".join(
        f"{pool.name} {pool.serving_mean or 0.0:.2f} of {pool.instances} (at most {pool.serving_most})"
        for pool in planner.pools
    )
    saved = f" ({100 * planner.saved_share:.0f} % saved)" if planner.saved_share is not None else ""
    held = f"{planner.gpu_hours:.3g} of {planner.all_gpu_hours:.3g} GPU hours held{saved}"
    return f"planner {planner.policy}: {held}; serving in the mean: {pools}"


def _host(summary: Summary) -> Iterator[str]:
    """How much of iterations is exposed host time, where that is much: it is another with another host."""
    if parts := host_waits(summary):
        yield (
            f"GPUs wait for the host in {', '.join(parts)}; of two measured hosts one may take up to "
            f"{slowest_over_fastest():.1f} times as long to launch as the other (engine.host; {MEDIAN_HOST}, the "
            "median, where cores are shared and nothing was measured; vidur-pd list hosts)"
        )


def _money(summary: Summary) -> Iterator[str]:
    """Energy of a token, and what it costs by the price list."""
    energy, cost = summary.energy, summary.cost
    if energy is not None and energy.total_j_per_output_token is not None:
        watts = ", ".join(f"{pool} {watts:.0f}" for pool, watts in energy.pools_w.items())
        yield f"energy: {energy.total_j_per_output_token:.3g} J per output token (W per GPU: {watts})"
    if cost is not None and cost.per_hour is not None:
        unit = f" {cost.currency}" if cost.currency else ""
        tokens = (("input", cost.per_million_input_tokens), ("output", cost.per_million_output_tokens))
        parts = [f"{amount:.4g} per million {name} tokens" for name, amount in tokens if amount is not None]
        yield f"cost{unit}: {', '.join([f'{cost.per_hour:.4g} per hour', *parts])}"


def uncertainty(summary: Summary) -> Iterator[str]:
    """How far figures may be off: by what times rest on, and by chance, where several seeds say so."""
    if texts := model_errors(summary):
        rests = ", ".join(
            f"{percent(share)} {name.replace('_', ' ')}"
            for name, share in summary.time_sources.items()
            if share >= 5e-4
        )
        yield f"error of the model: {texts} (times are {rests})"
    if summary.seeds is None:
        return
    shown = {"TTFT p90": "ttft_s.p90", "TPOT p90": "tpot_s.p90", "requests/s": "throughput.requests_per_s"}
    known = {name: summary.seeds.figures.get(path) for name, path in shown.items()}
    parts = [f"{name} {_interval(each, name)}" for name, each in known.items() if each is not None]
    count = len(summary.seeds.seeds)
    figures = summary.seeds.figures.values()
    if figures and all(each.least == each.most for each in figures):
        yield f"{count} seeds gave the same figures: nothing of this run is drawn, so that there is no interval"
        return
    of_same = "" if summary.seeds.has_own_requests else OF_SAME_REQUESTS
    yield f"over {count} seeds{of_same}, {summary.seeds.met} of which meet the SLO: {', '.join(parts)}"


def _interval(of: Interval, name: str) -> str:
    """Mean and 95 % interval, times in milliseconds; no interval where no digit that is shown differs."""
    scale, unit = (1.0, "") if name == "requests/s" else (1e3, " ms")
    mean, low, high = (scale * (value or 0.0) for value in (of.mean, of.low, of.high))
    reach = "equal to four digits" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
    return f"{mean:.4g}{unit} ({reach})"


def _use(pool: PoolSummary) -> str:
    """How long it was busy, and what of it was taken."""
    shares = (
        ("busy", pool.busy_share),
        ("busy under load", pool.busy_under_load),
        ("batch slots", pool.batch_use),
        ("KV", pool.kv_use_mean),
        ("MFU", pool.mfu),
        ("memory bandwidth", pool.memory_use),
        *workers_shares(pool),
    )
    return ", ".join(f"{name} {percent(share)}" for name, share in shares if share is not None)


def workers_shares(pool: PoolSummary) -> list[tuple[str, float | None]]:
    """Where FFN workers are apart: how long each kind computes while the pool is busy, and what no compute hides."""
    if pool.ffn is None:
        return []
    return [
        ("attention workers compute", pool.ffn.attention_busy_share),
        ("FFN workers compute", pool.ffn.ffn_busy_share),
        ("exposed communication", pool.communication_share),
    ]


def _tokens(rates: Throughput | UnderLoad) -> str:
    return f"{rates.input_tokens_per_s:.0f} input and {rates.output_tokens_per_s:.0f} output tokens/s"


def _warnings(summary: Summary) -> Iterator[str]:
    yield from not_served(summary)
    for pool in summary.pools:
        if pool.tp_servers > 1:
            yield (
                f"pool {pool.name}: the {pool.tp} GPUs of a tensor-parallel group are on {pool.tp_servers} servers, "
                "so that their all-reduces cross NICs (cluster.topology.gpus_per_node)"
            )
    if summary.api_server is not None:
        needed, most = summary.api_server.tokens_per_s, summary.api_server.most_tokens_per_s
        yield (
            f"clients get {needed:,.0f} output tokens/s through each of vLLM's API servers (one per data-parallel "
            f"rank), and one passes some {most:,.0f}: simulate them with frontend: {{kind: vllm}}"
        )
    workload = summary.workload
    if summary.caches_in_vain:
        yield (
            "prefix caching cannot hit: the trace does not say what prompts share (hash_ids of its rows, "
            "workload.session_history where they have sessions, or workload.shared_prefix_tokens)"
        )
    if workload.skipped_rows:
        yield f"{workload.skipped_rows} rows of the workload without output were skipped"
    if workload.trimmed_requests:
        yield f"{workload.trimmed_requests} requests were trimmed to fit"
    if summary.connector_left_out is not None:
        yield (
            "KV transfers cost their bytes and a set-up alone (kv_transfer.connector: ideal); the engines' own "
            f"connector, {summary.connector_left_out}, takes longer"
        )
    if summary.estimates is not None and summary.estimates > 0.01:
        share = f"{100 * summary.estimates:.1f} %"
        yield f"{share} of the time of iterations rests on estimates (transferred times, or formulas)"


def not_served(summary: Summary) -> Iterator[str]:
    """How many requests were refused or failed, and the most frequent reasons; nothing where all completed."""
    lost = summary.requests - summary.completed
    if not lost:
        return
    yield (
        f"{lost} of {summary.requests} requests were not served ({summary.rejected} rejected, "
        f"{summary.failed} failed): latencies are of the others alone, goodput counts them as missed"
    )
    shown = summary.not_served[:MOST_REASONS]
    for outcome in shown:
        yield f"{outcome.requests} {outcome.status}: {outcome.reason}"
    further = lost - sum(outcome.requests for outcome in shown)
    if further:
        yield f"{further} for other reasons (see not_served in summary.json)"


def _latencies(summary: Summary) -> Any:
    from rich.table import Table

    is_part = summary.completed < summary.requests
    table = Table(f"ms, of {summary.completed} completed" if is_part else "ms", *QUANTILES)
    for name in LATENCIES:
        latency = getattr(summary, name)
        cells = [getattr(latency, key) for key in QUANTILES]
        table.add_row(
            name.removesuffix("_s").upper(), *("–" if cell is None else f"{1e3 * cell:.1f}" for cell in cells)
        )
    return table
