"""Markers, registered here so that they are known wherever the tests are run from; and reproducible examples."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The same examples at every run, so that a change is judged by itself; FORENSICS_EXPLORE=1 draws new ones.
settings.register_profile("reproducible", derandomize=True, deadline=None)
if not os.environ.get("FORENSICS_EXPLORE"):
    settings.load_profile("reproducible")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "checkout: needs files that are not part of a wheel")
    config.addinivalue_line("markers", "installed: depends on what a wheel holds, where it lies or what lies beside it")
