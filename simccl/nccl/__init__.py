"""NCCL's rules that several algorithms share: channels, work split, point-to-point, corrections."""
