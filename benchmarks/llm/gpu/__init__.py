"""`halfsec bench llm --device cuda`: one engine on one GPU, against what the card could do.

A step of one stream reads every weight once, so that the bytes of weights over the card's read
bandwidth is what no engine is faster than. Both are measured or counted here, and every figure
stands beside its limit. Weights may be random: what a step costs does not depend on the numbers.

`command` is the command, `harness` runs its jobs one after another and saves after each figure,
`figures` are what they yield, `bars` is what is to be reached. `card` measures the card, `products`
each operation, `steps` the backend, `heads` drafts in its graphs, `sockets` what a busy event loop
does to it, `others` other engines. `subjects` has the models.

Needs torch, Triton, numpy, tokenizers, safetensors, and none of what only other parts need.
"""
