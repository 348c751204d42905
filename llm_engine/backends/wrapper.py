"""Base class of backends that wrap another one."""

from .base import Backend, CacheLayout, Plan, Slot, StepHandle, StepResult


class BackendWrapper:
    """`Backend` that delegates every call. A subclass overrides what it changes.

    Optional interfaces (`HasProcesses`, `DraftsItself`, `HiddenStates`) are not delegated: a
    subclass has those that it implements itself.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @property
    def layout(self) -> CacheLayout:
        return self._inner.layout

    def open_slot(self) -> Slot:
        return self._inner.open_slot()

    def close_slot(self, slot: Slot) -> None:
        self._inner.close_slot(slot)

    def copy_prefix(self, source: Slot, target: Slot, num_tokens: int) -> None:
        self._inner.copy_prefix(source, target, num_tokens)

    def launch(self, plan: Plan) -> StepHandle:
        return self._inner.launch(plan)

    def collect(self, handle: StepHandle) -> StepResult:
        return self._inner.collect(handle)

    def cache_bytes(self) -> int:
        return self._inner.cache_bytes()
