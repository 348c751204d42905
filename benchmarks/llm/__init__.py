"""`halfsec bench llm`: this engine beside others, on the same weights, in one run.

Engines and machines are noisy: what something else on the machine does to one minute is not what
it does to the next. So every contestant is loaded in a process of its own and kept, and they take
turns: a few hundred milliseconds each, round after round. What disturbs a round disturbs all.

`contestant` says what each must be able to do and keeps its process, `own` and the `peer_` modules
do it, `script` is what is said, `rounds` asks in turn, `report` prints, `comparison` is the
command.

With `--device cuda` it is the bench of `gpu`: one engine, against what the card could do.
"""
