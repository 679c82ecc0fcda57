"""Great Expectations is imported once, and what it brings is left out of the search for garbage, which else takes half of the time."""

import gc

import pytest

from data_checks.expectations import prepare_great_expectations


@pytest.fixture(scope="session", autouse=True)
def great_expectations() -> None:
    prepare_great_expectations()
    gc.freeze()
