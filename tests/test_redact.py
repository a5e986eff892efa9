"""Secrets never reach a report; figures that only look like them do."""

from __future__ import annotations

import pytest

from forensics.redact import mask


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv"),
        ("export WANDB_API_KEY=0123456789abcdef0123", "0123456789abcdef0123"),
        ("password: hunter2hunter2", "hunter2hunter2"),
        ("using sk-abcdefghijklmnopqrstuvwxyz012345 for calls", "sk-abcdefghijklmnopqrstuvwxyz012345"),
        ("git clone https://user:s3cr3t@example.com/x.git", "s3cr3t"),
        ('{"password": "jsonpw77"}', "jsonpw77"),
        ('{"message": "login failed (password: hunter2hunter2, x)"}', "hunter2hunter2"),
        ("glpat-abcdefghij0123456789", "glpat-abcdefghij0123456789"),
        ("AWS AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ('File "/home/alice/train.py", line 3', "alice"),
        ("ghp_abcdefghijklmnopqrstuvwxyz012345", "ghp_abcdefghijklmnopqrstuvwxyz012345"),
    ],
)
def test_secrets_and_home_folders_are_masked(text: str, secret: str) -> None:
    assert secret not in mask(text)
    assert "***" in mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "total_tokens: 2362481147904",
        "Setting `pad_token_id` to `eos_token_id`:151643 for open-end generation.",
        "key = None",
        "tokens/s: 1234.5",
        'Missing key(s) in state_dict: "conv.weight"',
        'File "/srv/job/train.py", line 3',
        "max_tokens=512",
    ],
)
def test_figures_and_keys_that_are_no_secrets_stay(text: str) -> None:
    assert mask(text) == text
