"""Triton kernels. Importing this package needs Triton."""
