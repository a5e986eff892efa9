from __future__ import annotations

import math

import pytest

from forensics.formats._quantities import (
    epoch_ns,
    has_unit_of_size,
    parse_number,
    parse_quantity,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40536MiB", 40536 << 20),
        ("1.5 GiB", 3 << 29),
        ("16Gi", 16 << 30),
        ("1024m", 1 << 30),
        ("13945980kB", 13945980 << 10),
        ("512 bytes", 512),
        ("512 B", 512),
        ("2269", 2269),
        (" 80GB ", 80 << 30),
        ("8 EiB", None),
        ("24 GB card", None),
        ("-1 MiB", None),
        ("MiB", None),
        ("", None),
        ("9" * 10_000, None),
        ("١٢ MiB", None),
    ],
)
def test_a_size_is_read_in_every_spelling_and_nothing_else_is(text: str, expected: int | None) -> None:
    assert parse_size(text) == expected


def test_only_a_size_with_its_unit_cannot_be_a_count() -> None:
    assert has_unit_of_size("24 GB")
    assert has_unit_of_size("16Gi")
    assert has_unit_of_size("12 bytes")
    assert not has_unit_of_size("24")
    assert not has_unit_of_size("1024m")


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "tensor(nan, device='cuda:0')"])
def test_not_a_number_is_read_in_every_spelling(text: str) -> None:
    number = parse_number(text)
    assert number is not None
    assert math.isnan(number)


def test_numbers_are_read_and_texts_are_not() -> None:
    assert parse_number("5e-05") == 5e-05
    assert parse_number("-Infinity") == -math.inf
    assert parse_number("tensor(1.25)") == 1.25
    assert parse_number("1_000") is None
    assert parse_number("0x10") is None
    assert parse_number("1.2.3") is None
    assert parse_number("1" * 5000) is None
    assert parse_number("1e99999") == math.inf


def test_a_quantity_is_a_number_or_a_size_with_its_unit() -> None:
    assert parse_quantity("24 GB") == float(24 << 30)
    assert parse_quantity("24") == 24.0
    assert parse_quantity("4m") is None
    assert parse_quantity("80GB card") is None


@pytest.mark.parametrize(
    ("text", "ns", "zoned"),
    [
        ("1970-01-01T00:00:01Z", 10**9, True),
        ("1970-01-01T01:00:00+01:00", 0, True),
        ("1970-01-01 00:00:00.000000001", 1, False),
        ("2024/08/14 15:02:11.714", 1723647731714000000, False),
        ("Wed Aug 14 15:02:11 2024", 1723647731000000000, False),
        ("2024-08-14_15:02:11", 1723647731000000000, False),
        ("2024-08-14 15:02:11,5", 1723647731500000000, False),
    ],
)
def test_a_time_is_read_with_its_zone(text: str, ns: int, zoned: bool) -> None:
    moment = parse_time(text)
    assert moment is not None
    assert (moment.ns, moment.zoned) == (ns, zoned)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2024-13-01T00:00:00", "2024-02-30 00:00:00", "0001-01-01T00:00:00", "9" * 99]
)
def test_a_text_that_is_no_time_gives_none(text: str) -> None:
    assert parse_time(text) is None


def test_epoch_numbers_are_told_apart_by_magnitude() -> None:
    assert epoch_ns(1795952507) == 1795952507 * 10**9
    assert epoch_ns("1795952507.25") == 1795952507250000000
    assert epoch_ns(1795952507123) == 1795952507123000000
    assert epoch_ns(1795952507123456) == 1795952507123456000
    assert epoch_ns(1795952507123456789) == 1795952507123456789
    assert epoch_ns(1795952507.123456) == 1795952507123456000
    for value in (0, 12.5, -1795952507, math.nan, math.inf, 10**30, "soon", "9" * 500):
        assert epoch_ns(value) is None
