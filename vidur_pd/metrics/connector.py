"""Time that the connector of KV transfers takes in a run."""

from __future__ import annotations

from vidur_pd.config import SimulationConfig
from vidur_pd.config.kv_transfer import OF_FRAMEWORKS
from vidur_pd.kv.transfer.connector import ConnectorTime
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.summary import ConnectorSummary
from vidur_pd.metrics.tally import RequestTally


def connector_summary(config: SimulationConfig, tally: RequestTally, time: ConnectorTime) -> ConnectorSummary | None:
    """Figures of the connector; ``None`` where it costs bytes and a set-up alone."""
    if not config.has_connector:
        return None
    connector = config.kv_transfer.connector
    return ConnectorSummary(
        path=connector.path,
        descriptor_tokens=connector.descriptor_tokens,
        handshakes_s=to_seconds(tally.handshakes_ps),
        waits_s=to_seconds(time.waits_ps),
        posting_s=to_seconds(tally.posting_ps),
        stalls_s=to_seconds(time.stalls_ps),
    )


def connector_left_out(config: SimulationConfig) -> str | None:
    """The connector of the framework that decodes what others prefill, where none with costs is simulated."""
    if config.has_connector or not config.is_disaggregated:
        return None
    decoding = (config.engine_of(pool).framework for pool in config.cluster.pools if pool.role == "decode")
    return next((OF_FRAMEWORKS[name] for name in decoding if name in OF_FRAMEWORKS), None)
