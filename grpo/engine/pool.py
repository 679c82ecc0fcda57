"""Pool of UCI engine processes: concurrent searches, each retried on a new process if it fails.

The pool reads raw pipes: python-chess's wrapper has a third of the speed, and waits forever for a silent engine.
"""

import os
import re
import select
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

import chess

from grpo.board import MAX_LEGAL_MOVES
from grpo.engine.answers import EngineAnswer, EngineError, IllegalMoveError, parse_answer, parse_best_move
from grpo.engine.identity import EngineMissingError, find_engine
from grpo.engine.process import SILENT_SECONDS, EngineProcess

PLAYING_HASH_MIB: Final = 1
"""`Hash` (cache of positions) of engines that play games. Their ratings hold only for this size."""

NUM_ATTEMPTS: Final = 3
REMEDY: Final = "run it by hand, reinstall it, or set CHESS_GRPO_STOCKFISH to another engine"
_MAX_FAILURES_IN_A_ROW: Final = 5
_MAX_FAILED_FRACTION: Final = 0.01
"""The engine also counts as broken if this fraction of queries failed. Failures on one kind of position would bias the dataset."""
_MIN_FAILED: Final = 10  # Fewer failed queries may be chance.
_NUM_OF_FORK: Final = 2  # One searches while Python reads the other's answer.
_NEW_GAME: Final = "ucinewgame\n"  # Clears the hash, so equal positions get equal answers.


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    fen: str
    limit: str  # Arguments of `go`, such as `depth 2` or `nodes 50`.
    moves: frozenset[str] | None = None  # Exactly these moves (UCI) must get scores; None: any.
    board: chess.Board | None = field(default=None, compare=False)  # Position, if known; parsing a FEN takes half as long as a search.
    needs_scores: bool = True
    then: "Callable[[EngineAnswer], Query] | None" = field(default=None, compare=False)
    """Takes the first answer and returns a second search of the position. Only the second answer counts."""


def verify(answer: EngineAnswer, query: Query) -> None:
    """Raise IllegalMoveError for an illegal move, EngineError for a missing score or too low a depth."""
    word, _, number = query.limit.partition(" ")
    # Some engines stop below the depth at a mate or a single legal move.
    is_settled = len(answer.scores) == 1 == len(query.moves or ()) or any(score.is_mate for score in answer.scores.values())
    if word == "depth" and query.needs_scores and answer.depth < int(number.split()[0]) and not is_settled:
        raise EngineError(f"the engine searched to depth {answer.depth} instead of {number}")
    if query.moves is not None:
        if unknown := sorted({*answer.scores, answer.best_move} - query.moves):
            raise IllegalMoveError(f"{', '.join(unknown[:3])} is not legal{_castling(chess.Board(query.fen), unknown)}")
        if len(answer.scores) < len(query.moves):
            raise EngineError(f"the engine scored {len(answer.scores)} of {len(query.moves)} moves")
        return
    try:
        is_legal = (query.board or chess.Board(query.fen)).is_legal(chess.Move.from_uci(answer.best_move))
    except chess.InvalidMoveError:
        is_legal = False
    if not is_legal:
        raise IllegalMoveError(f"{answer.best_move} is not legal")


def _castling(board: chess.Board, moves: Iterable[str]) -> str:
    """Return a note if a move is castling in Chess960's form (king takes rook), or ""."""
    chess960 = {board.uci(move, chess960=True): board.uci(move) for move in board.generate_castling_moves()}
    return next((f"; UCI writes this castling as {chess960[move]}" for move in moves if move in chess960), "")


@dataclass(slots=True)
class _Job:
    index: int
    query: Query
    failures: Counter[str] = field(default_factory=Counter)  # Search limit -> failures; "" -> failed starts of an engine.
    errors: list[EngineError] = field(default_factory=list)


