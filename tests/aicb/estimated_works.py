"""Estimators of the H200, and attention of some requests."""

import numpy as np

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.mla_decode import MlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import Precision

H200 = get_gpu("h200")
STATE_FP32 = Precision(state="fp32")
ENGINE = InterpolationEstimator(H200)
GRAPH = InterpolationEstimator(H200, STATE_FP32, "graph")
COLD = InterpolationEstimator(H200, STATE_FP32, "cold")


def prefill(new, kv=None, heads=64, kv_heads=4, d_qk=128, d_v=128):
    return PrefillAttention(np.array(new), np.array(new if kv is None else kv), heads, kv_heads, d_qk, d_v)


def decode(kv, heads=64, kv_heads=4, head_dim=128):
    return DecodeAttention(np.array(kv), heads, kv_heads, head_dim)


def mla(kv, heads=128):
    return MlaDecode(np.array(kv), heads, 576, 512)
