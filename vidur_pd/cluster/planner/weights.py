"""Weights of an instance that starts: from its server's disk, or from an instance that serves, over the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from netsim import Completion, FlowGraph, GraphHandle, NetworkBackend, NoPath, Topology
from netsim.units import PS_PER_S
from vidur_pd._core import Loop
from vidur_pd.config.planner import StartupConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.coupling.plan import COLLECTIVE
from vidur_pd.execution.instances.instance import Instance

Loaded = Callable[[], None]


class WeightLoader:
    """Loads of weights that are under way, and the disks that they come from."""

    def __init__(
        self,
        config: StartupConfig,
        weights_bytes: Callable[[Instance], int],
        topology: Topology,
        network: NetworkBackend,
        loop: Loop,
        queue: EventQueue,
    ) -> None:
        """``weights_bytes``: of each GPU of an instance."""
        self._config, self._weights_bytes = config, weights_bytes
        self._topology, self._network, self._loop, self._queue = topology, network, loop, queue
        self._under_way: dict[GraphHandle, tuple[Instance, Loaded]] = {}
        self._disk_free_ps: Counter[int] = Counter()
        """By server: instant at which its disk has read all that it has been asked for."""
        self._from_peers = 0
        self.network_bytes = self.disk_bytes = 0

    def load(self, instance: Instance, peers: Sequence[Instance], then: Loaded) -> None:
        """Calls ``then`` when the weights are there; ``peers``: instances with the same weights that serve, which take
        turns."""
        if self._config.weights is None:
            then()
        elif self._config.weights == "disk" or not peers or not self._from_peer(instance, peers, then):
            self._from_disk(instance, then)

    def arrived(self, completion: Completion) -> bool:
        """A flow graph has arrived or failed; returns False if it is not of weights that are loaded."""
        instance, then = self._under_way.pop(completion.handle, (None, None))
        if instance is None or then is None:
            return False
        self._network.forget(completion.handle)
        self._loop.traffic_changes(completion.at_ps)
        if completion.is_failed:
            self._from_disk(instance, then)
        else:
            then()
        return True

    def _from_disk(self, instance: Instance, then: Loaded) -> None:
        """Loads weights from disks. The GPUs of a server share one, which reads for one instance after another."""
        assert self._config.disk_gbytes_per_s is not None, "a disk is configured with weights"
        size_bytes, now_ps = self._weights_bytes(instance), self._queue.now_ps
        ps_per_byte = PS_PER_S / (self._config.disk_gbytes_per_s * 1e9)
        for node, gpus in Counter(self._topology.node_of(gpu) for gpu in instance.placement.gpus).items():
            begin_ps = max(self._disk_free_ps[node], now_ps)
            self._disk_free_ps[node] = begin_ps + round(gpus * size_bytes * ps_per_byte)
            self.disk_bytes += gpus * size_bytes
        nodes = {self._topology.node_of(gpu) for gpu in instance.placement.gpus}
        self._queue.schedule(max(self._disk_free_ps[node] for node in nodes), Priority.DISPATCH, then)

    def _from_peer(self, instance: Instance, peers: Sequence[Instance], then: Loaded) -> bool:
        """Loads weights of each GPU from the one in its place at a peer; returns False where there is no path."""
        peer = peers[self._from_peers % len(peers)]
        sizes = [self._weights_bytes(instance)] * len(instance.placement.gpus)
        graph = FlowGraph.from_lists(list(peer.placement.gpus), list(instance.placement.gpus), sizes)
        now_ps = self._queue.now_ps
        try:
            handle = self._network.submit(replace(graph, traffic=COLLECTIVE), now_ps)
        except NoPath:
            return False
        self._from_peers += 1
        self.network_bytes += sum(sizes)
        self._under_way[handle] = (instance, then)
        self._loop.traffic_changes(now_ps)
        return True
