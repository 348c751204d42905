"""Training of draft heads on the model's own replies (self-distillation).

A wrong draft costs time and nothing else, so heads learn from the model itself: at each row of a
reply, the head for the next position but k learns the probabilities that the model gives there
(cross-entropy against its softmax over the tokens that can be drafted). The model is frozen. Rows
are computed once; a step takes some of them, shuffled over all replies.

Everything follows from the seed and the number of the step, and checkpoints are written atomically:
a training that was killed resumes to exactly the weights that it would have had.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from llm_engine.cuda.model import DeviceModel
from llm_engine.cuda.ops.interface import Matrix
from llm_engine.cuda.quantization import emulation
from llm_engine.cuda.quantization.emulation import Arithmetic, Emulation
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import (
    DraftHead,
    DraftHeads,
    HeadsShape,
    SharedParts,
    write_atomically,
)

_WARM_SHARE = 0.05
"""Share of the steps with a rising learning rate (warm-up): Adam's first steps have no variance
yet."""
_FURTHER = 0.8
"""Factor of each further head's loss: its draft counts only where the one before was right."""


@dataclass(frozen=True, slots=True)
class TrainingReply:
    """A reply of the model to a prompt, as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of a training."""

    num_heads: int = 4
    inner_size: int = 0
    """0: twice the model's hidden size."""
    num_tokens: int = 8192
    """Most tokens that can be drafted."""
    num_epochs: int = 6
    batch_rows: int = 256
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training rows of some replies, one behind the other."""

    states: Tensor
    """`[N, hidden]` float32: input of the LM head."""
    following: Tensor
    """`[N]` int64: token that was chosen there."""
    num_more: Tensor
    """`[N]` int64: rows of the same reply behind this one."""


@torch.inference_mode()
def read_rows(model: DeviceModel, reply: TrainingReply) -> TrainingRows:
    """Compute one reply's rows: from the prompt's last token to the reply's last but one."""
    ids = torch.tensor([*reply.prompt, *reply.tokens[:-1]], device=model.embedding.device)
    residual = emulation.hidden(model, ids, Arithmetic())[len(reply.prompt) - 1 :]
    normed = Emulation(model.rope, model.embedding.dtype).normed(residual, model.norm)
    following = torch.tensor(reply.tokens, device=ids.device)
    return TrainingRows(
        normed.float(), following, torch.arange(len(following)).flip(0).to(ids.device)
    )


def joined(rows: Sequence[TrainingRows]) -> TrainingRows:
    """Concatenate rows. Raises ModelError where there are none."""
    if not rows:
        raise ModelError("there are no replies to learn from")
    # Computed in inference mode; copies are ordinary tensors that allow gradients.
    return TrainingRows(
        *(
            torch.cat([getattr(each, field.name) for each in rows]).clone()
            for field in fields(TrainingRows)
        )
    )


def shared_of(model: DeviceModel, tokens: Tensor) -> SharedParts:
    """Weights of a loaded model that heads use, in float32. Its LM head must be floats."""
    assert isinstance(model.head, Matrix)
    return SharedParts(model.embedding.float().clone(), model.head.values[tokens].float().clone())


