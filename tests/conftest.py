"""Markers, registered here so that they are known wherever the tests are run from."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "checkout: needs files that are not part of a wheel")
