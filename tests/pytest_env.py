# SPDX-License-Identifier: MIT
"""What the Python tests share. The folder is not one of tests: conftest.py and others add it to the
path."""

import os

import pytest


def skip_or_fail(reason):
    """What a test needs is not here: seen as a skip, but a failure in CI, where everything is there."""
    if os.environ.get("CI"):
        pytest.fail(reason + " (in CI that is a failure)", pytrace=False)
    pytest.skip(reason)