class Training:
    """A training under way. Call `step` until `num_done` is `num_steps`."""

    def __init__(
        self,
        shape: HeadsShape,
        tokens: Tensor,
        shared: SharedParts,
        rows: TrainingRows,
        recipe: Recipe,
    ) -> None:
        self._shape, self._tokens, self._rows, self._recipe = shape, tokens, rows, recipe
        # Embeddings are small in most models; scaled to RMS 1, one learning rate fits all.
        self._scale = 1 / float(shared.embedding.pow(2).mean().sqrt())
        self._shared = SharedParts(shared.embedding * self._scale, shared.rows)
        self._parameters = self._first_parameters()
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=recipe.learning_rate, weight_decay=0.01
        )
        self._usable = rows.num_more.nonzero()[:, 0]
        if not len(self._usable):
            raise ModelError("no reply has two tokens: there is nothing to learn")
        self._steps_an_epoch = -(-len(self._usable) // recipe.batch_rows)
        self.num_steps = self._steps_an_epoch * recipe.num_epochs
        self.num_done = 0

    def step(self) -> float:
        """Train on one batch; returns the first head's loss in nats."""
        self._optimizer.param_groups[0]["lr"] = self._rate()
        losses = self._losses(self._batch())
        total = sum(_FURTHER**place * loss for place, loss in enumerate(losses))
        assert isinstance(total, Tensor)
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        self._optimizer.step()
        self.num_done += 1
        return losses[0].item()

    def heads(self) -> DraftHeads:
        """The heads as they are now, on the CPU."""
        values = {name: value.detach().clone() for name, value in self._parameters.items()}
        for name in values:
            if name.endswith(".token"):
                values[name] *= self._scale
        heads = tuple(
            DraftHead(**{name: values[f"{index}.{name}"].cpu() for name in DraftHead.__slots__})
            for index in range(self._shape.num_heads)
        )
        return DraftHeads(self._shape, heads, self._tokens.cpu())

    def save(self, path: Path) -> None:
        """Write weights, optimizer state and progress. Raises OSError."""
        tensors = {name: value.detach() for name, value in self._parameters.items()}
        for name, value in self._parameters.items():
            for kind, known in self._optimizer.state[value].items():
                tensors[f"{kind}.{name}"] = known
        write_atomically(path, tensors, {"num_done": str(self.num_done), **self._settings()})

    def restore(self, path: Path) -> None:
        """Resume from a saved state. Raises ModelError for a file of another training."""
        from safetensors import safe_open

        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            tensors = load_file(path, device=str(self._shared.rows.device))
            num_done = int(metadata.pop("num_done"))
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise ModelError(f"{path}: cannot be resumed from ({error}); remove it") from None
        if metadata != self._settings():
            raise ModelError(f"{path}: of other settings, replies or weights; remove it")
        with torch.no_grad():
            for name, value in self._parameters.items():
                value.copy_(tensors[name])
                self._optimizer.state[value] = {
                    kind: tensors[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")
                }
        self.num_done = num_done

    def _settings(self) -> dict[str, str]:
        settings = asdict(self._recipe) | asdict(self._shape) | {"rows": len(self._rows.states)}
        return {name: str(value) for name, value in settings.items()}

    def _first_parameters(self) -> dict[str, Tensor]:
        """Initial weights: a head repeats the model's last choice; training adds to that."""
        generator = torch.Generator().manual_seed(self._recipe.seed)
        hidden = self._shape.hidden_size
        size = float(self._rows.states.pow(2).mean().sqrt())
        first: dict[str, Tensor] = {}
        for name, shape in self._shape.shapes().items():
            kind = name.rpartition(".")[2]
            if kind == "gate_up":
                values = torch.randn(shape, generator=generator) / math.sqrt(hidden)
            elif kind in ("norm", "out_norm"):
                values = torch.full(shape, 1.0 if kind == "norm" else size)
            else:
                values = torch.zeros(shape)
            if kind != "tokens":
                first[name] = values.to(self._rows.states.device).requires_grad_()
        return first

    def _rate(self) -> float:
        share = (self.num_done + 1) / self.num_steps
        if share < _WARM_SHARE:
            return self._recipe.learning_rate * share / _WARM_SHARE
        return self._recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * share))

    def _batch(self) -> Tensor:
        epoch, place = divmod(self.num_done, self._steps_an_epoch)
        generator = torch.Generator().manual_seed(self._recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self._usable), generator=generator)
        size = self._recipe.batch_rows
        picked = order[place * size : (place + 1) * size].to(self._usable.device)
        return self._usable[picked]

    def _losses(self, batch: Tensor) -> list[Tensor]:
        """Loss of each head, the mean over the rows whose reply is long enough."""
        rows, shared, eps = self._rows, self._shared, self._shape.norm_eps
        state = rows.states[batch]
        losses = []
        for index in range(self._shape.num_heads):
            kept = rows.num_more[batch] > index
            batch, state = batch[kept], state[kept]
            if not len(batch):
                break
            head = self._head(index)
            state = head.advance(state, shared.embedding[rows.following[batch + index]], eps)
            with torch.no_grad():
                wanted = (rows.states[batch + index + 1] @ shared.rows.T).softmax(dim=1)
            logits = head.outputs(state, eps) @ shared.rows.T
            losses.append(F.cross_entropy(logits, wanted))
        return losses

    def _head(self, index: int) -> DraftHead:
        names = DraftHead.__slots__
        return DraftHead(**{name: self._parameters[f"{index}.{name}"] for name in names})


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of drafts on held-out replies."""

    by_position: tuple[float, ...]
    """Acceptance rate of each head, among rows where all heads before it were right."""
    tokens_a_step: float
    """Mean tokens of a step with drafts of all heads: the certain token and the accepted ones."""
    num_rows: int


@torch.inference_mode()
def acceptance(heads: DraftHeads, shared: SharedParts, rows: TrainingRows) -> Acceptance:
    """Draft at every row that has a whole draft's tokens behind it, and compare.

    Raises ModelError where no reply is long enough.
    """
    batch = (rows.num_more >= len(heads.heads)).nonzero()[:, 0]
    if not len(batch):
        raise ModelError("no reply is longer than a draft: nothing can be compared")
    state, eps, num_rows = rows.states[batch], heads.shape.norm_eps, len(batch)
    shares = []
    num_right = 0
    for index, head in enumerate(heads.heads):
        state = head.advance(state, shared.embedding[rows.following[batch + index]], eps)
        guessed = heads.tokens[(head.outputs(state, eps) @ shared.rows.T).argmax(dim=1)]
        # Where all before were right, the reply's tokens are those that were drafted.
        right = guessed == rows.following[batch + index + 1]
        shares.append(float(right.double().mean()) if len(batch) else 0.0)
        batch, state = batch[right], state[right]
        num_right += len(batch)
    return Acceptance(tuple(shares), 1 + num_right / num_rows, num_rows)
