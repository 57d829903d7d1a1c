"""Compute times of LLM inference: models, operators, measured kernels, estimates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aicb.batch import Batch, RankBatches
from aicb.catalog import built_in_models, load_model
from aicb.errors import UnmeasuredShape
from aicb.expert_load import (
    BalancedLoad,
    ExpertLoad,
    PowerLawLoad,
    RecordedLoad,
    UniformLoad,
    ZipfLoad,
    parse_expert_load,
)
from aicb.gpu import Gpu, get_gpu, known_gpus
from aicb.input_files import gpu_files, model_files
from aicb.memory import InstanceMemory, instance_memory
from aicb.model import Model, kv_bytes_per_token_per_rank, stage_layers, state_bytes_per_rank
from aicb.operator_list import (
    attention_operators,
    expert_operators,
    head_operators,
    iteration_operators,
    token_operators,
)
from aicb.operators import Communication, Operator, Phase
from aicb.parallelism import MoeLayout, Partition, PartitionError
from aicb.precision import Precision
from boundary.errors import InputError

if TYPE_CHECKING:
    from aicb.iteration import IterationCost, IterationModel
    from aicb.overlap import Overlap, Turns, halve, two_batch_ps, two_batch_turns
    from aicb.speculative import Drafting, SpeculativeCost
    from aicb.table import KernelTable

__all__ = [
    "BalancedLoad",
    "Batch",
    "Communication",
    "Drafting",
    "ExpertLoad",
    "Gpu",
    "InputError",
    "InstanceMemory",
    "IterationCost",
    "IterationModel",
    "KernelTable",
    "Model",
    "MoeLayout",
    "Operator",
    "Overlap",
    "Partition",
    "PartitionError",
    "Phase",
    "PowerLawLoad",
    "Precision",
    "RankBatches",
    "RecordedLoad",
    "SpeculativeCost",
    "Turns",
    "UniformLoad",
    "UnmeasuredShape",
    "ZipfLoad",
    "attention_operators",
    "built_in_models",
    "expert_operators",
    "get_gpu",
    "gpu_files",
    "halve",
    "head_operators",
    "instance_memory",
    "iteration_operators",
    "known_gpus",
    "kv_bytes_per_token_per_rank",
    "load_model",
    "model_files",
    "parse_expert_load",
    "stage_layers",
    "state_bytes_per_rank",
    "token_operators",
    "two_batch_ps",
    "two_batch_turns",
]

_LAZY = {
    "Drafting": "aicb.speculative",
    "IterationCost": "aicb.iteration",
    "IterationModel": "aicb.iteration",
    "KernelTable": "aicb.table",
    "Overlap": "aicb.overlap",
    "SpeculativeCost": "aicb.speculative",
    "halve": "aicb.overlap",
    "Turns": "aicb.overlap",
    "two_batch_ps": "aicb.overlap",
    "two_batch_turns": "aicb.overlap",
}
"""Names whose modules read tables of measurements: imported when first asked for."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
