"""RoCE as packets move: its settings, constants of congestion control, and what packets add to bytes."""
