"""Identity of a chess engine, which keeps results of different engines apart."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo.base.files import sha256_file
from grpo.engine.answers import EngineError
from grpo.engine.process import START_SECONDS, EngineProcess


class EngineMissingError(EngineError):
    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; install Stockfish (apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to the path of an engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineIdentity:
    name: str  # Reported by the engine.
    sha256: str  # Hash of the program file, in which Stockfish embeds its evaluation network.

    def __str__(self) -> str:
        return f"{self.name} (sha256 {self.sha256[:16]})"


def identify(path: str) -> EngineIdentity:
    """Start the engine and return its identity. Raises EngineMissingError."""
    full_path = find_engine(path)
    try:
        with EngineProcess(full_path, {}, start_seconds=START_SECONDS) as process:
            return EngineIdentity(name=process.name, sha256=sha256_file(Path(full_path)))
    except (EngineError, OSError) as error:
        raise EngineMissingError(f"{full_path} is not a usable UCI engine ({error})") from None


def find_engine(path: str) -> str:
    """Return the path of an engine, given a path or a program's name. Raises EngineMissingError."""
    full_path = shutil.which(path)
    if full_path is None:
        raise EngineMissingError(f"no engine at {path!r}")
    return full_path
