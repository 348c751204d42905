"""`halfsec bench llm`: this engine beside others, on the same weights, in one run.

Engines and machines are noisy, and other load changes from one minute to the next. So every
contestant is loaded once, in a process of its own, and they alternate: a few hundred milliseconds
each, round after round. A disturbance of a round affects all of them.

`contestant` is the interface and the process, `engine_under_test` and the `peer_` modules implement
it, `workload` has the prompts, `rounds` measures, `report` prints, `comparison` is the command.
`quality` is the bench of the arithmetic, `halfsec bench quality`.

`speculation` is the bench of the drafters, `halfsec bench llm --speculation`.

With `--device cuda` it is the bench of `gpu`: one engine against the limits of the card.
"""
