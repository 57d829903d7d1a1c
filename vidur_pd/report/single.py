"""The report of one run, section by section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

from vidur_pd.metrics.summary import FaultSummary, NetworkSummary, PlannerSummary, PoolSummary, Summary
from vidur_pd.metrics.summary_file import plain_text
from vidur_pd.report.figures_coupling import (
    attribution_chart,
    cost_text,
    energy_text,
    fabric_table,
    link_heat_map,
    sources_table,
)
from vidur_pd.report.figures_faults import fault_tables, fault_timeline
from vidur_pd.report.figures_instances import busy_heat_map, instance_charts, measure_activity
from vidur_pd.report.figures_latency import (
    distribution_chart,
    latency_curves,
    ttft_over_time,
    ttft_stage_charts,
)
from vidur_pd.report.figures_load import arrivals_chart, throughput_charts
from vidur_pd.report.figures_network import (
    BURST,
    MEANING,
    OFFERED_MEANING,
    busiest_links,
    exposed_chart,
    is_offered,
    mean_use_chart,
    measure_words,
    peak_use_chart,
    transfer_chart,
)
from vidur_pd.report.figures_phases import batch_chart, phase_charts
from vidur_pd.report.figures_planner import fleet_chart, planner_tables
from vidur_pd.report.figures_tiers import tier_table
from vidur_pd.report.headline import headline, outcomes_of
from vidur_pd.report.load import MOST_ITERATIONS, RunOutput
from vidur_pd.report.page import Section, charts_html, page_html
from vidur_pd.report.slowest import slowest_requests
from vidur_pd.report.table import Table
from vidur_pd.report.text import (
    digits,
    duration,
    folded_html,
    meaning_html,
    note_html,
    percent,
    table_html,
)

MOST_REASONS = 25
BUSY_MEANING = (
    "Busy means that an iteration is under way, be it for one request: what is taken of a pool is in the columns "
    "after it. "
    "Batch slots are held over the whole run, requests a step are those of a rank. MFU and memory bandwidth are "
    "of the busy "
    "time, with FLOPs and bytes of the mean iterations of each size; communication is what compute does not hide."
)


def run_page(run: RunOutput, title: str | None) -> Iterable[str]:
    """The whole page of one run, in pieces."""
    summary = run.summary
    sections = [
        Section("headline", "Headline", headline(run)),
        Section("latency", "Latency", _latency(run)),
        Section("load", "Load and throughput", charts_html([*throughput_charts(run), arrivals_chart(run)])),
        *([Section("faults", "Faults", _faults(run, summary.faults))] if summary.faults is not None else []),
        *([Section("planner", "Planner", _planner(run, summary.planner))] if summary.planner is not None else []),
        Section("instances", "Instances", _instances(run)),
        *([Section("tiers", "Tiers of KV", tier_table(run.summary.tiers))] if run.summary.tiers else []),
        Section("iterations", "Iterations", _iterations(run)),
        Section("network", "Network", _network(run)),
        Section("requests", "Requests not served", _not_served(run)),
        Section("configuration", "Configuration", _configuration(run)),
    ]
    return page_html(title or run_title(run), run_facts(run), sections, (run.label, day_of(run.summary)))


def run_title(run: RunOutput) -> str:
    about = " on ".join(text for text in (run.summary.model, run.summary.hardware) if text)
    return about or "Simulation report"


def day_of(summary: Summary) -> str:
    """When it was simulated; empty for results without it."""
    return summary.simulator.began_at[: len("2026-11-26")]


def run_facts(run: RunOutput) -> list[tuple[str, str]]:
    """Model, hardware, cluster, network and workload in one line each."""
    summary = run.summary
    money = (("Energy (estimate)", energy_text(summary)), ("Cost", cost_text(summary)))
    pools = "; ".join(
        f"{pool.name}: {pool.instances} × {pool.partition} ({_gpus(pool.gpus)})" for pool in summary.pools
    )
    return [
        ("Model", summary.model or "not recorded"),
        ("Hardware", summary.hardware or "not recorded"),
        ("Cluster", f"{pools}; {_gpus(summary.gpus)} in all" if pools else "not recorded"),
        ("Network", _network_text(summary.network) or "not recorded"),
        ("Workload", workload_text(run)),
        *((name, text) for name, text in money if text is not None),
    ]


def _network_text(network: NetworkSummary) -> str:
    """Topology, backend and coupling."""
    kinds = ((network.backend, "backend"), (network.coupling, "coupling"))
    return ", ".join(
        [*filter(None, [plain_text(network.topology)]), *(f"{name} {kind}" for name, kind in kinds if name)]
    )


def _gpus(number: int) -> str:
    return f"{number:,} GPU" if number == 1 else f"{number:,} GPUs"


def workload_text(run: RunOutput) -> str:
    requests = run.requests
    if not len(requests):
        return "no requests"
    span = float(np.nanmax(requests["arrived_at_s"]) - np.nanmin(requests["arrived_at_s"]))
    prompts, outputs = requests["prefill_tokens"], requests["decode_tokens"]
    parts = [f"{len(requests):,} requests over {duration(span)}"]
    if span > 0:
        parts[0] += f" ({digits((len(requests) - 1) / span)} per second)"
    for what, tokens in (("prompt", prompts), ("output", outputs)):
        parts.append(f"{what} tokens p50 {np.nanmedian(tokens):,.0f}, p99 {np.nanpercentile(tokens, 99):,.0f}")
    cached = float(np.nansum(requests["cached_tokens"])) / max(float(np.nansum(prompts)), 1.0)
    if cached > 0:
        parts.append(f"{percent(cached)} of prompt tokens cached")
    elif run.summary.workload.digest and not run.summary.workload.names_prefixes:
        parts.append("no prompts that share a prefix by name, so that prefix caching cannot hit")
    workload = run.config.get("workload")
    if isinstance(workload, dict) and "kind" in workload:
        parts.insert(0, str(workload["kind"]))
    return ", ".join(parts)


def _latency(run: RunOutput) -> Markup:
    if not len(run.completed):
        return note_html("Left out: no request completed, so there is no latency to show.")
    summary = run.summary
    curves = latency_curves(run, run.label)
    objectives = {"ttft": summary.slo.ttft_s, "tpot": summary.slo.tpot_s}
    charts = [distribution_chart(metric, [curve], objectives.get(metric)) for metric, curve in curves.items()]
    shown = [attribution_chart(summary), *charts, *ttft_stage_charts(run), ttft_over_time(run)]
    return _class_table(summary) + charts_html(shown) + slowest_requests(run)


def _class_table(summary: Summary) -> Markup:
    """Classes of requests, each against its own objectives."""
    rows = [
        [
            each.name,
            f"{each.completed:,} of {each.requests:,}",
            *(duration(of.p50) for of in (each.ttft_s, each.tpot_s, each.e2e_s)),
            *(duration(of.p99) for of in (each.ttft_s, each.tpot_s, each.e2e_s)),
            f"{duration(each.slo.ttft_s)}, {duration(each.slo.tpot_s)}",
            percent(each.goodput_share),
        ]
        for each in summary.classes or ()
    ]
    figures = [f"{name}, {at}" for at in ("p50", "p99") for name in ("TTFT", "TPOT", "E2E")]
    columns = ("Class", "Completed", *figures, "Objectives (TTFT, TPOT)", "Meet both")
    return table_html(columns, rows, texts=(len(columns) - 2,)) if rows else Markup()


def _planner(run: RunOutput, planner: PlannerSummary) -> Markup:
    return charts_html([fleet_chart(run, planner)]) + planner_tables(planner)


def _faults(run: RunOutput, faults: FaultSummary) -> Markup:
    return charts_html([fault_timeline(run)]) + fault_tables(faults)


def _instances(run: RunOutput) -> Markup:
    pools = pool_table(run.summary.pools)
    if not run.iterations:
        return pools + _no_iterations(run, "Queue, running requests, busy share and KV use over time")
    names = [pool.name for pool in run.summary.pools]
    activity = measure_activity(run.iterations, names, run.span_s)
    return pools + charts_html([busy_heat_map(activity), *instance_charts(activity, names)])


def pool_table(pools: Sequence[PoolSummary]) -> Markup:
    rows = [
        [
            pool.name,
            pool.role,
            f"{pool.instances} × {pool.partition}",
            f"{pool.gpus:,}",
            percent(pool.busy_share),
            percent(pool.busy_share_max),
            percent(pool.batch_use),
            digits(pool.batch_mean),
            percent(pool.kv_use_mean),
            percent(pool.kv_use_max),
            percent(pool.mfu),
            percent(pool.memory_use),
            percent(pool.communication_share),
        ]
        for pool in pools
    ]
    taken = ("Batch slots held", "Requests a step", "KV use, mean", "KV use, max")
    busy = ("MFU while busy", "Memory bandwidth", "Communication")
    columns = ("Pool", "Role", "Instances", "GPUs", "Busy share", "Busiest instance", *taken, *busy)
    if not rows:
        return Markup()
    return table_html(columns, rows, text_columns=3) + meaning_html(BUSY_MEANING) + _worker_table(pools)


def _worker_table(pools: Sequence[PoolSummary]) -> Markup:
    """Attention workers and FFN workers of pools where they are apart."""
    rows = [
        [
            pool.name,
            f"{pool.gpus - pool.ffn.gpus:,} × {pool.hardware}",
            f"{pool.ffn.gpus:,} × {pool.ffn.hardware}",
            f"{pool.ffn.micro_batches}",
            percent(pool.ffn.attention_busy_share),
            percent(pool.ffn.ffn_busy_share),
            percent(pool.communication_share),
        ]
        for pool in pools
        if pool.ffn is not None
    ]
    computing = ("Attention workers compute", "FFN workers compute", "Exposed communication")
    columns = ("Pool", "Attention workers", "FFN workers", "Micro-batches", *computing)
    meaning = "Shares are of the pool's busy time: both kinds of workers compute at the same time."
    return table_html(columns, rows, text_columns=3) + meaning_html(meaning) if rows else Markup()


def _iterations(run: RunOutput) -> Markup:
    return _phases(run) + _estimates_table(run.summary)


def _phases(run: RunOutput) -> Markup:
    if not run.iterations:
        return _no_iterations(run, "The breakdown of iterations")
    names = [pool.name for pool in run.summary.pools]
    phases = phase_charts(run.iterations, names, has_drafts=run.drafts_tokens)
    return charts_html([*phases, batch_chart(run.iterations, names)])


def _estimates_table(summary: Summary) -> Markup:
    """Operators whose time is a formula, by pool."""
    by_pool: dict[str, list[str]] = {}
    for item in summary.estimated_operators:
        by_pool.setdefault(item.pool, []).append(item.operator)
    rows = [[pool, ", ".join(operators)] for pool, operators in by_pool.items()]
    return (
        table_html(("Pool", "Operators without a measurement near enough"), rows, text_columns=2) if rows else Markup()
    )


def _network(run: RunOutput) -> Markup:
    transfers = charts_html([transfer_chart(run), exposed_chart(run)])
    if not transfers:
        transfers = note_html("Left out: no request moved KV between instances, so there are no transfers to show.")
    transfers += sources_table(run.summary)
    transfers += fabric_table(run.summary.network)
    if not run.links:
        return transfers + _no_rows("links.parquet", run.links, "Link use")
    return (
        meaning_html(OFFERED_MEANING if is_offered(run.links) else MEANING)
        + charts_html([link_heat_map(run.links), mean_use_chart(run.links), peak_use_chart(run.links)])
        + transfers
        + _link_table(run.links, run.span_s[1] - run.span_s[0])
    )


def _link_table(links: Table, seconds: float) -> Markup:
    rows = [
        [
            f"{link.src} → {link.dst}",
            link.kind,
            digits(link.capacity_bps / 1e9),
            percent(link.mean_use),
            percent(link.peak_use),
            percent(link.burst_use),
            digits(link.kv_bytes / 1e9),
            digits(link.collective_bytes / 1e9),
        ]
        for link in busiest_links(links, seconds)
    ]
    _, measure = measure_words(links)
    shares = (f"Mean {measure}", f"{measure.capitalize()}, peak window", f"{measure.capitalize()}, peak {BURST}")
    columns = ("Busiest links of each kind", "Kind", "Gbit/s", *shares, "KV (GB)", "Collectives (GB)")
    return table_html(columns, rows, text_columns=2)


def _not_served(run: RunOutput) -> Markup:
    outcomes = outcomes_of(run)
    if not outcomes:
        return note_html("Every request completed.")
    rows = [
        [each.status, each.reason, f"{each.requests:,}", percent(each.requests / len(run.requests)), each.example]
        for each in outcomes[:MOST_REASONS]
    ]
    further = outcomes[MOST_REASONS:]
    if further:
        total = sum(each.requests for each in further)
        rows.append(["", f"{len(further):,} further reasons", f"{total:,}", percent(total / len(run.requests)), ""])
    return table_html(("Outcome", "Reason", "Requests", "Share", "First request id"), rows, text_columns=2, texts=(4,))


def _configuration(run: RunOutput) -> Markup:
    if run.config_text is None:
        return note_html("Left out: the directory holds no config.yaml.")
    return folded_html("Resolved configuration", run.config_text)


def _no_iterations(run: RunOutput, what: str) -> Markup:
    if run.iterations is not None or not run.iteration_rows:
        return _no_rows("iterations.parquet", run.iterations, what)
    return note_html(f"{what} left out: of {run.iteration_rows:,} iterations; at most {MOST_ITERATIONS:,} are drawn.")


def _no_rows(name: str, table: Table | None, what: str) -> Markup:
    why = f"the run wrote no {name}" if table is None else f"{name} has no rows"
    return note_html(f"{what} left out: {why}.")
