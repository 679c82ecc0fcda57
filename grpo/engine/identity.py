"""Identity of a UCI engine: name, hash of its binary and of its network, so that results of two engines are never mixed up."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo.base.files import sha256_file
from grpo.engine.answers import EngineError
from grpo.engine.process import START_SECONDS, EngineProcess


class EngineMissingError(EngineError):
    """There is no UCI engine at the given path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineIdentity:
    """The engine's own name, the hash of its file, and the hash of its network when that is a file of its own."""

    name: str
    sha256: str
    network_sha256: str = ""
    """"" if the network is embedded in the engine's file, as in Stockfish, or if there is none."""

    def __str__(self) -> str:
        network = f", network {self.network_sha256[:16]}" if self.network_sha256 else ""
        return f"{self.name} (sha256 {self.sha256[:16]}{network})"


def identify(path: str) -> EngineIdentity:
    """Start the engine at `path` and return its identity.

    Raises EngineMissingError if there is none, or if it does not speak UCI.
    """
    found = find_engine(path)
    try:
        with EngineProcess(found, {}, start_seconds=START_SECONDS) as process:
            name, network = process.name, _network(process, Path(found))
    except (EngineError, OSError) as error:
        raise EngineMissingError(
            f"{found} is not a usable UCI engine ({error}): install Stockfish (apt-get install stockfish),"
            " or set CHESS_GRPO_STOCKFISH to its path"
        ) from None
    return EngineIdentity(name=name, sha256=sha256_file(Path(found)), network_sha256=network)


def find_engine(path: str) -> str:
    """Return the full path of the engine that `path` names.

    Raises EngineMissingError if there is none.
    """
    found = shutil.which(path)
    if found is None:
        raise EngineMissingError(
            f"no engine at {path!r}: install Stockfish (apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path"
        )
    return found


def _network(process: EngineProcess, engine: Path) -> str:
    """Return the hash of the network file that the engine loads by default: from the working directory or beside its binary."""
    words = process.declared.get("EvalFile", "").split(" default ")
    name = words[1].strip() if len(words) > 1 else ""
    if not name or name == "<empty>":
        return ""
    candidates = (Path(name), engine.resolve().parent / name)
    return next((sha256_file(candidate) for candidate in candidates if candidate.is_file()), "")
