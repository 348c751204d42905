"""Page allocator against a model of it: no page leaks, is given twice, or is overwritten."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llm_engine.backends.base import PageCopy
from llm_engine.kv_cache.block_manager import BlockTable, OutOfPagesError, PagePool

PAGE_SIZE = 4
NUM_PAGES = 9
ANY = st.integers(0, 1000)


class PagesMachine(RuleBasedStateMachine):
    """Block tables over a memory of tokens, beside plain lists that say what should be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.memory: dict[tuple[int, int], int] = {}
        self.tables: dict[int, BlockTable] = {}
        self.expected: dict[int, list[int]] = {}
        self.next = 0

    def pick(self, number: int) -> int:
        return sorted(self.tables)[number % len(self.tables)]

    def new_number(self) -> int:
        self.next += 1
        return self.next

    @rule()
    def open(self) -> None:
        number = self.new_number()
        self.tables[number] = BlockTable(self.pool, PAGE_SIZE)
        self.expected[number] = []

    @precondition(lambda self: self.tables)
    @rule(which=ANY, num=st.integers(0, 11), unused=st.integers(0, 3))
    def append(self, which: int, num: int, unused: int) -> None:
        """Reserve, and write only some of it, as a step with rejected drafts does."""
        table, held = self.tables[self.pick(which)], self.expected[self.pick(which)]
        before = list(table.pages), table.num_tokens, self.pool.num_free
        try:
            copies = table.reserve(num)
        except OutOfPagesError:
            assert (table.pages, table.num_tokens, self.pool.num_free) == before
            return
        self.copy(copies)
        for position in range(table.num_tokens, table.num_tokens + num):
            self.memory[table.pages[position // PAGE_SIZE], position % PAGE_SIZE] = 0
        kept = max(0, num - unused)
        for position in range(table.num_tokens, table.num_tokens + kept):
            token = self.new_number()
            self.memory[table.pages[position // PAGE_SIZE], position % PAGE_SIZE] = token
            held.append(token)
        table.advance(kept)

    def copy(self, copies: tuple[PageCopy, ...]) -> None:
        for each in copies:
            for offset in range(PAGE_SIZE):
                self.memory[each.target, offset] = self.memory.get((each.source, offset), 0)

    @precondition(lambda self: self.tables)
    @rule(which=ANY, num=st.integers(0, 40))
    def truncate(self, which: int, num: int) -> None:
        self.tables[self.pick(which)].truncate(num)
        del self.expected[self.pick(which)][num:]

    @precondition(lambda self: len(self.tables) > 1)
    @rule(which=ANY, other=ANY, num=st.integers(0, 40))
    def fork(self, which: int, other: int, num: int) -> None:
        source, target = self.pick(which), self.pick(other)
        if source != target:
            num = min(num, len(self.expected[source]))
            self.tables[target].share(self.tables[source], num)
            self.expected[target] = self.expected[source][:num]

    @precondition(lambda self: self.tables)
    @rule(which=ANY)
    def close(self, which: int) -> None:
        number = self.pick(which)
        self.tables.pop(number).truncate(0)
        del self.expected[number]

    @invariant()
    def holds_what_was_written(self) -> None:
        for number, table in self.tables.items():
            assert [
                self.memory[table.pages[position // PAGE_SIZE], position % PAGE_SIZE]
                for position in range(table.num_tokens)
            ] == self.expected[number]

    @invariant()
    def counts_add_up(self) -> None:
        self.pool.check(self.tables.values())
        assert self.pool.num_used <= self.pool.high_water <= NUM_PAGES


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=120, stateful_step_count=40)


def filled(pool: PagePool, num_tokens: int) -> BlockTable:
    table = BlockTable(pool, PAGE_SIZE)
    table.reserve(num_tokens)
    table.advance(num_tokens)
    return table


def test_whole_pages_are_shared_without_a_copy() -> None:
    pool = PagePool(NUM_PAGES)
    first, second = filled(pool, 8), BlockTable(pool, PAGE_SIZE)
    second.share(first, 8)
    assert pool.num_used == 2
    assert second.reserve(1) == ()
    assert pool.num_used == 3


def test_first_continuation_copies_the_partly_filled_page() -> None:
    pool = PagePool(NUM_PAGES)
    first, second = filled(pool, 6), BlockTable(pool, PAGE_SIZE)
    second.share(first, 6)
    shared = first.pages[1]
    assert first.reserve(1) == (PageCopy(shared, first.pages[1]),)
    assert first.pages[1] != second.pages[1] == shared
    assert second.reserve(1) == ()


def leak(pool: PagePool, table: BlockTable) -> None:
    table.pages.pop()


def double(pool: PagePool, table: BlockTable) -> None:
    table.pages.append(table.pages[0])


def free_twice(pool: PagePool, table: BlockTable) -> None:
    pool._free.append(pool._free[0])


@pytest.mark.parametrize("damage", [leak, double, free_twice])
def test_the_check_finds_damage(damage: Callable[[PagePool, BlockTable], None]) -> None:
    pool = PagePool(NUM_PAGES)
    table = filled(pool, 6)
    pool.check([table])
    damage(pool, table)
    with pytest.raises(AssertionError):
        pool.check([table])
