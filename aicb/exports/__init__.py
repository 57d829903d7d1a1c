"""Layer times in the file formats of other simulators: AICB, SimAI, Vidur (Alibaba's fork)."""

from aicb.exports.aicb_text import read_aicb, sum_by_layer, write_aicb
from aicb.exports.layers import ExportJob, LayerCost, layer_costs
from aicb.exports.simai import SimaiHeader, SimaiLine, read_simai, write_simai
from aicb.exports.vidur import VidurLine, read_vidur, write_vidur

__all__ = [
    "ExportJob",
    "LayerCost",
    "SimaiHeader",
    "SimaiLine",
    "VidurLine",
    "layer_costs",
    "read_aicb",
    "read_simai",
    "read_vidur",
    "sum_by_layer",
    "write_aicb",
    "write_simai",
    "write_vidur",
]
