"""Reference times of kernels: how libraries divide work among SMs, and the times that follow."""
