"""Layer times in the file formats of other simulators: AICB, SimAI, Vidur (Alibaba's fork)."""

from aicb.formats.exports.aicb_text import aicb_paths, read_aicb, sum_by_layer, write_aicb
from aicb.formats.exports.layers import ExportJob, LayerCost, layer_costs
from aicb.formats.exports.simai import SimaiHeader, SimaiLine, read_simai, simai_paths, write_simai
from aicb.formats.exports.vidur import VidurLine, read_vidur, vidur_paths, write_vidur

__all__ = [
    "ExportJob",
    "LayerCost",
    "SimaiHeader",
    "SimaiLine",
    "VidurLine",
    "aicb_paths",
    "layer_costs",
    "read_aicb",
    "read_simai",
    "read_vidur",
    "simai_paths",
    "sum_by_layer",
    "vidur_paths",
    "write_aicb",
    "write_simai",
    "write_vidur",
]
