"""Draft heads (Medusa, Hydra): predict the tokens after the next one from the last hidden state.

Medusa (arXiv 2401.10774) puts a residual layer for each future position on the model's last hidden
state and decodes it with the model's own head. As in Hydra (arXiv 2402.05109) each of ours also
takes in the token before it: the one that was really chosen for the first, then those drafted.

A state begins as the LM head's input, the row behind the final norm. For each position:

    state += token @ embedding[the token before]
    state += down @ (silu(gate @ n) * (up @ n))     n: the state, normalized
    logits = (rows of the LM head) @ (the state, normalized)

These are operations that a backend has anyway (`llm_engine.cuda.ops`). Only `tokens` of the
vocabulary are drafted: those that were frequent in training, so that a draft does not read the
whole LM head.

On disk: `heads.safetensors`, whose metadata names the model. Heads fit the model whose norms and
sizes they were trained on, in any format and precision.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.checkpoints.packed_weights import FusedWeights
from llm_engine.config import MAX_DRAFT_TOKENS
from llm_engine.errors import ModelError

from .tensors import tensor

FILE = "heads.safetensors"
FORMAT = "halfsec-draft-heads-1"
MAX_HEADS = MAX_DRAFT_TOKENS
"""One head drafts one token."""
_LARGEST_INNER = 1 << 18


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """Sizes of draft heads and the fingerprint of their model."""

    model: str
    """Fingerprint of the model: see `model_fingerprint`."""
    hidden_size: int
    vocab_size: int
    num_heads: int
    inner_size: int
    num_tokens: int
    """Tokens that can be drafted."""
    norm_eps: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor in the file, by name."""
        hidden, inner = self.hidden_size, self.inner_size
        one = {
            "token": (hidden, hidden),
            "norm": (hidden,),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
            "out_norm": (hidden,),
        }
        heads = {
            f"{index}.{name}": shape
            for index in range(self.num_heads)
            for name, shape in one.items()
        }
        return heads | {"tokens": (self.num_tokens,)}


@dataclass(frozen=True, slots=True)
class DraftHead:
    """Weights of the head for one position."""

    token: Tensor
    """`[hidden, hidden]`"""
    norm: Tensor
    """`[hidden]`: norm of the state before the layer."""
    gate_up: Tensor
    """`[2 * inner, hidden]`, gate above up."""
    down: Tensor
    """`[hidden, inner]`"""
    out_norm: Tensor
    """`[hidden]`: norm of the state before the LM head."""

    def advance(self, state: Tensor, embedded: Tensor, eps: float) -> Tensor:
        """Next state `[..., hidden]`, after tokens with the embeddings `embedded [..., hidden]`."""
        state = state + F.linear(embedded, self.token)
        normed = F.rms_norm(state, self.norm.shape, self.norm, eps)
        gate, up = F.linear(normed, self.gate_up).chunk(2, dim=-1)
        return state + F.linear(F.silu(gate) * up, self.down)

    def outputs(self, state: Tensor, eps: float) -> Tensor:
        """Normalized state, the input of the LM head."""
        return F.rms_norm(state, self.out_norm.shape, self.out_norm, eps)


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """All heads of a model, float32."""

    shape: HeadsShape
    heads: tuple[DraftHead, ...]
    tokens: Tensor
    """`[num_tokens]` int64, ascending: tokens that can be drafted."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Weights of the model that heads use, float32."""

    embedding: Tensor
    """`[vocab, hidden]`"""
    rows: Tensor
    """`[num_tokens, hidden]`: LM head rows of the tokens that can be drafted."""


@torch.inference_mode()
def draft(
    heads: DraftHeads, shared: SharedParts, state: Tensor, token_id: int, max_tokens: int
) -> list[int]:
    """Draft the likeliest tokens after `token_id`, which the model chose at the row `state
    [hidden]`."""
    drafted: list[int] = []
    for head in heads.heads[:max_tokens]:
        state = head.advance(state, shared.embedding[token_id], heads.shape.norm_eps)
        logits = shared.rows @ head.outputs(state, heads.shape.norm_eps)
        token_id = int(heads.tokens[int(logits.argmax())])
        drafted.append(token_id)
    return drafted


def shared_parts(checkpoint: Checkpoint, tokens: Tensor) -> SharedParts:
    """Read the weights of a model that heads use. Raises ModelError."""
    weights = FusedWeights(checkpoint)
    embedding = tensor(weights.embedding()).float()
    head = tensor(weights.head()) if weights.has_own_head else embedding
    return SharedParts(embedding, head[tokens].float())


