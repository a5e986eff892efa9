from __future__ import annotations

import math
from pathlib import Path

import pytest

from forensics.artifact import Source
from forensics.formats._lenient_json import JsonError, JsonWalk, as_float, as_int, flatten, parse_json
from forensics.formats._text_lines import LineCounter, clean_text, decode_text, numbered_lines
from forensics.redact import is_secret, masked_text


def test_tokens_that_strict_json_lacks_are_read() -> None:
    value = parse_json('{"a": NaN, "b": [Infinity, -Infinity]}')
    assert math.isnan(value["a"])
    assert value["b"] == [math.inf, -math.inf]


def test_texts_come_out_storable() -> None:
    assert parse_json('{"a\\ud800": "\\u0000x"}') == {"a\ufffd": "\ufffdx"}
    assert parse_json('"\\u0000"') == "\ufffd"
    assert clean_text("a\0\udfff") == "a\ufffd\ufffd"


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} {"b": 2}', "[" * 100_000, '{"a":' * 100_000, "1" * 10_000, "nul"])
def test_what_is_no_json_gives_one_kind_of_error(text: str) -> None:
    with pytest.raises(JsonError):
        parse_json(text)


def test_deep_nesting_that_one_reader_accepts_harms_nothing() -> None:
    parse_json('["\\u0000", ' + "[" * 900 + "]" * 900 + "]")


def _walk(text: str) -> tuple[dict[tuple[str | int, ...], object], JsonWalk]:
    walk = JsonWalk(text, lambda path, first: len(path) > 1)
    return {leaf.path: leaf.value for leaf in walk.leaves()}, walk


def test_a_walk_of_an_undamaged_text_finds_no_damage() -> None:
    leaves, walk = _walk('{"a": 1, "b": [{"c": 2}, 3], "d": {}, "e": []}')
    assert leaves == {("a",): 1, ("b", 0): {"c": 2}, ("b", 1): 3}
    assert walk.damage is None


def test_a_cut_number_is_never_taken_for_a_whole_one() -> None:
    text = '{"a": 1, "b": 123.5, "c": 7}'
    for end in range(len(text)):
        leaves, walk = _walk(text[:end])
        assert walk.damage is not None
        assert leaves.items() <= {("a",): 1, ("b",): 123.5, ("c",): 7}.items()


def test_a_damaged_element_costs_only_itself() -> None:
    leaves, walk = _walk('{"rows": [{"a": 1}, {"a": 2, "b": {"a": 9} x}, {"a": 3}], "z": 1}')
    assert leaves == {("rows", 0): {"a": 1}, ("rows", 2): {"a": 3}, ("z",): 1}
    assert walk.n_lost == 1
    assert walk.damage is not None


def test_hostile_texts_end_the_walk() -> None:
    for text in ("[" * 50_000, '{"a":' * 50_000, "[" + "{x," * 20_000, "[" + "\n" * 200_000, '{"a" "b"}', "{1: 2}"):
        _, walk = _walk(text)
        assert walk.damage is not None


def test_nested_objects_flatten_to_a_bounded_depth() -> None:
    assert dict(flatten({"a": {"b": {"c": 1}}, "d": [1], "e": {}}, "/")) == {"a/b/c": 1, "d": [1], "e": {}}
    assert dict(flatten({"a": {"b": {"c": 1}}}, "/", max_depth=2)) == {"a/b": {"c": 1}}


def test_numbers_outside_their_bounds_are_none() -> None:
    assert as_int(3.0) == 3
    assert as_int("12") == 12
    for value in (True, None, 3.5, math.nan, math.inf, 2**70, "9" * 50, "x", []):
        assert as_int(value) is None
    assert as_float(10**400) is None
    assert as_float(True) is None
    assert as_float(2) == 2.0


def test_line_numbers_are_those_of_an_editor(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n" + b"d" * 50 + b"\n\xffe")
    lines = list(numbered_lines(Source(path, "x"), max_chars=20))
    assert lines == [(1, "a", True), (2, "b\rc", True), (3, "d" * 20, False), (4, "\ufffde", True)]
    counter = LineCounter("a\nb\nc")
    assert [counter.at(0), counter.at(2), counter.at(4)] == [1, 2, 3]


def test_files_redirected_by_powershell_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes("a\nb\n".encode("utf-16"))
    assert [text for _, text, _ in numbered_lines(Source(path, "x"))] == ["a", "b"]
    assert decode_text("a".encode("utf-16")) == "a"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "abc123"),
        ("AWS_ACCESS_KEY_ID", "abc"),
        ("WANDB_API_KEY", "abc"),
        ("password", "123456"),
        ("db_password_prod", "x"),
        ("hub_token", "abc"),
        ("apiKey", "abc"),
    ],
)
def test_secrets_are_known_by_their_names(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("pad_token", "<pad>"),
        ("eos_token_id", "2"),
        ("max_new_tokens", "512"),
        ("num_key_value_heads", "8"),
        ("tokenizer", "gpt2"),
        ("use_auth_token", "true"),
        ("PWD", "/job"),
        ("monkey", "x"),
        ("token", "None"),
    ],
)
def test_tokens_and_keys_of_models_are_no_secrets(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_secrets_inside_sentences_are_masked() -> None:
    assert masked_text("run --flag --token abcdef --lr -1") == "run --flag --token *** --lr -1"
    assert masked_text("HF_TOKEN=abcdef python x.py") == "HF_TOKEN=*** python x.py"
    assert masked_text("git clone https://joe:pw@host/x") == "git clone https://joe:***@host/x"
    assert masked_text("use ghp_" + "a" * 36) == "use ***"
    masked_text("://" + "a:" * 50_000)
    masked_text("--a" * 50_000)
