"""The path of promtool, if it is installed."""

import shutil

import pytest


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here; it comes with Prometheus (apt-get install prometheus)")
    return found
