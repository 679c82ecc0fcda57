"""Files at `https://` addresses, and of Hugging Face's hub at `hf://` addresses, as files."""

import fnmatch
import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from grpo.reading.games import SourceError
from grpo.reading.remote import OTHER_REMEDY, RemoteFile

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

HF_SCHEME: Final = "hf://"
WEB_SCHEMES: Final = ("https://", "http://", HF_SCHEME)

_REMEDIES: Final = {
    401: "it needs a login: download the file yourself, or set HF_TOKEN for a hub's file",
    403: "access is refused: download the file yourself, or set HF_TOKEN for a hub's file, and accept its conditions there",
    404: "correct the address",
    410: "the file is gone: correct the address",
    429: "the server is asked too often: wait, or download the file once and give its path",
}
_HF_ADDRESS: Final = re.compile(r"hf://(datasets/|spaces/)?([^/@]+/[^/@]+)(?:@([^/]+))?/(.*)")
_TRIES: Final = 4  # Of a request that the server answers by 429 or 5xx, or not at all, with growing pauses.


def list_web_files(pattern: str) -> tuple[bool, list[str]]:
    """Return whether the address names a single file, and the sorted addresses of all files that it matches.

    `https://` addresses name one file. Of the hub, `hf://datasets/USER/NAME[@REVISION]/PATH` is one file; with a `/` at the end it is all
    files below, and `*`, `?` and `[...]` are wildcards, where `*` also matches `/`.

    Raises SourceError if the file does not exist, or a repository cannot be listed.
    """
    if not pattern.startswith(HF_SCHEME):
        WebFile(pattern).close()
        return True, [pattern]
    kind, repo, revision, path = _hub_parts(pattern)
    glob_starts = re.search(r"[*?[]", path)
    if path and not path.endswith("/") and glob_starts is None:
        WebFile(pattern).close()
        return True, [pattern]
    head = pattern.removesuffix(path)
    listing: str | None = f"{hub_address()}/api/{kind or 'models/'}{repo}/tree/{quote(revision, safe='')}?recursive=true"
    found: list[str] = []
    while listing is not None:
        with _in_words(pattern):
            answer = _asked(pattern, listing, {})
            found += [entry["path"] for entry in json.loads(answer.read()) if entry["type"] == "file"]
        following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
        listing = following[1] if following else None
    matching = [each for each in found if (each.startswith(path) if glob_starts is None else fnmatch.fnmatchcase(each, path))]
    return False, sorted(f"{head}{each}" for each in matching)


def web_name(uri: str) -> str:
    """Return the base name of a file from its address."""
    return unquote(urlsplit(uri).path.rpartition("/")[2]) if not uri.startswith(HF_SCHEME) else uri.rpartition("/")[2]


class WebFile(RemoteFile):
    """One file of a web server or of the hub as a seekable file; see `RemoteFile`."""

    def __init__(self, uri: str) -> None:
        """Open the file."""
        super().__init__(uri)
        self._url = _url(uri)
        if "@" in urlsplit(self._url).netloc:
            raise SourceError("an address with a password would stand in settings and logs: download the file, and give its path")
        with _in_words(uri):
            answer = _asked(uri, self._url, {})
        length = answer.headers.get("Content-Length")
        if length is None:
            answer.close()
            raise SourceError(f"{uri}: the server does not say how long the file is, so a break would look like its end; download it")
        self.size = int(length)
        self.etag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        self._body = answer

    def _open_at(self, position: int) -> Any:
        answer = _asked(self._uri, self._url, {"Range": f"bytes={position}-"} if position else {})
        ranged = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", "")) if answer.status == 206 else None
        size = int(ranged[2]) if ranged else int(answer.headers.get("Content-Length") or -1)
        etag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if size != self.size or etag != self.etag:
            answer.close()
            raise SourceError(f"{self._uri}: the file was replaced while it was read: start again when nothing writes it")
        left = position - (int(ranged[1]) if ranged else 0)
        while left > 0:  # The server knows no ranges: what was read before is read again.
            piece = answer.read(min(left, 2**20))
            if not piece:
                raise ConnectionError("the connection broke while earlier bytes were read again")
            left -= len(piece)
        return answer

    def _read(self, count: int) -> bytes:
        piece: bytes = self._body.read1(count)  # What has arrived: `read` drops it when the connection breaks.
        return piece

    def _breaks(self) -> tuple[type[Exception], ...]:
        import urllib3.exceptions

        return urllib3.exceptions.HTTPError, OSError

    def _in_words(self, but: tuple[type[Exception], ...]) -> AbstractContextManager[None]:
        return _in_words(self._uri, but)


def _asked(uri: str, url: str, headers: dict[str, str]) -> "BaseHTTPResponse":
    """Return the server's answer, its body unread; raises SourceError if it refuses."""
    import urllib3

    # The bytes as they are stored: a packed file must not be packed once more.
    headers = {"Accept-Encoding": "identity", **headers}
    if url.startswith(f"{hub_address()}/") and (token := hub_token()):
        headers["Authorization"] = f"Bearer {token}"  # urllib3 leaves it out where another host is redirected to.
    tries = urllib3.Retry(_TRIES, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False)
    pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=20, read=60), retries=tries)
    answer = pool.request("GET", url, headers=headers, preload_content=False)
    if answer.status not in (200, 206):
        answer.close()
        raise SourceError(f"{uri}: the server answers {answer.status} {answer.reason}; {_REMEDIES.get(answer.status, OTHER_REMEDY)}")
    return answer


@contextmanager
def _in_words(uri: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    import urllib3.exceptions

    try:
        yield
    except but:
        raise
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise SourceError(f"{uri}: cannot be read ({error}); {OTHER_REMEDY}") from error


def _url(uri: str) -> str:
    if not uri.startswith(HF_SCHEME):
        return uri
    kind, repo, revision, path = _hub_parts(uri)
    return f"{hub_address()}/{kind}{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"


def _hub_parts(uri: str) -> tuple[str, str, str, str]:
    """Return `datasets/` or nothing, USER/NAME, the revision and the path in it."""
    parts = _HF_ADDRESS.fullmatch(uri)
    if parts is None:
        raise SourceError(f"{uri}: not a hub's address; give hf://datasets/USER/NAME/PATH, with @REVISION behind the name if you like")
    return parts[1] or "", parts[2], parts[3] or "main", parts[4]


def hub_address() -> str:
    """Return the address of the Hugging Face hub: `HF_ENDPOINT`, or the public one."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_token() -> str:
    """Return the token for the hub, `HF_TOKEN` or that of `hf auth login`; "" if there is none."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    file = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "token"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""
