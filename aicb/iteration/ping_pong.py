"""Schedule of micro-batches on attention workers and FFN workers that take turns (ping-pong pipeline).

In every layer a micro-batch passes four resources: the attention workers, the way to the FFN workers, these, and the
way back. Each serves micro-batches one at a time, in the order of layers and of micro-batches, and a micro-batch begins
a layer when its rows of the layer before are back:

    attention   A00 A01 ··· A10 A11           Alj: layer l of micro-batch j
    send            S00 S01     S10 S11
    FFN                 F00 F01     F10 F11
    return                  R00 R01     R10 R11

That is the pipeline of MegaScale-Infer (arXiv 2504.02263, section 4.1), without its condition that all stages take
equally long: the length is that of the longest path (`aicb/core/ping_pong.cpp`), as a function of the factor by which
communication lasts longer than on an idle fabric.

Assumed: buffers for all micro-batches; sends and returns go in opposite directions and do not delay each other; no
layer of a micro-batch begins before all of its attention workers have sent, as FFN workers compute the rows of all
together (the synchronous form; vLLM's AFD plugin also has an asynchronous one).
"""

from aicb._core import PingPong, PingPongTime

PIECES = ("attention", "send", "ffn", "return")
"""Order of what a micro-batch does in a layer."""

__all__ = ["PIECES", "PingPong", "PingPongTime"]
