"""Collective communication: collective on a communicator -> flow graph, or a time."""

__version__ = "0.1.0"

from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.errors import InputError, PlanError, UnsupportedTopology
from simccl.expert_planner import expert_combine, expert_dispatch
from simccl.experts import ExpertRouting
from simccl.hardware import gpu_named
from simccl.kv import KvHandoff, KvLayout, LayerCache, kv_handoff_plan
from simccl.plan import Operation, Plan, PlannedFlows
from simccl.planner import all_to_all_v, plan_collective
from simccl.timing import CollectiveTime, TimeTable, collective_time, time_table
from simccl.verify import VerifiedPlan, verify_plan

__all__ = [
    "Algorithm",
    "Collective",
    "CollectiveTime",
    "Communicator",
    "ExpertRouting",
    "InputError",
    "KvHandoff",
    "KvLayout",
    "LayerCache",
    "Operation",
    "Plan",
    "PlanError",
    "PlannedFlows",
    "Protocol",
    "TimeTable",
    "UnsupportedTopology",
    "VerifiedPlan",
    "all_to_all_v",
    "collective_time",
    "expert_combine",
    "expert_dispatch",
    "gpu_named",
    "kv_handoff_plan",
    "plan_collective",
    "time_table",
    "verify_plan",
]
