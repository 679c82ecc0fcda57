"""Remote files as files: streaming reads that go on where a connection broke, whatever the protocol."""

import io
import os
import time
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from grpo.reading.games import SourceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_BREAKS: Final = 5
"""In a row, without a byte read between them."""
_BACK_OFF_SECONDS: Final = 0.5  # After the first break, doubled after each further one: 15 s in total.
OTHER_REMEDY: Final = "check the network and the address, and start again"


class RemoteFile(io.RawIOBase):
    """One remote file as a seekable file; all reads are of the version that was opened.

    Raises SourceError if it cannot be opened, if it is replaced while it is read, or if the connection breaks too often.
    """

    size: int
    """In bytes."""
    etag: str
    """Names the version; empty if the server names none."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self._uri = uri
        self._position = 0
        self._body: Any = None  # Streams the bytes from `_body_at` on.
        self._body_at = 0

    @abstractmethod
    def _open_at(self, position: int) -> Any:
        """Return a stream of the bytes from a position on, of the same version; it has `read` and `close`."""

    def _read(self, count: int) -> bytes:
        """Return at most so many of the next bytes of the body; nothing at its end."""
        piece: bytes = self._body.read(count)
        return piece

    @abstractmethod
    def _breaks(self) -> tuple[type[Exception], ...]:
        """Return the errors after which the connection is made anew."""

    @abstractmethod
    def _in_words(self, but: tuple[type[Exception], ...]) -> AbstractContextManager[None]:
        """Turn other errors than those in `but` into SourceErrors."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True; after a seek, the next read requests the range from the new position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position and return it."""
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if position < 0:
            raise ValueError(f"negative seek position {position}")
        self._position = position
        return position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read the next available bytes into the buffer and return their number; 0 means the end."""
        target = memoryview(buffer).cast("B")
        breaks = self._breaks()
        for num_breaks in range(MAX_BREAKS + 1):
            if self._position >= self.size:
                return 0
            if self._body_at != self._position:
                self._drop()
            try:
                with self._in_words(breaks):
                    if self._body is None:
                        self._body, self._body_at = self._open_at(self._position), self._position
                    piece = self._read(len(target))
                    if not piece:
                        raise ConnectionError(f"{self._position} read, but total bytes expected is {self.size}")
            except breaks as error:
                self._drop()
                if num_breaks == MAX_BREAKS:
                    raise SourceError(
                        f"{self._uri}: the connection broke {num_breaks + 1} times in a row at byte {self._position:,} of {self.size:,}"
                        f" ({error}); {OTHER_REMEDY}"
                    ) from error
                time.sleep(_BACK_OFF_SECONDS * 2**num_breaks)
                continue
            target[: len(piece)] = piece
            self._position += len(piece)
            self._body_at = self._position
            return len(piece)
        raise AssertionError("the last break raises")

    def close(self) -> None:
        """Close the connection."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
