"""A finished simulation for notebooks and scripts: tables as data frames, the verdict, files on request."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vidur_pd.metrics.attribution import attribution_columns
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import Summary, VerdictSummary
from vidur_pd.simulation.api import Configuration, simulate
from vidur_pd.simulation.driver import Progress
from vidur_pd.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def run(
    config: Configuration, workload: Workload | None = None, *, progress: Progress | None = None, **settings: object
) -> FinishedRun:
    """Runs one simulation: ``run("c.yaml", **{"routing.policy": "least_tokens", "seed": 3})``.

    Args:
        config: a file, its content as a mapping, or a `SimulationConfig`; see `vidur_pd.simulate`.
        workload: requests instead of those that the configuration describes.
        progress: is called with (requests done, requests in all, simulated seconds) now and then.
        settings: fields by their dotted path, as ``--set`` takes them; the values are Python's.

    Raises:
        InputError: with file, field, what was found and what was expected, before simulated time starts.
    """
    texts = [f"{field}={json.dumps(_plain(value))}" for field, value in settings.items()]
    return FinishedRun(simulate(config, workload, settings=texts, progress=progress))


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a simulation leaves behind, in seconds and data frames; `result` has all of it in picoseconds."""

    result: Result

    @property
    def summary(self) -> Summary:
        """Figures of the run, as in ``summary.json``."""
        return self.result.summary

    @property
    def verdict(self) -> VerdictSummary | None:
        """What it comes to; ``None`` without requests."""
        return self.summary.verdict

    @cached_property
    def requests(self) -> pd.DataFrame:
        """[requests] the columns of ``requests.csv``, NaN where something does not apply."""
        import pandas as pd

        from vidur_pd.metrics.request_rows import request_columns

        columns = request_columns(self.result.table)
        return pd.DataFrame({name: of.to_pandas() for name, of in columns.items() if not name.endswith("_ps")})

    @cached_property
    def attribution(self) -> pd.DataFrame:
        """[completed requests] the columns of ``attribution.parquet``: parts of the latency of each, in picoseconds."""
        import pandas as pd

        return pd.DataFrame(attribution_columns(self.result.table))

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """[iterations] the columns of ``iterations.parquet``; none where ``output.iterations`` is false."""
        import pandas as pd

        return pd.DataFrame(self.result.iterations.columns())

    @cached_property
    def links(self) -> pd.DataFrame:
        """[windows, links and classes of traffic] the columns of ``links.parquet``."""
        import pandas as pd

        return pd.DataFrame(self.result.link_columns())

    def show(self) -> None:
        """Prints what ``vidur-pd run`` prints."""
        from vidur_pd.metrics.console import print_result

        print_result(self.summary)

    def write(self, out: str | Path) -> Path:
        """Writes the files that ``vidur-pd run -o OUT`` writes, and returns the folder. Raises: as `write_result`."""
        from vidur_pd.simulation.output import write_result

        write_result(self.result, Path(out))
        return Path(out)

    def _repr_html_(self) -> str:
        """The verdict and the latencies, as a notebook shows them."""
        import pandas as pd

        verdict = html.escape(self.verdict.sentence) if self.verdict else "no requests"
        rows = {name.removesuffix("_s").upper(): getattr(self.summary, name) for name in SHOWN}
        figures = {name: {key: getattr(of, key) for key in ("mean", "p50", "p90", "p99")} for name, of in rows.items()}
        table = (pd.DataFrame(figures).T.astype(float) * 1e3).to_html(
            float_format=lambda value: f"{value:.1f}", na_rep="–"
        )
        return f"<p><strong>{verdict}</strong></p>{table}<p>milliseconds</p>"


def _plain(value: object) -> object:
    """What JSON can say: paths as text, mappings and tuples as such."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
