"""Triton kernels. Importing this needs Triton; nothing else of the project does so."""
