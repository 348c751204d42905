"""The decoder on an NVIDIA GPU.

Nothing here is imported where another backend is chosen, and nothing but
`llm_engine/cuda/ops/triton_ops.py`,
`llm_engine/cuda/ops/triton_step_inputs.py`, `llm_engine/cuda/ops/prefill_gemm.py`, `kernels/` and
`llm_engine/cuda/ops/flashinfer_attention.py` imports Triton or
FlashInfer: everything else also runs on a CPU, with plain torch in the place of the kernels
(`llm_engine/cuda/ops/reference_ops.py`), which is how it is tested.
"""
