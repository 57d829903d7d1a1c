"""Figures of a request, each defined once.

`RequestFigures` lists what the core keeps. From it the build makes the fields of the C++ request, their log and their
bindings (``core/request_figures.py``); the types of `vidur_pd.workload.request.Request`, of the table of ended
requests and of its records inherit from it. `REQUEST_COLUMNS` lists the columns of ``requests.csv`` and
``requests.parquet``: these files, the report and ``docs/results.md`` follow it.

A figure that follows from others is a function of the table in `REQUEST_COLUMNS`. A new stamp or count is a line in
`RequestFigures` as well, and the place that computes it: C++ or Python sets ``request.new_figure``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.columns import KEY, TEXT, Column

if TYPE_CHECKING:
    from vidur_pd.metrics.requests import RequestTable

NEVER: Final = -1
"""Number that stands for a figure that does not apply, in a column (``core/request_log.hpp``)."""

Value = TypeVar("Value")
"""Type of a figure that every request has; 0 at first."""
Maybe = TypeVar("Maybe")
"""Type of a figure that may not apply; it does not until it is set."""
Stage = TypeVar("Stage")
"""Type of the instant of a stage; it is forgotten when the request begins again after a fault."""
Place = TypeVar("Place")
"""Type of a figure that is an instance, and may not apply."""


@dataclass(slots=True, eq=False)
class RequestFigures(Generic[Value, Maybe, Stage, Place]):
    """Figures that the core keeps of a request, from its arrival to its end; times are picoseconds."""

    priority: Value
    """Of two requests the one with the smaller number goes first, as in vLLM."""
    max_output_tokens: Value
    """What the engine has to expect: output tokens after which it would stop the request; at least its output."""
    cached_tokens: Value
    """Prompt tokens found in the prefix cache at the first admission."""
    resident_tokens: Value
    """Tokens of the context that the decode instance had when it reserved blocks; the others are transferred."""
    context_tokens: Value
    """Tokens that the last prefill had to compute: the prompt, and output tokens kept over a restart."""
    generated_tokens: Value
    """Output tokens sampled so far; never falls, except when decode repeats the first token of prefill."""
    tier_tokens: Maybe
    """Prompt tokens whose KV was loaded from tiers behind the prefix cache, where its instance has some."""
    tier_wait_ps: Maybe
    """Wait for these loads."""
    preemptions: Value
    restarts: Value
    """Times that the request began again after a fault."""
    prefill_instance: Place
    decode_instance: Place
    kv_bytes: Maybe
    """Bytes of KV that crossed between instances, if the request was handed over."""
    entered_ps: Maybe
    """Arrival at the engines, behind a frontend that is simulated."""
    scheduled_ps: Stage
    prefill_completed_ps: Stage
    room_ps: Stage
    """Its decode instance has reserved KV blocks for it."""
    kv_forwarded_ps: Stage
    """The decode instance got its request, where it gets that only after the prefill."""
    kv_handshake_ps: Maybe
    """Wait for the first contact of its instances; of connectors with costs, as ``kv_posting_ps``."""
    kv_posting_ps: Maybe
    """Time to post the descriptors of its KV."""
    kv_sent_ps: Stage
    kv_arrived_ps: Stage
    kv_noticed_ps: Stage
    """The decode engine knew that its KV had come, where it looks once in a step."""
    joined_ps: Stage
    """Begin of the first iteration after its prompt was computed on an instance that hands over."""
    first_token_ps: Maybe
    last_token_ps: Maybe
    again_ps: Maybe
    """It began again after a fault, for the last time."""
    sampled_ps: Maybe
    """Its last token left the engine for such a frontend."""
    completed_ps: Maybe
    prefill_compute_ps: Value
    """Compute time of the iterations that the request was in, up to the end of its prompt."""
    prefill_communication_ps: Value
    """Communication time of these iterations that compute does not hide."""
    decode_compute_ps: Value
    """Compute time of the iterations after the end of its prompt."""
    decode_communication_ps: Value
    """Communication time of those that compute does not hide."""
    prefill_contention_ps: Value
    """Part of its communication time beyond that on an idle fabric; negative where that is priced too long."""
    decode_contention_ps: Value
    prefill_preempted_ps: Value
    """Time without KV blocks, after others had taken them, up to the end of its prompt."""
    decode_preempted_ps: Value
    """The same after the end of its prompt."""


def _figure(name: str, unit: str, figure: str, meaning: str, *, in_report: bool = True) -> Column[RequestTable]:
    return Column(name, unit, attrgetter(figure), meaning, in_report=in_report)


def _stamp(name: str, figure: str, meaning: str, *, in_report: bool = True) -> Column[RequestTable]:
    return Column(name, "s", attrgetter(figure), meaning, is_exact=True, in_report=in_report)


def _frontend_stamp(figure: str) -> Callable[[RequestTable], Any]:
    """Stamps where a frontend was simulated, else ``None``."""
    return lambda table: getattr(table, figure) if table.came_through_frontend else None


def _span(name: str, begin: str, end: str, meaning: str, *, in_report: bool = True) -> Column[RequestTable]:
    """Column of the time between two stamps; empty where a request lacks one of them."""

    def values(table: RequestTable) -> NDArray[np.int64]:
        begins_ps, ends_ps = getattr(table, begin), getattr(table, end)
        return np.where((begins_ps != NEVER) & (ends_ps != NEVER), ends_ps - begins_ps, NEVER)

    return Column(name, "s", values, meaning, in_report=in_report)


def _completed(table: RequestTable, times_ps: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(table.is_completed, times_ps, NEVER)


def _exposed(table: RequestTable) -> NDArray[np.int64]:
    exposed_ps = np.maximum(table.kv_arrived_ps - table.prefill_completed_ps, 0)
    return np.where(table.kv_arrived_ps != NEVER, exposed_ps, NEVER)


REQUEST_COLUMNS: Final[tuple[Column[RequestTable], ...]] = (
    Column("request_id", TEXT, attrgetter("request_id"), "name of the request, as in the workload"),
    _stamp("arrived_at_s", "arrived_ps", "arrival at the front end"),
    _figure("prefill_tokens", "tokens", "prompt_tokens", "tokens of the prompt"),
    _figure("decode_tokens", "tokens", "output_tokens", "tokens of the output"),
    _figure("cached_tokens", "tokens", "cached_tokens", "prompt tokens that the prefix cache had"),
    Column("prefill_instance", TEXT, lambda table: table.names(table.prefill_instance), "instance of the prompt"),
    Column("decode_instance", TEXT, lambda table: table.names(table.decode_instance), "instance of the output"),
    _stamp("scheduled_at_s", "scheduled_ps", "begin of its first iteration"),
    _stamp("prefill_completed_at_s", "prefill_completed_ps", "end of its prompt"),
    _stamp("kv_sent_at_s", "kv_sent_ps", "first byte of its KV transfer"),
    _stamp("kv_arrived_at_s", "kv_arrived_ps", "last byte of its KV transfer"),
    _stamp("first_token_at_s", "first_token_ps", "first token at the user"),
    _stamp("completed_at_s", "completed_ps", "last token at the user"),
    Column("ttft_s", "s", lambda table: _completed(table, table.ttft_ps), "arrival to first token, if completed"),
    Column(
        "tpot_s",
        "s",
        lambda table: _completed(table, table.tpot_ps),
        "(last token − first token)/(output tokens − 1), if completed",
        is_exact=True,
    ),
    Column("e2e_s", "s", lambda table: _completed(table, table.e2e_ps), "arrival to last token, if completed"),
    _figure("pd_p2p_comm_bytes", "bytes", "kv_bytes", "KV that crossed between instances"),
    _span("pd_p2p_comm_time_s", "kv_sent_ps", "kv_arrived_ps", "duration of its KV transfer"),
    Column("kv_exposed_s", "s", _exposed, "part of it after the end of the prompt"),
    _figure("preemptions", "", "preemptions", "times that it lost its KV blocks to others"),
    Column("status", TEXT, attrgetter("end"), "`completed`, `rejected: reason` or `failed: reason`"),
    _figure("restarts", "", "restarts", "times that it began again after a fault", in_report=False),
)
"""Columns of ``requests.csv``; the values of those in seconds are picoseconds, and `NEVER` where one does not apply."""


def _of_connectors(figure: str) -> Callable[[RequestTable], Any]:
    """Figures of a connector with costs, else ``None``."""
    return lambda table: getattr(table, figure) if table.has_connector else None


def _of_tiers(figure: str) -> Callable[[RequestTable], Any]:
    """Figures of tiers of KV where there are some, else ``None``."""
    return lambda table: getattr(table, figure) if table.has_tiers else None


OPTIONAL_COLUMNS: Final[tuple[Column[RequestTable], ...]] = (
    Column(
        "entered_at_s",
        "s",
        _frontend_stamp("entered_ps"),
        "arrival at the engines, through the frontend",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "sampled_at_s",
        "s",
        _frontend_stamp("sampled_ps"),
        "last token at the frontend, on its way back",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "kv_forwarded_at_s",
        "s",
        _of_connectors("kv_forwarded_ps"),
        "arrival of its request at the decode instance, after the prefill",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "kv_handshake_s",
        "s",
        _of_connectors("kv_handshake_ps"),
        "wait for the first contact of its instances",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "kv_posting_s",
        "s",
        _of_connectors("kv_posting_ps"),
        "time to post the descriptors of its KV transfer",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "kv_noticed_at_s",
        "s",
        _of_connectors("kv_noticed_ps"),
        "the decode engine knows that its KV has come",
        is_exact=True,
        in_report=False,
    ),
    Column(
        "tier_tokens",
        "tokens",
        _of_tiers("tier_tokens"),
        "prompt tokens of `cached_tokens` that were loaded from tiers",
        in_report=False,
    ),
    Column(
        "tier_wait_s",
        "s",
        _of_tiers("tier_wait_ps"),
        "wait for these loads, before it runs, or in its first iteration",
        is_exact=True,
        in_report=False,
    ),
    _figure("session", KEY, "session", "number of its session", in_report=False),
    _figure("turn", "", "turn", "number of its turn in the session", in_report=False),
    _figure("class", TEXT, "class_name", "class of the request", in_report=False),
    _figure("priority", KEY, "asked_priority", "of two requests the smaller goes first", in_report=False),
)
"""Columns of workloads that have them, after the others: those whose values are not ``None``."""


def request_columns_of(table: RequestTable) -> tuple[Column[RequestTable], ...]:
    """The columns of one table, in their order."""
    return (*REQUEST_COLUMNS, *(column for column in OPTIONAL_COLUMNS if column.values(table) is not None))
