"""Settings of the caching allocator as jobs write them, and the sizes that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.models.allocator_settings import MIB, UNLIMITED, AllocatorSettings, parse_settings, read_settings


def rounded(text: str, *sizes: int) -> list[int]:
    return parse_settings(text).rounded(np.array(sizes, dtype=np.int64)).tolist()


def test_blocks_are_multiples_of_512_bytes() -> None:
    assert rounded("", 0, 1, 512, 513, MIB + 1) == [512, 512, 512, 1024, MIB + 512]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1200, 1536), (4096, 4096), (4097, 5120), (3 * MIB, 3 * MIB), (87 * MIB + 1, 96 * MIB), (112 * MIB, 112 * MIB)],
)
def test_four_divisions_cut_each_power_of_two_into_quarters(size: int, expected: int) -> None:
    """1200 bytes are within 512 times 4 and keep steps of 512."""
    assert rounded("roundup_power2_divisions:4", size) == [expected]


def test_one_division_rounds_nothing() -> None:
    assert rounded("roundup_power2_divisions:1", 87 * MIB + 1) == [87 * MIB + 512]


def test_divisions_by_interval_hold_up_to_the_next_one_that_is_named() -> None:
    """As PyTorch's own test of its configuration has it."""
    settings = parse_settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]")
    assert [settings.divisions[n.bit_length() - 1] for n in (32, 64, 128, 256, 512, 1024, 2048, 4096)] == [
        8,
        8,
        2,
        4,
        2,
        4,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(512, 2), (MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB + 1, 12)],
)
def test_segments_are_of_2_mib_of_20_mib_or_of_their_request(size: int, expected: int) -> None:
    assert AllocatorSettings().segment_bytes(size) == expected * MIB


def test_what_the_allocator_says_of_itself_goes_before_the_variable() -> None:
    facts = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True, max_split_size_mb:64,backend:native",
        "expandable_segments": "False",
        "max_split_size": "-1",
        "garbage_collection_threshold": "0.8",
    }
    found = read_settings(facts)
    assert (found.expandable, found.max_split_bytes, found.gc_ratio) == (False, UNLIMITED, 0.8)


def test_divisions_are_read_from_a_snapshot_that_does_not_have_the_variable() -> None:
    found = read_settings({"roundup_power2_divisions": '{"1": 4, "2": 4, "4": 4, "8": 8'})
    assert found.divisions[:4] == (4, 4, 4, 8)


def test_unknown_words_and_values_count_as_defaults() -> None:
    assert parse_settings("max_split_size_mb:much,foo:1,garbage_collection_threshold:7") == AllocatorSettings()


def test_the_garbage_collector_works_only_under_a_memory_fraction() -> None:
    assert not parse_settings("garbage_collection_threshold:0.6").collects
    assert parse_settings("garbage_collection_threshold:0.6,per_process_memory_fraction:0.9").collects
