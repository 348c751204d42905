"""Ids of events, items and responses: prefix, seed of the session, counter."""

from itertools import count


class CountingIds:
    """Unique within a session, the same again in a replay. Call it with a prefix: "event".

    Two factories in one session need two seeds. Ids are names, not secrets.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = count(1)

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{self._seed}{next(self._count):06x}"
