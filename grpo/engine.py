"""Stockfish processes over raw UCI: pooled, deadlined, respawned; raises, never invents a score.

Written against the pipes rather than on python-chess's wrapper, which waits for ever on a silent engine when the limit is nodes or
depth. One thread drives all processes of a pool; each process answers one query at a time.
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import chess

from grpo.content import sha256_file
from grpo.errors import PlainError

MAX_LINES: Final = 256
"""MultiPV that covers all legal moves of any position (at most 218); Stockfish lowers it by itself."""

_DEADLINE_SECONDS: Final = 30.0  # To notice a hung engine; a healthy answer takes milliseconds, so it decides no result.
_START_SECONDS: Final = 4.0
_NUM_ATTEMPTS: Final = 3  # Each on a fresh process.
_MAX_FAILURES_IN_A_ROW: Final = 5  # Queries, after which the fault is the engine's and not the position's.
_READ_BYTES: Final = 1 << 16


class EngineError(PlainError, RuntimeError):
    """The engine died, or answered nothing usable in time; the position stays unscored."""


class EngineMissingError(EngineError):
    """There is no UCI engine at the path that was given."""


class Score(NamedTuple):
    """An engine score from the mover's side: centipawns, or moves to mate (negative when the mover is mated)."""

    value: int
    is_mate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One search."""

    fen: str
    limit: str
    """The words after `go`, such as `depth 2` or `nodes 50`."""
    is_fresh: bool = True
    """Clear the hash first, so that the answer cannot depend on what was asked before. One that is not fresh is not asked again after a
    failure: a new process, without the hash, would answer otherwise."""
    moves: frozenset[str] | None = None
    """If given, exactly these moves (UCI) must have got a score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a search said."""

    best_move: str
    scores: Mapping[str, Score]
    """UCI move -> score, of the last iteration in which every line was searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineIdentity:
    """Which engine it was: its own name, and the hash of its file (networks are inside Stockfish's file)."""

    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} (sha256 {self.sha256[:16]})"


def identify(path: str) -> EngineIdentity:
    """Return the identity of the engine at `path`.

    Raises EngineMissingError when there is none, or when it does not speak UCI.
    """
    found = shutil.which(path)
    if found is None:
        raise EngineMissingError(
            f"no engine at {path!r}: install Stockfish (apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to its path"
        )
    try:
        with _Process(found, {}) as process:
            name = process.name
    except (EngineError, OSError) as error:
        raise EngineMissingError(
            f"{found} is not a usable UCI engine ({error}): install Stockfish (apt-get install stockfish),"
            " or set CHESS_GRPO_STOCKFISH to its path"
        ) from None
    return EngineIdentity(name=name, sha256=sha256_file(Path(found)))


