"""Random weights by which a model computes with values as spread as a trained one's; for engine processes.

Engines' own (``load_format: dummy``) are within a thousandth, the same for parameters of one shape: in fp8 most are
zero, and every token goes to the same experts, so that clocks, power and loads of experts are not a model's. Here
parameters differ, routers have no bias, and embeddings are large against what attention adds, so that tokens stay
different from each other in deep layers and choose experts as if at random.
"""

from __future__ import annotations

import zlib

import torch

SPREAD = 0.02
"""Standard deviation of weights, that of initialisation in DeepSeek-V3 and Qwen3 (``initializer_range``)."""
OF_EMBEDDINGS, OF_ATTENTION_OUTPUTS = 1.0, 0.1 * SPREAD
FP8_SPREAD, FP8_LARGEST = 112.0, 448.0
"""Of stored e4m3 numbers; four deviations are the largest that the format has."""
MXFP4_SCALE = 120
"""Stored scale (e8m0) of 2^-7. Codes of e2m1 drawn evenly have a spread of 2.9, weights one of 0.023."""
AT_ONCE = 1 << 26
"""Numbers drawn at a time, which bounds the memory besides the weights."""
LEFT_AS_THEY_ARE = ("k_scale", "v_scale", "q_scale", "prob_scale", "input_scale", "k_zero_point", "v_zero_point")
WEIGHT_SCALES = ("weight_scale", "weight_scale_inv")


@torch.no_grad()  # type: ignore[untyped-decorator]
def draw_weights(model: torch.nn.Module) -> None:
    """Sets the parameters and buffers of a model that are numbers of any format, each from a seed of its name."""
    with_norms_one_off = {name for name, module in model.named_modules() if "Gemma" in type(module).__name__}
    seen = set()
    for name, parameter in model.state_dict().items():
        storage = (parameter.data_ptr(), parameter.numel())
        is_mxfp4 = parameter.dtype == torch.uint8 and name.endswith(("weight", *WEIGHT_SCALES))
        is_drawn = parameter.is_floating_point() or is_mxfp4
        if parameter.is_meta or not is_drawn or storage in seen:
            continue
        seen.add(storage)
        _draw(name, parameter, 0.0 if name.rpartition(".")[0] in with_norms_one_off else 1.0)


def _draw(name: str, parameter: torch.Tensor, norm: float) -> None:
    module, _, leaf = name.rpartition(".")
    if leaf.endswith(LEFT_AS_THEY_ARE):
        return
    if parameter.dtype == torch.uint8:
        _draw_mxfp4(leaf, parameter, name)
    elif leaf.endswith(WEIGHT_SCALES):
        parameter.fill_(SPREAD / FP8_SPREAD)
    elif leaf.endswith("bias"):
        parameter.zero_()
    elif "norm" in name.lower() and parameter.dim() == 1:
        parameter.fill_(norm)
    elif parameter.element_size() == 1:
        _draw_fp8(parameter, _generator(name, parameter))
    else:
        is_embedding, is_output = "embed_tokens" in name, module.endswith(("o_proj", "out_proj"))
        spread = OF_EMBEDDINGS if is_embedding else OF_ATTENTION_OUTPUTS if is_output else SPREAD
        parameter.normal_(0.0, spread, generator=_generator(name, parameter))


def _generator(name: str, parameter: torch.Tensor) -> torch.Generator:
    return torch.Generator(device=parameter.device).manual_seed(zlib.crc32(name.encode()))


def _draw_mxfp4(leaf: str, parameter: torch.Tensor, name: str) -> None:
    """Two codes a byte, a scale for each 32 (OCP Microscaling Formats v1.0, section 5.2)."""
    if leaf.endswith(WEIGHT_SCALES):
        parameter.fill_(MXFP4_SCALE)
    else:
        parameter.random_(0, 256, generator=_generator(name, parameter))


def _draw_fp8(parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Rows of the outermost dimension at a time, so many that `AT_ONCE` numbers are not exceeded."""
    rows = max(1, AT_ONCE // max(1, parameter[0].numel()))
    for part in parameter.split(rows):
        drawn = torch.empty(part.shape, dtype=torch.float16, device=part.device)
        drawn.normal_(0.0, FP8_SPREAD, generator=generator).clamp_(-FP8_LARGEST, FP8_LARGEST)
        part.copy_(drawn.to(part.dtype))
