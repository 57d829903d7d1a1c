"""Engine `verbs` as far as it goes without a device; what it sends is in `test_guests`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from netsim.backends.rdma import counters
from netsim.backends.rdma.engines import create_engine
from netsim.backends.rdma.errors import TransferFailure
from netsim.backends.rdma.extension import load_engine
from netsim.backends.rdma.hosts import VerbsSettings
from netsim.errors import BackendUnavailable
from tests.forked_commands import run_forked
from tests.netsim.rdma.needs import needs_verbs
from tests.netsim.rdma.test_command import EXAMPLES, arguments, folder

__all__ = ["folder"]
needs_no_device = pytest.mark.skipif(Path("/sys/class/infiniband").is_dir(), reason="this host has an RDMA device")


def settings(place: dict[str, str], **verbs: Any) -> dict[str, Any]:
    """As the rendezvous sends them, for one rank."""
    shared = {"engine": "verbs", "channels": 1, "spin": False, "must_verify": True}
    return {"places": [{"device": "", **place}], "verbs": VerbsSettings(**verbs).model_dump(), **shared}


def test_defaults_are_those_of_nccl() -> None:
    """One queue pair, flows not split, timeout 20, retry counts 7, traffic class and service level 0; MTU and GID from
    the ports (NCCL 2.28, src/transport/net_ib.cc)."""
    assert VerbsSettings().model_dump() == {
        **{"queue_pairs": 1, "split": False, "mtu_bytes": None, "gid_index": None},
        **{"traffic_class": 0, "service_level": 0, "timeout": 20, "retry_count": 7, "rnr_retry": 7},
    }


@pytest.mark.parametrize(("engine", "package"), [("ucx", "libucx-dev"), ("verbs", "libibverbs-dev pkg-config")])
def test_a_build_without_an_engine_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, engine: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, f"netsim._{engine}", None)
    with pytest.raises(BackendUnavailable) as error:
        load_engine(engine)
    assert f"engine {engine} is not contained in this build" in str(error.value)
    assert f"`apt-get install {package}`" in str(error.value)


@needs_verbs
@needs_no_device
def test_a_host_without_a_device_ends_the_command_in_one_line(folder: Path) -> None:
    hosts = folder / "hosts.yaml"
    hosts.write_text("engine: verbs\nagents: [{nodes: 0-3}, {nodes: 4-7}]\n")
    finished = run_forked("netsim", *arguments(folder, hosts, EXAMPLES / "flows.csv"))
    assert finished.returncode == 1
    assert "device: found no RDMA device on this host" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


@needs_verbs
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"address": "node1"}, "address: found node1, expected an IPv4 or IPv6 address"),
        ({"address": "127.0.0.1", "device": "rxe0:x"}, "device: found 'rxe0:x', expected DEVICE or DEVICE:PORT"),
        ({"address": "127.0.0.1", "device": "rxe0:0"}, "device: found 'rxe0:0', expected DEVICE or DEVICE:PORT"),
    ],
)
def test_places_that_cannot_be_one_are_named(place: dict[str, str], message: str) -> None:
    with pytest.raises(TransferFailure) as failure:
        create_engine(settings(place), 0)
    assert str(failure.value) == message


def test_counters_are_those_of_the_port_that_an_engine_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices; the second one has resent. What counts no resent data is left out."""
    for device, resent in (("rxe0", 0), ("rxe1", 2)):
        at = tmp_path / device / "ports" / "1" / "hw_counters"
        at.mkdir(parents=True)
        (at / "duplicate_request").write_text(f"{resent}\n")
        (at / "sent_pkts").write_text("1000\n")
    monkeypatch.setattr(counters, "_DEVICES", tmp_path)
    assert counters.read_counters("rxe0:1") == {"rxe0:1 duplicate_request": 0}
    assert counters.read_counters("rxe1:1") == {"rxe1:1 duplicate_request": 2}
    everything = counters.read_counters()
    assert {"rxe0:1 duplicate_request", "rxe1:1 duplicate_request", "tcp RetransSegs"} == set(everything)
    (tmp_path / "rxe1" / "ports" / "1" / "hw_counters" / "duplicate_request").write_text("5\n")
    assert counters.retransmits({"rxe1:1 duplicate_request": 2}, counters.read_counters("rxe1:1")) == 3
