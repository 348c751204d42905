"""Drafts by Medusa heads, which start from the model's own last hidden state.

Needs a backend that exposes the LM head's input (`HiddenStates`): the heads start from the row that
chose the latest token. On a GPU the backend drafts by itself, inside the captured step
(`DraftsItself`).
"""

from collections.abc import Sequence
from pathlib import Path

from llm_engine.backends.base import Backend, DraftsItself, HiddenStates, Slot
from llm_engine.checkpoints.checkpoint import Checkpoint
from llm_engine.errors import ModelError
from llm_engine.models.medusa_heads import DraftHeads, SharedParts, draft, load_heads, shared_parts

from .drafter import Draft


class HeadDrafter:
    """Drafts on the host by heads. Belongs to the engine's thread."""

    name = "heads"

    def __init__(self, source: HiddenStates, heads: DraftHeads, shared: SharedParts) -> None:
        self.source = source
        self.heads = heads
        self.shared = shared

    def begin(self, slot: Slot) -> Draft:
        return _HeadDraft(self, slot)


class _HeadDraft:
    grade = 0

    def __init__(self, drafter: HeadDrafter, slot: Slot) -> None:
        self._drafter = drafter
        self._slot = slot

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        drafter = self._drafter
        # The last token has not been computed yet; the row before it chose it.
        state = drafter.source.hidden(self._slot, len(tokens) - 2)
        if state is None:
            return ()
        return draft(drafter.heads, drafter.shared, state, tokens[-1], max_tokens)

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: nothing is held."""


class BackendDrafter:
    """Proposes what the backend has drafted in its last step. Belongs to the engine's thread."""

    name = "heads"

    def __init__(self, source: DraftsItself) -> None:
        self.source = source

    def begin(self, slot: Slot) -> Draft:
        return _BackendDraft(self.source, slot)


class _BackendDraft:
    grade = 0

    def __init__(self, source: DraftsItself, slot: Slot) -> None:
        self._source = source
        self._slot = slot

    def propose(self, tokens: Sequence[int], max_tokens: int) -> Sequence[int]:
        return self._source.drafted(self._slot, len(tokens) - 1)[:max_tokens]

    def num_unread(self, num_tokens: int) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: nothing is held."""


def load_head_drafter(
    path: Path, checkpoint: Checkpoint, backend: Backend
) -> HeadDrafter | BackendDrafter:
    """Load heads for a loaded model, unless its backend has them already. Raises ModelError, also
    for a backend that they can't work with."""
    if isinstance(backend, DraftsItself) and backend.num_drafted:
        return BackendDrafter(backend)
    if not isinstance(backend, HiddenStates):
        raise ModelError(
            f"{path}: draft heads need a backend that shows hidden states: on a CPU any precision "
            "but int8 and int4"
        )
    heads = load_heads(path, checkpoint)
    return HeadDrafter(backend, heads, shared_parts(checkpoint, heads.tokens))