def model_fingerprint(checkpoint: Checkpoint) -> str:
    """Fingerprint of a model's sizes and norms, which no quantization touches: the same for every
    format and precision, and another for a model trained further. Raises ModelError."""
    config, weights = checkpoint.config, FusedWeights(checkpoint)
    sizes = config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size
    digest = hashlib.sha256(repr(sizes).encode())
    vectors = [weights.final_norm()]
    for layer in range(config.num_layers):
        vectors += [vector for _, vector in weights.vectors(layer)]
    for vector in vectors:
        digest.update(tensor(vector).bfloat16().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def save_heads(directory: Path, heads: DraftHeads) -> Path:
    """Write the heads' file atomically. Raises OSError."""
    tensors = {
        f"{index}.{name}": getattr(head, name).float().contiguous()
        for index, head in enumerate(heads.heads)
        for name in DraftHead.__slots__
    }
    tensors["tokens"] = heads.tokens.int()
    metadata = {"format": FORMAT, "shape": json.dumps(asdict(heads.shape))}
    directory.mkdir(parents=True, exist_ok=True)
    return write_atomically(directory / FILE, tensors, metadata)


def write_atomically(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> Path:
    """Write a safetensors file atomically. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(save(dict(tensors), metadata))
    part.replace(path)
    return path


def load_heads(path: Path, checkpoint: Checkpoint) -> DraftHeads:
    """Read heads for a model. `path`: the file, or its directory.

    Raises ModelError for a file that is damaged or not of heads, and for another model's.
    """
    file = path / FILE if path.is_dir() else path
    try:
        with safe_open(file, framework="pt") as opened:
            shape = _read_shape(opened.metadata() or {}, file)
            names = set(opened.keys())
            tensors = {name: opened.get_tensor(name) for name in shape.shapes() if name in names}
    except FileNotFoundError:
        raise ModelError(
            f"{file}: no such file; `halfsec train-heads` makes one for a model"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: cannot be read as draft heads: {error}") from None
    _check_model(shape, checkpoint, file)
    for name, wanted in shape.shapes().items():
        values = tensors.get(name)
        if values is None or tuple(values.shape) != wanted:
            found = "missing" if values is None else f"of shape {tuple(values.shape)}"
            raise ModelError(
                f"{file}: tensor {name!r} is {found}; heads of this kind have {wanted}"
            )
        if not bool(values.isfinite().all()):
            raise ModelError(f"{file}: tensor {name!r} is damaged: it holds NaN or infinity")
    tokens = tensors["tokens"].long()
    if not bool((tokens.diff() > 0).all()) or not 0 <= int(tokens[0]) <= int(tokens[-1]) < (
        shape.vocab_size
    ):
        raise ModelError(f"{file}: tensor 'tokens' is damaged: not ascending within the vocabulary")
    heads = tuple(
        DraftHead(**{name: tensors[f"{index}.{name}"].float() for name in DraftHead.__slots__})
        for index in range(shape.num_heads)
    )
    return DraftHeads(shape, heads, tokens)


def _read_shape(metadata: Mapping[str, str], file: Path) -> HeadsShape:
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"{file}: is no file of draft heads, or of another version: its format is "
            f"{metadata.get('format')!r} instead of {FORMAT!r}"
        )
    try:
        values: Any = json.loads(metadata["shape"])
        shape = HeadsShape(**values)
        counts = [(shape.num_heads, MAX_HEADS), (shape.inner_size, _LARGEST_INNER)]
        counts.append((shape.num_tokens, shape.vocab_size))
        is_possible = all(type(count) is int and 1 <= count <= most for count, most in counts)
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"{file}: does not say what it is for: {error!r}") from None
    if not is_possible or not isinstance(shape.norm_eps, float):
        raise ModelError(f"{file}: no heads are {values}")
    return shape


def _check_model(shape: HeadsShape, checkpoint: Checkpoint, file: Path) -> None:
    config = checkpoint.config
    own = config.hidden_size, config.vocab_size
    if (shape.hidden_size, shape.vocab_size) != own:
        raise ModelError(
            f"{file}: made for a model of hidden size {shape.hidden_size} and "
            f"{shape.vocab_size} tokens; {checkpoint.path} has {own[0]} and {own[1]}"
        )
    if shape.model != model_fingerprint(checkpoint):
        raise ModelError(
            f"{file}: made for another model of the same size than {checkpoint.path}; its drafts "
            "would seldom be right: train heads for this one"
        )


def frequent_tokens(texts: Sequence[Sequence[int]], most: int) -> Tensor:
    """Most frequent tokens of texts, ascending; of equally frequent ones the lower."""
    flat = torch.tensor([token for text in texts for token in text])
    counts = torch.bincount(flat)
    best = (-counts).argsort(stable=True)[: min(most, int((counts > 0).sum()))]
    return best.sort().values
