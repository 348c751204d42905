"""Paged KV block allocator: reference counts, block tables, copy-on-write.

A sequence's keys and values lie in pages (vLLM's blocks) of a fixed number of tokens. Its *block
table* lists them in order of position. Two sequences with the same prefix can list the same pages;
each entry is counted, and a page is free again when no table lists it.

A shared page is never written: a sequence about to extend into one first gets a page of its own,
and the backend a `PageCopy` (copy-on-write). Only the last, partly filled page can be written at
all, so a fork costs at most one copied page, when one of the two goes on.

Pure: ids only, no memory. Not thread-safe.
"""

from collections import Counter
from collections.abc import Iterable

from llm_engine.backends.base import PageCopy, PageId


class OutOfPagesError(Exception):
    """The pool has fewer free pages than asked for. Nothing was changed."""


class PagePool:
    """Pool of pages with reference counts."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = [PageId(page) for page in reversed(range(num_pages))]
        self._num_users = [0] * num_pages
        self.high_water = 0
        """Most pages in use at once so far."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    def take(self, num_pages: int) -> list[PageId]:
        """Allocate free pages, each with a count of one. Raises OutOfPagesError."""
        if num_pages > len(self._free):
            raise OutOfPagesError
        taken = [self._free.pop() for _ in range(num_pages)]
        for page in taken:
            self._num_users[page] = 1
        self.high_water = max(self.high_water, self.num_used)
        return taken

    def share(self, pages: Iterable[PageId]) -> None:
        """Add a reference to each of these pages, which are in use."""
        for page in pages:
            assert self._num_users[page]
            self._num_users[page] += 1

    def release(self, pages: Iterable[PageId]) -> None:
        """Drop a reference to each page; the last one frees it."""
        for page in pages:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                self._free.append(page)

    def is_shared(self, page: PageId) -> bool:
        return self._num_users[page] > 1

    def check(self, tables: Iterable["BlockTable"]) -> None:
        """Integrity check: raise AssertionError unless these tables explain every count exactly."""
        listed = Counter(page for table in tables for page in table.pages)
        for page, num_users in enumerate(self._num_users):
            assert listed[PageId(page)] == num_users, f"page {page}: {num_users} users, not listed"
        assert sorted(self._free) == [
            page for page, num_users in enumerate(self._num_users) if not num_users
        ], "the list of free pages is wrong"


class BlockTable:
    """Block table of one sequence: its pages, and the number of tokens in them."""

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self.pages: list[PageId] = []
        self.num_tokens = 0

    def reserve(self, num_tokens: int) -> tuple[PageCopy, ...]:
        """Make room for more tokens, in pages that are not shared.

        Returns the copies to make before they are written. Raises OutOfPagesError, changing
        nothing.
        """
        end = self.num_tokens + num_tokens
        num_missing = max(0, self._pages_for(end) - len(self.pages))
        shared = self._shared_tail() if num_tokens else None
        taken = self._pool.take(num_missing + (shared is not None))
        copies: tuple[PageCopy, ...] = ()
        if shared is not None:
            own = taken.pop()
            copies = (PageCopy(shared, own),)
            self._pool.release([shared])
            self.pages[self.num_tokens // self._page_size] = own
        self.pages += taken
        return copies

    def advance(self, num_tokens: int) -> None:
        """Count reserved tokens as written."""
        self.num_tokens += num_tokens
        assert self.num_tokens <= len(self.pages) * self._page_size

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` at most, and free the pages behind them."""
        self.num_tokens = min(num_tokens, self.num_tokens)
        num_kept = self._pages_for(self.num_tokens)
        self._pool.release(self.pages[num_kept:])
        del self.pages[num_kept:]

    def share(self, other: "BlockTable", num_tokens: int) -> None:
        """Replace the content by the first tokens of another table, sharing its pages."""
        assert num_tokens <= other.num_tokens
        pages = other.pages[: self._pages_for(num_tokens)]
        self._pool.share(pages)
        self.truncate(0)
        self.pages = pages
        self.num_tokens = num_tokens

    def _shared_tail(self) -> PageId | None:
        """The page into which the next token goes, if it exists and is shared."""
        index = self.num_tokens // self._page_size
        if index < len(self.pages) and self._pool.is_shared(self.pages[index]):
            return self.pages[index]
        return None

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_size)
