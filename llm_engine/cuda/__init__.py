"""The decoder on an NVIDIA GPU.

Nothing here is imported where another backend is chosen, and nothing but `triton_ops.py`,
`triton_lanes.py`, `prompt_products.py`, `kernels/` and `flashinfer_attention.py` imports Triton or
FlashInfer: everything else also runs on a CPU, with plain torch in the place of the kernels
(`oracle.py`), which is how it is tested.
"""
