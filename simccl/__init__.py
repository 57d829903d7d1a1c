"""Collective communication: collective on a communicator -> flow graph, or a time."""

__version__ = "0.1.0"

from boundary.errors import InputError
from simccl.collective import Algorithm, Collective, Protocol
from simccl.communicator.communicator import Communicator
from simccl.communicator.gpus import UnsupportedTopology, gpu_named
from simccl.engines.all_reduce import FLASHINFER_RANKS, check_measured
from simccl.engines.all_reduce import AllReduceKernels as Stack
from simccl.engines.deepep import expert_times_us
from simccl.engines.expected_routing import ExpectedRouting
from simccl.engines.expert_choice import ExpertChoice, RankPopularity
from simccl.engines.expert_mode import Phase
from simccl.engines.expert_plan import expert_combine, expert_dispatch
from simccl.engines.expert_routing import ExpertRouting
from simccl.engines.worker_exchange import WorkerExchange, worker_exchange_plan
from simccl.kv.handoff import Descriptors, KvHandoff, Striping, posting_rates_bps, striped
from simccl.kv.layout import KvLayout, LayerCache
from simccl.kv.template import KvFlows, KvTemplate, kv_handoff_plan, kv_template
from simccl.nccl.costs import Choice
from simccl.plan.flows import Operation, PlannedFlows
from simccl.plan.plan import Plan
from simccl.plan.postcondition import PlanError
from simccl.planning.calibration import Calibration, read_calibration, shipped_calibration
from simccl.planning.choice import choose
from simccl.planning.planner import all_to_all_v, plan_collective
from simccl.planning.timing import CollectiveTime, TimeTable, collective_time, following_time_ps, time_table
from simccl.planning.verify import VerifiedPlan, verify_plan

__all__ = [
    "FLASHINFER_RANKS",
    "Algorithm",
    "Calibration",
    "Choice",
    "Collective",
    "CollectiveTime",
    "Communicator",
    "Descriptors",
    "ExpectedRouting",
    "ExpertChoice",
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
    "RankPopularity",
    "Stack",
    "Striping",
    "TimeTable",
    "UnsupportedTopology",
    "VerifiedPlan",
    "WorkerExchange",
    "all_to_all_v",
    "check_measured",
    "choose",
    "collective_time",
    "expert_combine",
    "expert_dispatch",
    "expert_times_us",
    "following_time_ps",
    "gpu_named",
    "kv_handoff_plan",
    "kv_template",
    "plan_collective",
    "posting_rates_bps",
    "read_calibration",
    "shipped_calibration",
    "striped",
    "time_table",
    "verify_plan",
    "worker_exchange_plan",
]
