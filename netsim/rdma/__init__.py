"""The flow graph as real traffic: agents on hosts send its flows through UCX, and measure when they arrive."""

from netsim.rdma.errors import TransferFailure
from netsim.rdma.hosts import Hosts, read_hosts
from netsim.rdma.measurement import Measurement
from netsim.rdma.message_times import MeasuredPairs, measure_pair
from netsim.rdma.session import Session

__all__ = ["Hosts", "MeasuredPairs", "Measurement", "Session", "TransferFailure", "measure_pair", "read_hosts"]
