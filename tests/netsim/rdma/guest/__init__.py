"""Guests: virtual machines with RDMA devices in software (Soft-RoCE), emulated by QEMU, for programs of the host."""
