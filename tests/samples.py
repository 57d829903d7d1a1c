"""Files as other programs write them, which several tests read."""

from __future__ import annotations

from typing import Final

SIMAI_CONF: Final = """
ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 9000   # bytes
TRACE_FILE
FCT_OUTPUT_FILE out/fct.txt
CC_MODE 1
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
CLAMP_TARGET_RATE 0
RP_TIMER 900
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 50Mb/s
RATE_HAI 100Mb/s
MIN_RATE 100Mb/s
DCTCP_RATE_AI 1000Mb/s
ERROR_RATE_PER_LINK 0.0000
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
HAS_WIN 1
GLOBAL_T 0
VAR_WIN 1
FAST_REACT 1
U_TARGET 0.95
MI_THRESH 0
RATE_BOUND 1
ACK_HIGH_PRIO 0
LINK_DOWN 0 0 0
KMAX_MAP 2 25000000000 400 400000000000 3200
KMIN_MAP 2 25000000000 100 400000000000 800
PMAX_MAP 2 25000000000 0.2 400000000000 0.2
BUFFER_SIZE 32
"""
"""Keys and values as in SimAI's configuration of its packet-level runs."""

BUSBW: Final = """test
TP:
  allreduce,: 300
  allgather,: 280
  reducescatter,: 280
  alltoall,: 230
DP:
  allreduce,: null
  allgather,: 380
EP:
  alltoall,: 80
PP:
  busbw: 47.5
"""
"""Bus bandwidths in GB/s by group and collective, in SimAI's form."""