class EnginePool(AbstractContextManager["EnginePool"]):
    """Engine processes, killed when the context ends.

    Only one thread may use the pool. It must outlive the pool, because `setpriv` kills an engine when its thread ends.
    """

    def __init__(self, path: str, *, num_processes: int, options: Mapping[str, str | int]) -> None:
        """Find the engine; up to `num_processes` processes start on demand. Raises EngineMissingError.

        Each process has one thread, because more threads are not reproducible.
        """
        self._path = find_engine(path)
        self._options: dict[str, str | int] = {"Threads": 1, **options}
        self._num_processes = num_processes
        self._processes: list[EngineProcess] = []
        self._running: dict[EngineProcess, tuple[_Job, Query]] = {}
        self._failed_in_a_row, self._num_finished, self._num_failed = 0, 0, 0
        self._owner = os.getpid()
        self._of_parent: list[EngineProcess] = []  # Not deleted after a fork: Python warns if a running process's object is deleted.

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in list(self._processes):
            self._end(process)

    def search(self, queries: Iterable[Query], *, gives_up: bool = True) -> list[EngineAnswer | EngineError]:
        return list(self.answers(queries, gives_up=gives_up))

    def answers(self, queries: Iterable[Query], *, gives_up: bool = True) -> Iterator[EngineAnswer | EngineError]:
        """Yield an answer for each query, in order. A query whose search failed `NUM_ATTEMPTS` times yields an EngineError.

        Raises EngineMissingError if the engine's MultiPV is too small. With `gives_up`, raises EngineError after five failed queries in a
        row, or if at least 10 and 1 % of the pool's queries failed.
        """
        self._ready()
        jobs = (_Job(index, query) for index, query in enumerate(queries))
        retries: list[_Job] = []
        finished: dict[int, EngineAnswer | EngineError] = {}
        num_yielded = 0

        def note(job: _Job, limit: str, outcome: EngineAnswer | EngineError) -> None:
            is_failure = isinstance(outcome, EngineError)
            job.failures[limit] += is_failure
            if isinstance(outcome, EngineError):
                job.errors.append(outcome)
                if job.failures[limit] < NUM_ATTEMPTS:
                    retries.append(job)
                    return
            elif job.errors:
                outcome = replace(outcome, failed=tuple(job.errors))
            finished[job.index] = outcome
            self._failed_in_a_row = self._failed_in_a_row + 1 if is_failure else 0
            self._num_finished, self._num_failed = self._num_finished + 1, self._num_failed + is_failure
            if gives_up and is_failure and (searches := self._too_many_failures()):
                raise EngineError(f"{self._path}: {searches} failed on fresh processes, last: {outcome}; {REMEDY}")

        try:
            while True:
                while len(self._running) < self._num_processes and (job := retries.pop() if retries else next(jobs, None)):
                    try:
                        self._begin(job)
                    except EngineMissingError:
                        raise
                    except EngineError as error:
                        note(job, "", error)
                while num_yielded in finished:
                    yield finished.pop(num_yielded)
                    num_yielded += 1
                if not self._running:
                    return
                for job, limit, outcome in self._outcomes():
                    note(job, limit, outcome)
        finally:
            for process in list(self._running):
                self._end(process)

    def best_move(self, start_fen: str, moves: str, limit: str, *, is_fresh: bool) -> str:
        """Return the engine's move in UCI, which may be illegal, or "" if the engine has none.

        `moves` (UCI, separated by blanks) lead from `start_fen` to the position. `is_fresh` clears the hash. Without `is_fresh`, the pool
        must have one process (not checked), whose hash holds the game's earlier moves.

        Raises EngineError after one attempt, because a new process would lack this hash.
        """
        self._ready()
        process = self._idle_process() if is_fresh or not self._processes else self._processes[0]
        try:
            process.send(f"{_NEW_GAME if is_fresh else ''}position fen {start_fen}{' moves ' * bool(moves)}{moves}\ngo {limit}")
            return parse_best_move(process.wait_for(b"bestmove"))
        except BaseException:
            self._end(process)
            raise

    def _too_many_failures(self) -> str:
        if self._failed_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            return f"{self._failed_in_a_row} searches in a row"
        is_over = self._num_failed >= max(_MIN_FAILED, _MAX_FAILED_FRACTION * self._num_finished)
        return f"{self._num_failed:,} of {self._num_finished:,} searches" if is_over else ""

    def _ready(self) -> None:
        if self._owner != os.getpid():  # After a fork, the engines belong to the parent; this process starts its own.
            self._owner, self._num_processes = os.getpid(), _NUM_OF_FORK
            self._of_parent, self._processes, self._running = self._processes, [], {}
        assert not self._running, "only one call at a time: another call has unread answers"

    def _begin(self, job: _Job) -> None:
        process = self._idle_process()
        declared = re.search(r" max (\d+)", process.declared.get("MultiPV", ""))
        max_moves = int(declared[1]) if declared else 1
        if job.query.moves is not None and max_moves < MAX_LEGAL_MOVES:
            raise EngineMissingError(
                f"{process.name} scores at most {max_moves} moves (option MultiPV), and a position can have {MAX_LEGAL_MOVES}"
            )
        process.send(f"{_NEW_GAME}position fen {job.query.fen}\ngo {job.query.limit}")
        self._running[process] = job, job.query

    def _idle_process(self) -> EngineProcess:
        for process in [process for process in self._processes if process not in self._running]:
            if process.is_alive():
                return process
            self._end(process)
        self._processes.append(EngineProcess(self._path, self._options, start_seconds=SILENT_SECONDS))
        return self._processes[-1]

    def _outcomes(self) -> Iterator[tuple[_Job, str, EngineAnswer | EngineError]]:
        """Yield job, limit and outcome of each search that ended; kill processes whose search failed."""
        poll = select.poll()
        for process in self._running:
            poll.register(process.stdout, select.POLLIN)
        timeout = min(process.seconds_left() for process in self._running)
        ready = {pipe for pipe, _ in poll.poll(timeout * 1000)}
        for process, (job, query) in list(self._running.items()):
            try:
                if process.stdout in ready:
                    process.read()
                if (data := process.take_until(b"bestmove")) is None:
                    process.raise_if_hung()
                    continue
                answer = parse_answer(data, num_lines=None if query.moves is None else len(query.moves), needs_scores=query.needs_scores)
                verify(answer, query)
                if query.then is not None:
                    second = query.then(answer)
                    process.send(f"go {second.limit}")
                    self._running[process] = job, second
                    continue
            except EngineError as error:
                self._end(process)
                yield job, query.limit, type(error)(f"{query.fen}: {error}")
            else:
                del self._running[process]
                yield job, query.limit, answer

    def _end(self, process: EngineProcess) -> None:
        self._processes.remove(process)
        self._running.pop(process, None)
        process.kill()
