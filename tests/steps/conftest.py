"""What the tests of the steps share: files that whole datasets can be built of."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from made_games import as_epd, random_pgn
from moto import mock_aws

# Each session of boto3 parses the megabytes that describe a service anew, which is most of the time that a client takes.
JSONFileLoader.load_file = staticmethod(functools.cache(JSONFileLoader().load_file))


@pytest.fixture(scope="session")
def games_text() -> str:
    """Return 60 random games that reach all phases."""
    return random_pgn(60)


@pytest.fixture(scope="session")
def epd_text(games_text: str) -> str:
    """Return some 2,000 positions of them."""
    return as_epd(games_text)


@pytest.fixture
def console(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what types a command line, and returns exit code, output and error output."""
    from steps.cli.main import main

    def typed(*words: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(word) for word in words])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return typed


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a client of an S3 in this process, which has one bucket."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="shop")
        yield client
