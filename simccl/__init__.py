"""Collective communication: collective on a communicator -> flow graph, or a time."""

__version__ = "0.1.0"

from boundary.errors import InputError
from simccl.calibration import Calibration, read_calibration, shipped_calibration
from simccl.choice import Choice, choose
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator import Communicator
from simccl.custom_allreduce import Stack, check_measured
from simccl.deepep import Phase, expert_times_us
from simccl.errors import PlanError, UnsupportedTopology
from simccl.expert_planner import expert_combine, expert_dispatch
from simccl.experts import ExpertRouting
from simccl.hardware import gpu_named
from simccl.kv import KvFlows, KvTemplate, kv_handoff_plan, kv_template
from simccl.kv_handoff import Descriptors, KvHandoff, Striping
from simccl.kv_layout import KvLayout, LayerCache
from simccl.plan import Operation, Plan, PlannedFlows
from simccl.planner import all_to_all_v, plan_collective
from simccl.timing import CollectiveTime, TimeTable, collective_time, time_table
from simccl.verify import VerifiedPlan, verify_plan

__all__ = [
    "Algorithm",
    "Calibration",
    "Choice",
    "Collective",
    "CollectiveTime",
    "Communicator",
    "Descriptors",
    "ExpertRouting",
    "InputError",
    "KvFlows",
    "KvHandoff",
    "KvLayout",
    "KvTemplate",
    "LayerCache",
    "Operation",
    "Phase",
    "Plan",
    "PlanError",
    "PlannedFlows",
    "Protocol",
    "Stack",
    "Striping",
    "TimeTable",
    "UnsupportedTopology",
    "VerifiedPlan",
    "all_to_all_v",
    "check_measured",
    "choose",
    "collective_time",
    "expert_combine",
    "expert_dispatch",
    "expert_times_us",
    "gpu_named",
    "kv_handoff_plan",
    "kv_template",
    "plan_collective",
    "read_calibration",
    "shipped_calibration",
    "time_table",
    "verify_plan",
]
