"""The model of the caching allocator does what PyTorch's does, mechanism by mechanism."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forensics.models.allocator import Allocator
from forensics.models.allocator_blocks import Block, Pool
from forensics.models.allocator_device import LimitedDevice
from forensics.models.allocator_expandable import Range
from forensics.models.allocator_settings import MIB, SMALL_REQUEST, AllocatorSettings, parse_settings

PRIVATE = "0.1"


class Process:
    """Requests of one process, in MiB."""

    def __init__(self, text: str = "", *, room: int | None = None, allowed: int | None = None, **more: bool) -> None:
        settings = parse_settings(text)
        if allowed is not None:
            settings = AllocatorSettings(**{**vars(settings), "has_fraction": True})
        limit = None if room is None else room * MIB
        ceiling = None if allowed is None else allowed * MIB
        self.allocator = Allocator(settings, LimitedDevice(limit), allowed=ceiling, **more)

    def pool(self, size: int, stream: int = 0, pool_id: str = "0.0") -> Pool:
        return self.allocator.pool(pool_id, stream, small=size <= SMALL_REQUEST)

    def get(self, mib: float, stream: int = 0, pool_id: str = "0.0") -> Block:
        found = self.maybe(mib, stream, pool_id)
        assert found is not None
        return found

    def maybe(self, mib: float, stream: int = 0, pool_id: str = "0.0") -> Block | None:
        size = self.allocator.settings.rounded_one(int(mib * MIB))
        return self.allocator.malloc(self.pool(size, stream, pool_id), size)

    def drop(self, *blocks: Block) -> None:
        for block in blocks:
            self.allocator.free(block)

    @property
    def reserved(self) -> int:
        return self.allocator.reserved // MIB


def test_small_requests_share_segments_of_2_mib() -> None:
    process = Process()
    one, two = process.get(0.5), process.get(0.5)
    assert two.addr == one.addr + MIB // 2
    assert process.reserved == 2


def test_requests_between_1_and_10_mib_share_segments_of_20_mib() -> None:
    process = Process()
    one, two = process.get(4), process.get(4)
    assert two.addr == one.addr + 4 * MIB
    assert process.reserved == 20


def test_the_smallest_block_that_holds_the_request_is_taken() -> None:
    process = Process()
    blocks = [process.get(size) for size in (64, 32, 48)]
    addr = blocks[2].addr
    process.drop(*blocks)
    assert process.get(40).addr == addr
    assert process.reserved == 144


def test_of_equal_blocks_the_one_of_the_oldest_segment_is_taken_since_2_13() -> None:
    for by_age, nth in ((True, 0), (False, 1)):
        process = Process(by_age=by_age)
        first, kept, third = process.get(64), process.get(32), process.get(32)
        process.drop(first)
        process.allocator.empty_cache()
        older = kept
        newer = process.get(32)  # where the first segment was: at a lower address, but younger
        assert newer.addr < older.addr
        process.drop(older, newer, third)
        assert process.get(32).addr == sorted([older.addr, newer.addr], reverse=True)[nth]


def test_a_large_block_is_split_only_if_more_than_1_mib_remains() -> None:
    process = Process()
    block = process.get(32)
    process.drop(block)
    assert process.get(31).size == 32 * MIB  # 1 MiB would remain
    process.drop(block)
    assert process.get(30.5).size == int(30.5 * MIB)


def test_free_neighbours_become_one_block() -> None:
    process = Process()
    parts = [process.get(6) for _ in range(3)]
    process.drop(parts[0], parts[2])
    assert process.maybe(19) is not None  # of another segment: the middle one still lies between
    assert process.reserved == 40
    process.drop(parts[1])
    assert process.get(19).addr == min(p.addr for p in parts)


def test_streams_and_pools_never_share_their_free_blocks() -> None:
    process = Process()
    process.drop(process.get(32))
    process.get(32, stream=7)
    process.get(32, pool_id=PRIVATE)
    assert process.reserved == 96


def test_blocks_beyond_max_split_size_are_neither_split_nor_given_to_smaller_requests() -> None:
    process = Process("max_split_size_mb:64")
    block = process.get(100)
    process.drop(block)
    assert process.get(40).addr != block.addr
    assert process.reserved == 140
    assert process.get(90).addr == block.addr  # less than 20 MiB are lost
    assert block.size == 100 * MIB


def test_an_oversize_block_that_loses_20_mib_is_not_taken() -> None:
    process = Process("max_split_size_mb:64")
    process.drop(process.get(100))
    process.get(80)
    assert process.reserved == 180


def test_a_refused_request_gives_back_the_cache_and_tries_again() -> None:
    process = Process(room=100)
    kept, dropped = process.get(40), process.get(40)
    process.drop(dropped)
    assert process.get(60) is not None
    assert (process.reserved, process.allocator.n_retries) == (100, 1)
    assert kept.addr


def test_a_segment_with_a_live_block_is_not_given_back() -> None:
    process = Process(room=100)
    big = process.get(80)
    process.drop(big)
    process.get(2)  # cut out of it
    assert process.maybe(90) is None
    assert process.reserved == 80


def test_with_max_split_size_only_one_oversize_block_is_given_back_for_a_request() -> None:
    process = Process("max_split_size_mb:64", room=300)
    one, two = process.get(100), process.get(140)
    process.drop(one, two)
    process.get(230)
    assert process.reserved == 230  # the larger one alone would not have been enough, both were
    other = Process("max_split_size_mb:64", room=300)
    blocks = [other.get(100), other.get(190)]
    other.drop(*blocks)
    other.get(130)
    assert other.reserved == 230  # 190 were given back, 100 kept
    assert other.allocator.n_retries == 0


def test_a_private_pool_keeps_its_segments_when_the_cache_is_emptied() -> None:
    process = Process()
    process.drop(process.get(32, pool_id=PRIVATE), process.get(32))
    process.allocator.empty_cache()
    assert process.reserved == 32
    process.allocator.release_pool(PRIVATE, small=False)
    assert process.reserved == 0


def test_a_block_in_use_on_another_stream_is_free_only_once_that_is_over() -> None:
    process = Process(room=100)
    block = process.get(64)
    addr = block.addr
    process.allocator.wait(block)
    assert process.get(20).addr != addr
    process.allocator.complete(block)
    assert process.get(60).addr == addr


def test_a_refused_request_waits_for_the_other_streams() -> None:
    process = Process(room=100)
    process.allocator.wait(process.get(64))
    assert process.get(80) is not None
    assert process.reserved == 80


def test_the_memory_fraction_refuses_before_the_device_does() -> None:
    process = Process(room=1000, allowed=100)
    process.get(80)
    assert process.maybe(40) is None


def test_the_garbage_collector_gives_back_what_was_unused_longest() -> None:
    process = Process("garbage_collection_threshold:0.5", allowed=200)
    old, new = process.get(60), process.get(40)
    process.drop(old)
    for _ in range(4):
        process.drop(process.get(12, stream=1))
    process.drop(new)
    process.get(80, stream=2)
    assert process.pool(60 * MIB).at(old.addr, old.size) is None
    assert process.pool(40 * MIB).at(new.addr, new.size) is not None
    assert process.allocator.n_retries == 0


def test_expandable_segments_grow_by_pages_of_20_mib() -> None:
    process = Process("expandable_segments:True")
    one, two = process.get(64), process.get(64)
    assert two.addr == one.addr + 64 * MIB
    assert process.reserved == 140  # 80, then 60 for the 48 that lacked


def test_small_expandable_segments_grow_by_2_mib() -> None:
    process = Process("expandable_segments:True")
    for _ in range(5):
        process.get(0.5)
    assert process.reserved == 4


def test_a_refused_mapping_unmaps_the_free_pages_of_all_streams() -> None:
    process = Process("expandable_segments:True", room=200)
    process.drop(process.get(100, stream=1))
    kept = process.get(4, stream=1)
    assert process.get(160) is not None
    assert process.reserved == 180  # the page of the kept block stays
    assert kept.size == 4 * MIB


def test_pages_that_were_unmapped_are_mapped_again_first() -> None:
    process = Process("expandable_segments:True", room=200)
    low, kept = process.get(60), process.get(20)
    process.drop(low)
    process.allocator.empty_cache()
    assert process.reserved == 20
    assert process.get(40).addr == low.addr
    assert kept.addr == low.addr + 60 * MIB


def test_a_range_ends_at_nine_eighths_of_the_device() -> None:
    process = Process("expandable_segments:True")
    process.allocator.ranges.device_bytes = 160 * MIB
    low = process.get(100)
    middle = process.get(60)
    process.drop(low)
    process.allocator.empty_cache()
    block = process.get(120)
    assert isinstance(middle.expandable, Range)
    assert isinstance(block.expandable, Range)
    assert block.expandable.start != middle.expandable.start


def test_expandable_blocks_are_passed_over_once_the_setting_is_off() -> None:
    process = Process("expandable_segments:True")
    block = process.get(40)
    process.drop(block)
    settings = AllocatorSettings()
    process.allocator.settings = process.allocator.ranges.settings = settings
    assert process.get(40).addr != block.addr


SETTINGS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24",
        "roundup_power2_divisions:4",
        "expandable_segments:True,max_split_size_mb:24",
    ]
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "get", "drop", "wait", "flush"]), st.integers(1, 60 * MIB), st.integers(0, 2)),
    max_size=80,
)


@given(text=SETTINGS, steps=STEPS, room=st.sampled_from([None, 150]))
def test_blocks_tile_their_segments_and_reserved_bytes_are_their_sum(
    text: str, steps: list[tuple[str, int, int]], room: int | None
) -> None:
    process = Process(text, room=room)
    live: list[Block] = []
    for action, size, number in steps:
        if action == "get":
            block = process.maybe(size / MIB, stream=number)
            live += [block] if block is not None else []
        elif action == "flush":
            process.allocator.empty_cache()
        elif live:
            block = live.pop(number % len(live))
            (process.drop if action == "drop" else process.allocator.wait)(block)
        check_tiles(process.allocator, [*live, *process.allocator.waiting])
    assert room is None or process.reserved <= room


def check_tiles(allocator: Allocator, held: list[Block]) -> None:
    free = [block for pool in allocator.pools.values() for block in pool.blocks]
    assert all(block.free for block in free)
    heads = {id(head(block)): head(block) for block in [*held, *free]}
    mapped, seen = 0, 0
    for block in heads.values():
        at, walked = block.addr, block
        while True:
            assert walked.addr == at
            assert walked.size > 0
            following = walked.next
            mapped += walked.size if walked.mapped else 0
            seen += walked.mapped
            if following is None:
                break
            assert following.prev is walked
            assert not (walked.free and following.free)
            at, walked = at + walked.size, following
    assert mapped == allocator.reserved
    assert seen == len(held) + len(free)


def head(block: Block) -> Block:
    while block.prev is not None:
        block = block.prev
    return block
