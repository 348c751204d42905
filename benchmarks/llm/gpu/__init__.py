"""`halfsec bench llm --device cuda`: one engine on one GPU, against the limits of the card.

A decode step of one sequence reads every weight once, so the bytes of the weights over the card's
read bandwidth are a lower bound of its time for any engine. Both are measured or counted here, and
every figure is printed beside its limit. Weights may be random: the cost of a step does not depend
on their values.

`command` is the command, `harness` runs its jobs one after another and saves after each figure,
`figures` has their results, `targets` the targets. `device_limits` measures the card, `gemm` each
operation, `steps` the backend, `draft_heads` drafts in its graphs, `arguments` other launch
options, `sockets` the effect of a busy event loop, `other_engines` other engines. `models` has the
models.

Needs torch, Triton, numpy, tokenizers, safetensors, and no package that only other parts need.
"""
