"""Load format of vLLM that draws a model's weights (`aicb.profiling.engine_host.weights`); for engine processes."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from aicb.profiling.engine_host.weights import draw_weights

LOAD_FORMAT = "aicb_random"


@register_model_loader(LOAD_FORMAT)
class RandomWeightsLoader(DummyModelLoader):  # type: ignore[misc]
    """A loader that draws weights; where vLLM quantises while it loads, they are its own dummies."""

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        if any(get_layerwise_info(layer).can_load() for layer in model.modules()):
            super().load_weights(model, model_config)
        else:
            draw_weights(model)