class _Process:
    """One engine process: a pipe in, a pipe out, and a group of its own to be killed as a whole."""

    def __init__(self, path: str, options: Mapping[str, str | int]) -> None:
        self.name = ""
        self.answer = b""
        self.deadline = 0.0
        try:
            self._popen = subprocess.Popen(
                [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, bufsize=0
            )
        except OSError as error:
            raise EngineError(f"{path} cannot be started: {error.strerror}") from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.stdin, self.stdout = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        try:
            self.ask("uci", _START_SECONDS)
            for line in self.wait_for(b"uciok").splitlines():
                if line.startswith("id name "):
                    self.name = line.removeprefix("id name ").strip()
            self.ask("".join(f"setoption name {key} value {value}\n" for key, value in options.items()) + "isready", _START_SECONDS)
            self.wait_for(b"readyok")
        except BaseException:
            self.kill()
            raise

    def ask(self, commands: str, seconds: float) -> None:
        """Send the commands; the answer is expected within `seconds`."""
        self.answer, self.deadline = b"", time.monotonic() + seconds
        try:
            os.write(self.stdin, commands.encode() + b"\n")
        except BrokenPipeError:
            raise EngineError("the engine has died") from None

    def read(self) -> None:
        """Take what the engine has written."""
        chunk = os.read(self.stdout, _READ_BYTES)
        if not chunk:
            raise EngineError("the engine has died")
        self.answer += chunk

    def has(self, word: bytes) -> bool:
        """Return whether a whole line that begins with `word` has come."""
        at = self.answer.rfind(word)
        return at >= 0 and (at == 0 or self.answer[at - 1] == 10) and self.answer.find(b"\n", at) >= 0

    def wait_for(self, word: bytes) -> str:
        """Return all that came up to and with the line that begins with `word`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while not self.has(word):
                # The clock as well: a program that never stops writing always has something to read.
                if time.monotonic() > self.deadline or not selector.select(max(0.0, self.deadline - time.monotonic())):
                    raise EngineError(f"no {word.decode()} in time")
                self.read()
        return self.answer.decode("utf-8", "replace")

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """End the process and whatever it started; safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


def parse_answer(text: str) -> Answer:
    """Return the best move and the scores of the last complete iteration.

    Raises EngineError when the text names no move or no score.
    """
    lines = text.splitlines()
    last = next((line for line in lines if line.startswith("bestmove")), "")
    words = last.split()
    if len(words) < 2 or words[1] in ("(none)", "0000"):
        raise EngineError(f"the engine found no move: {last!r}")
    iterations: dict[int, dict[str, Score]] = {}
    num_lines = 0
    for line in lines:
        if line.startswith("info depth") and " pv " in line and "bound" not in line:
            info = line.split()
            rank = int(info[info.index("multipv") + 1]) if "multipv" in info else 1
            num_lines = max(num_lines, rank)
            at = info.index("score")
            score = Score(int(info[at + 2]), is_mate=info[at + 1] == "mate")
            iterations.setdefault(int(info[2]), {})[info[info.index("pv") + 1]] = score
    complete = [depth for depth, scores in iterations.items() if len(scores) == num_lines]
    if not complete:
        raise EngineError("the engine gave no score")
    return Answer(best_move=words[1], scores=iterations[max(complete)])


def verify(answer: Answer, query: Query) -> None:
    """Raise EngineError when an answer names an illegal move, or leaves out a move that was asked for."""
    if query.moves is not None:
        if answer.scores.keys() != query.moves:
            raise EngineError(f"the engine scored {len(answer.scores)} moves, which are not the {len(query.moves)} legal ones")
        if answer.best_move not in query.moves:
            raise EngineError(f"{answer.best_move} is not legal")
        return
    try:
        is_legal = chess.Move.from_uci(answer.best_move) in chess.Board(query.fen).legal_moves
    except chess.InvalidMoveError:
        is_legal = False
    if not is_legal:
        raise EngineError(f"{answer.best_move} is not legal")


@dataclass(slots=True)
class _Job:
    index: int
    query: Query
    failures: list[str] = field(default_factory=list)


class EnginePool:
    """A fixed number of engine processes, used as a context manager; nothing is left behind on any way out."""

    def __init__(self, path: str, *, num_processes: int, options: Mapping[str, str | int]) -> None:
        """Start nothing yet; `options` are UCI options by name. One thread per process, always: more would not be repeatable."""
        found = shutil.which(path)
        if found is None:
            identify(path)  # Raises with the remedy.
        self._path = found or path
        self._options = {"Threads": 1, **options}
        self._num_processes = num_processes
        self._idle: list[_Process] = []
        self._failed_in_a_row = 0
        self.num_respawns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        while self._idle:
            self._idle.pop().kill()

    def search(self, queries: Sequence[Query]) -> list[Answer | EngineError]:
        """Return an answer for each query, in order; one that failed on three fresh processes is an EngineError in its place.

        Raises EngineError when several queries in a row fail that way, also over several calls: then the engine is at fault, not a
        position.
        """
        answers: list[Answer | EngineError | None] = [None] * len(queries)
        for job, outcome in self._run(deque(_Job(index, query) for index, query in enumerate(queries))):
            answers[job.index] = outcome
            self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(outcome, EngineError) else 0
            if self._failed_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                raise EngineError(
                    f"{self._path}: {self._failed_in_a_row} searches in a row failed on fresh processes, last: {outcome};"
                    " run it by hand, or reinstall it"
                )
        return [answer for answer in answers if answer is not None]

    def _run(self, waiting: deque[_Job]) -> Iterator[tuple[_Job, Answer | EngineError]]:
        busy: dict[int, tuple[_Process, _Job]] = {}
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or busy:
                    while waiting and len(busy) < self._num_processes:
                        job = waiting.popleft()
                        try:
                            process = self._send(job.query)
                        except EngineError as error:
                            yield from self._failed(job, error, waiting)
                            continue
                        busy[process.stdout] = process, job
                        selector.register(process.stdout, selectors.EVENT_READ)
                    earliest = min((process.deadline for process, _ in busy.values()), default=0.0)
                    ready = {key.fd for key, _ in selector.select(max(0.0, earliest - time.monotonic()))} if busy else set()
                    for pipe in list(busy):
                        process, job = busy[pipe]
                        try:
                            if pipe in ready:
                                process.read()
                            if process.has(b"bestmove"):
                                answer = parse_answer(process.answer.decode("utf-8", "replace"))
                                verify(answer, job.query)
                            elif time.monotonic() > process.deadline:
                                raise EngineError(f"no answer in {_DEADLINE_SECONDS:g} s")
                            else:
                                continue
                        except (EngineError, ValueError, IndexError) as error:
                            selector.unregister(pipe)
                            del busy[pipe]
                            process.kill()
                            yield from self._failed(job, EngineError(f"{job.query.fen}: {error}"), waiting)
                            continue
                        selector.unregister(pipe)
                        del busy[pipe]
                        self._idle.append(process)
                        yield job, answer
            finally:
                for process, _ in busy.values():
                    process.kill()

    def _send(self, query: Query) -> _Process:
        while self._idle and not self._idle[-1].is_alive():
            self._idle.pop().kill()  # It died between two searches, and owes no answer.
        process = self._idle.pop() if self._idle else _Process(self._path, self._options)
        fresh = "ucinewgame\n" if query.is_fresh else ""
        try:
            process.ask(f"{fresh}position fen {query.fen}\ngo {query.limit}", _DEADLINE_SECONDS)
        except EngineError:
            process.kill()
            raise
        return process

    def _failed(self, job: _Job, error: EngineError, waiting: deque[_Job]) -> Iterator[tuple[_Job, EngineError]]:
        job.failures.append(str(error))
        if job.query.is_fresh and len(job.failures) < _NUM_ATTEMPTS:
            self.num_respawns += 1
            waiting.appendleft(job)
        else:
            yield job, error
