"""Compute times of LLM inference: models, operators, measured kernels, estimates."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from boundary.errors import InputError

if TYPE_CHECKING:
    from aicb.experts.load import (
        BalancedLoad,
        ExpertLoad,
        PowerLawLoad,
        RecordedLoad,
        UniformLoad,
        ZipfLoad,
        parse_expert_load,
    )
    from aicb.iteration.graph_sizes import GraphSizes
    from aicb.iteration.layer_schedule import Exchange, HalfBatch, LayerParts, LayerSchedule, layered_overlap
    from aicb.iteration.model import IterationModel
    from aicb.iteration.overlap import Overlap, TwoBatchOverlap, halve
    from aicb.iteration.pricing import IterationCost, in_turn
    from aicb.iteration.speculative import Drafting, SpeculativeCost
    from aicb.kernels.fitting.estimate import UnmeasuredShape
    from aicb.measurements.gpu import Gpu, canonical_gpu, get_gpu, gpu_files, known_gpus
    from aicb.measurements.table import KernelTable
    from aicb.model.architecture import Model, kv_bytes_per_token_per_rank, stage_layers, state_bytes_per_rank
    from aicb.model.catalog import built_in_models, load_model, model_files
    from aicb.model.partition import MoeLayout, Partition, PartitionError
    from aicb.model.precision import Precision
    from aicb.operators.batch import Batch, RankBatches, one_by_one
    from aicb.operators.drafter import Drafter
    from aicb.operators.lists import (
        attention_operators,
        expert_operators,
        head_operators,
        iteration_operators,
        token_operators,
    )
    from aicb.operators.memory import InstanceMemory, instance_memory
    from aicb.operators.operator import Communication, Operator, Phase

__all__ = [
    "BalancedLoad",
    "Batch",
    "Communication",
    "Drafter",
    "Drafting",
    "Exchange",
    "ExpertLoad",
    "Gpu",
    "GraphSizes",
    "HalfBatch",
    "InputError",
    "InstanceMemory",
    "IterationCost",
    "IterationModel",
    "KernelTable",
    "LayerParts",
    "LayerSchedule",
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
    "TwoBatchOverlap",
    "UniformLoad",
    "UnmeasuredShape",
    "ZipfLoad",
    "attention_operators",
    "built_in_models",
    "canonical_gpu",
    "expert_operators",
    "get_gpu",
    "gpu_files",
    "halve",
    "head_operators",
    "in_turn",
    "instance_memory",
    "iteration_operators",
    "known_gpus",
    "kv_bytes_per_token_per_rank",
    "layered_overlap",
    "load_model",
    "model_files",
    "one_by_one",
    "parse_expert_load",
    "stage_layers",
    "state_bytes_per_rank",
    "token_operators",
]

_MODULES = {
    "BalancedLoad": "aicb.experts.load",
    "Batch": "aicb.operators.batch",
    "Communication": "aicb.operators.operator",
    "Drafter": "aicb.operators.drafter",
    "Drafting": "aicb.iteration.speculative",
    "Exchange": "aicb.iteration.layer_schedule",
    "ExpertLoad": "aicb.experts.load",
    "Gpu": "aicb.measurements.gpu",
    "GraphSizes": "aicb.iteration.graph_sizes",
    "HalfBatch": "aicb.iteration.layer_schedule",
    "InstanceMemory": "aicb.operators.memory",
    "IterationCost": "aicb.iteration.pricing",
    "IterationModel": "aicb.iteration.model",
    "KernelTable": "aicb.measurements.table",
    "LayerParts": "aicb.iteration.layer_schedule",
    "LayerSchedule": "aicb.iteration.layer_schedule",
    "Model": "aicb.model.architecture",
    "MoeLayout": "aicb.model.partition",
    "Operator": "aicb.operators.operator",
    "Overlap": "aicb.iteration.overlap",
    "Partition": "aicb.model.partition",
    "PartitionError": "aicb.model.partition",
    "Phase": "aicb.operators.operator",
    "PowerLawLoad": "aicb.experts.load",
    "Precision": "aicb.model.precision",
    "RankBatches": "aicb.operators.batch",
    "RecordedLoad": "aicb.experts.load",
    "SpeculativeCost": "aicb.iteration.speculative",
    "TwoBatchOverlap": "aicb.iteration.overlap",
    "UniformLoad": "aicb.experts.load",
    "UnmeasuredShape": "aicb.kernels.fitting.estimate",
    "ZipfLoad": "aicb.experts.load",
    "attention_operators": "aicb.operators.lists",
    "built_in_models": "aicb.model.catalog",
    "canonical_gpu": "aicb.measurements.gpu",
    "expert_operators": "aicb.operators.lists",
    "get_gpu": "aicb.measurements.gpu",
    "gpu_files": "aicb.measurements.gpu",
    "halve": "aicb.iteration.overlap",
    "in_turn": "aicb.iteration.pricing",
    "head_operators": "aicb.operators.lists",
    "instance_memory": "aicb.operators.memory",
    "iteration_operators": "aicb.operators.lists",
    "known_gpus": "aicb.measurements.gpu",
    "kv_bytes_per_token_per_rank": "aicb.model.architecture",
    "layered_overlap": "aicb.iteration.layer_schedule",
    "load_model": "aicb.model.catalog",
    "model_files": "aicb.model.catalog",
    "one_by_one": "aicb.operators.batch",
    "parse_expert_load": "aicb.experts.load",
    "stage_layers": "aicb.model.architecture",
    "state_bytes_per_rank": "aicb.model.architecture",
    "token_operators": "aicb.operators.lists",
}
"""Where each name is defined: imported when first asked for."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
