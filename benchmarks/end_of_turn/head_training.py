"""Training of the turn model's head on the embeddings of pauses.

A network with one hidden layer and much dropout, because 3072 numbers describe each of a few
thousand pauses. Beside it was tried, on the pauses of at least 192 ms of all recordings of
speechocean762's held-back half (3900; area under the curve), and on the four kinds of held-back
turns (read, spliced pauses, halting, numbers):

| head | 3900 pauses | four kinds |
| --- | --- | --- |
| a ridge regression on 2 recordings a speaker | 0.844 | 0.75, 0.90, 0.89, 0.85 |
| the same on all, 14 on average | 0.902 | 0.71, 0.86, 0.92, 0.86 |
| this network on all, pauses drawn alike | 0.912 | 0.78, 0.90, 0.92, 0.87 |
| **kinds drawn more alike** (`EVENED`) | 0.903 | **0.82, 0.92, 0.92, 0.87** |

Of pauses drawn alike: half as many units 0.908 (0.77, 0.89, 0.92, 0.86), twice as many 0.914 (0.81,
0.92, 0.92, 0.87), three such networks together no better than one.

Noise under the recordings (`noisy_pauses.py`; two or three copies of each, area of the four kinds
clean, and of 2858 held-back pauses by noise and by how many dB the voice is above it):

| head | four kinds, clean | other voices, 0-14 dB | 14-25 dB | fan, music, keyboard |
| --- | --- | --- | --- | --- |
| 128 units, without noise | 0.82, 0.92, 0.92, 0.87 | 0.71 | 0.82 | 0.85 |
| 128 units | 0.80, 0.91, 0.92, 0.87 | 0.81 | 0.87 | 0.87 |
| **256 units** | 0.81, 0.92, 0.92, 0.88 | 0.81 | 0.88 | 0.87 |
| 256 units, 45 epochs | 0.81, 0.93, 0.92, 0.89 | 0.81 | 0.88 | 0.88 |
| 128 units, a third as much noise | 0.80, 0.92, 0.92, 0.87 | 0.79 | 0.86 | 0.87 |

The turn model could be asked again later in the pause. Where a recording goes on after its last
word by itself, so that no made silence tells the end, 0.24 s of silence instead of 0.1 gave a ridge
regression 0.902 instead of 0.886 for halting readers, and 0.855 instead of 0.868 for numbers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from asr.speech_detection.turn_model_head import TurnModelHead

UNITS: Final = 256
"""Units of the hidden layer."""

DROPOUT: Final = 0.7
"""Share of inputs and of units that a step of the training does without."""

EVENED: Final = 0.5
"""How far the kinds of turns are drawn alike: 0 is each pause alike, 1 each kind. Halting readers
have four fifths of the pauses."""

WEIGHT_DECAY: Final = 0.3
LEARNING_RATE: Final = 3e-4
BATCH: Final = 64
EPOCHS: Final = 30
SEED: Final = 20261128


def trained_head(
    embeddings: npt.NDArray[np.float32], is_end: npt.NDArray[np.bool_], kinds: Sequence[str]
) -> TurnModelHead:
    """Head trained on embeddings [pauses, n], whether each pause was the end of a turn, and the
    kind of each turn.

    The same for the same pauses on the same machine. Some 10 s for 5,000 pauses.
    """
    import torch  # a second, and only a fit needs it

    mean, spread = embeddings.mean(axis=0, dtype=np.float64), embeddings.std(axis=0)
    spread[spread < 1e-6] = 1.0
    inputs = torch.from_numpy(((embeddings - mean) / spread).astype(np.float32))
    labels = torch.from_numpy(is_end.astype(np.float32))
    counts = Counter(kinds)
    shares = torch.tensor([counts[kind] ** -EVENED for kind in kinds])
    num_batches = max(1, len(inputs) // BATCH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        first = torch.nn.Linear(embeddings.shape[1], UNITS)
        last = torch.nn.Linear(UNITS, 1)
        dropped = torch.nn.Dropout(DROPOUT)
        network = torch.nn.Sequential(dropped, first, torch.nn.ReLU(), dropped, last)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, LEARNING_RATE, total_steps=EPOCHS * num_batches
        )
        for _ in range(EPOCHS):
            drawn = torch.multinomial(shares, len(inputs), replacement=True)
            for batch in drawn.tensor_split(num_batches):
                optimizer.zero_grad()
                odds = network(inputs[batch])[:, 0]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, labels[batch])
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
    unscaled = first.weight.detach().numpy() / spread
    hidden = unscaled.astype(np.float16).astype(np.float32)  # as it is stored
    return TurnModelHead(
        hidden,
        (first.bias.detach().numpy() - hidden @ mean).astype(np.float32),
        last.weight.detach().numpy()[0],
        float(last.bias.detach()),
    )
