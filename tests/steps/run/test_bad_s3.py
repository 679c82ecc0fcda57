"""Errors of S3: the store tries again if waiting helps; otherwise the error names the remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError
from moto.core.botocore_stubber import MockRawResponse

from steps.run.objects import S3Objects, StoreError

CONTENT = bytes(range(256)) * 100
ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>no</Message></Error>"


class BadDays:
    """Faults of the next requests, in order; later requests succeed."""

    def __init__(self, client: Any) -> None:
        self.client, self.faults, self.seen = client, list[str](), list[str]()

    def answer(self, request: Any, **_: Any) -> AWSResponse | None:
        """Answer a request in the place of S3, or do not."""
        self.seen.append(request.method)
        match (self.faults.pop(0) if self.faults else "").split():
            case ["hangs", "up"]:
                raise ConnectionClosedError(endpoint_url=request.url)
            case ["deaf"]:  # The object is written, but the answer is lost.
                self.client.put_object(Bucket="shop", Key="manifest", Body=b"mine")
                raise ConnectionClosedError(endpoint_url=request.url)
            case ["cut", size]:
                return AWSResponse(request.url, 200, {"Content-Length": str(len(CONTENT))}, MockRawResponse(CONTENT[: int(size)]))
            case [status, code]:
                return AWSResponse(request.url, int(status), {}, MockRawResponse(ERROR.format(code)))
        return None


@pytest.fixture
def days(aws: Any, monkeypatch: pytest.MonkeyPatch) -> BadDays:
    """Give a bucket with one object."""
    aws.put_object(Bucket="shop", Key="games.pgn", Body=CONTENT)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return BadDays(aws)


def objects(days: BadDays) -> S3Objects:
    found = S3Objects("s3://shop")
    found._client.meta.events.register_first("before-send.s3", days.answer)
    return found


def test_a_service_that_is_busy_is_asked_again(days: BadDays, tmp_path: Path) -> None:
    for use in (
        lambda: objects(days).put("new", CONTENT),
        lambda: objects(days).download("new", tmp_path / "deep" / "file"),
    ):
        days.faults = ["503 SlowDown", "hangs up"]
        use()
    assert (tmp_path / "deep" / "file").read_bytes() == CONTENT


def test_an_answer_that_breaks_off_is_not_taken_for_the_whole(days: BadDays, tmp_path: Path) -> None:
    days.faults = ["", "cut 1000", "cut 7000"]
    objects(days).download("games.pgn", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert days.seen == ["HEAD", "GET", "GET", "GET"]


def test_an_object_whose_answer_is_cut_is_read_again(days: BadDays) -> None:
    days.faults = ["cut 1000", "cut 7000"]
    assert objects(days).get("games.pgn") == CONTENT
    days.faults = ["cut 1000"] * 3
    with pytest.raises(StoreError, match="S3 cannot be used"):
        objects(days).get("games.pgn")


@pytest.mark.parametrize(
    ("fault", "remedy", "use"),
    [
        ("400 ExpiredToken", "aws sso login", lambda found: found.put("games.pgn", b"")),
        ("403 AccessDenied", "ask the bucket's owner", lambda found: found.get("games.pgn")),
        ("403 AccessDenied", "ask the bucket's owner", lambda found: found.upload("games.pgn", Path(__file__))),
        ("404 NoSuchBucket", "correct the bucket's name", lambda found: found.create("games.pgn", b"")),
        ("cut 10", "check credentials, clock, network", lambda found: found.download("games.pgn", Path("file"))),
    ],
)
def test_what_waiting_does_not_mend_is_told_with_its_remedy(
    fault: str, remedy: str, use: Callable[[S3Objects], Any], days: BadDays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    days.faults = [*([""] if "cut" in fault else []), *[fault] * 100]
    with pytest.raises(StoreError, match=rf"(?s)^s3://shop/games\.pgn: .*{remedy}"):
        use(objects(days))
    assert not list(tmp_path.iterdir())


def test_an_object_that_is_not_there_is_said_to_be_so(days: BadDays, tmp_path: Path) -> None:
    assert objects(days).get("none") is None
    with pytest.raises(KeyError, match="none"):
        objects(days).download("none", tmp_path / "file")


def test_who_was_first_but_was_not_told_so_is_first(days: BadDays) -> None:
    # The object was written, the answer was lost, and the second try met its own object.
    days.faults = ["deaf"]
    assert objects(days).create("manifest", b"mine")
    assert objects(days).create("manifest", b"theirs") is False
