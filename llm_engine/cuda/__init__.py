"""Backend for NVIDIA GPUs: Triton kernels and captured steps.

Nothing here is imported where another backend is chosen. Only `kernels/` and, of `ops/`, the
modules `triton_ops`, `triton_step_inputs`, `prefill_gemm` and `flashinfer_attention` import Triton
or FlashInfer: everything else also runs on a CPU, with plain torch in place of the kernels
(`ops/reference_ops.py`), which is how it is tested.
"""
