"""What a step chose, on its way back to the host."""

import torch
from torch import Tensor


class Answer:
    """The tokens of one step, there once `wait` returns."""

    def __init__(self, chosen: Tensor) -> None:
        """Fetch `chosen [B, Q]`, as it will be when what was launched so far is done."""
        is_cuda = chosen.device.type == "cuda"
        # Page-locked memory comes from torch's own cache, which waits for copies under way.
        self._host = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=is_cuda)
        self._host.copy_(chosen, non_blocking=True)
        self._arrived = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()
        self._tokens: list[list[int]] | None = None

    def wait(self) -> list[list[int]]:
        """The tokens of each lane's rows. The thread waits without Python's lock, and does not
        sleep: to be woken would take longer than the rest of a short step."""
        if self._tokens is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._tokens = self._host.tolist()
        return self._tokens
