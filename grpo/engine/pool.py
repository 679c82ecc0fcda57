"""Pool of UCI engine processes: concurrent searches, each retried on a fresh process if it fails.

It uses raw pipes instead of python-chess's wrapper, which waits forever for a silent engine if the limit is nodes or depth, and reaches a
third of the speed (benchmarks/engine.py). One thread drives all processes of a pool.
"""

import select
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import chess

from grpo.engine.answers import EngineAnswer, EngineError, parse_answer, parse_best_move
from grpo.engine.identity import EngineMissingError, find_engine
from grpo.engine.process import SILENT_SECONDS, EngineProcess

MAX_LINES: Final = 256
"""MultiPV that covers all legal moves of any position (at most 218); Stockfish caps it at the number of legal moves."""
PLAYING_HASH_MIB: Final = 1
"""`Hash` of every engine that plays games; another size would be another opponent than the rated one.

The hash is cleared before each move, so that equal positions get equal answers; a small hash is cheap to clear.
"""

_MAX_LEGAL_MOVES: Final = 218
_NUM_ATTEMPTS: Final = 3  # Each on a fresh process.
_MAX_FAILURES_IN_A_ROW: Final = 5  # Queries; after so many the engine is at fault, not a position.
# Searches queued in the pipe, so that the engine never waits for us. UCI forbids it; Stockfish finishes a search before it reads on.
_SENT_AHEAD: Final = {"Stockfish": 4}
_SLEEP_SECONDS: Final = 0.0005
_NEW_GAME: Final = "ucinewgame\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One search."""

    fen: str
    limit: str
    """The arguments of `go`, such as `depth 2` or `nodes 50`."""
    moves: frozenset[str] | None = None
    """If given, exactly these moves (UCI) must be scored."""
    board: chess.Board | None = field(default=None, compare=False)
    """The position, if the caller has it; parsing the FEN only to check that the answer is legal takes half as long as the search."""

    def commands(self) -> str:
        """Return the UCI commands of the search; the hash is cleared first, so that the answer does not depend on earlier searches."""
        return f"{_NEW_GAME}position fen {self.fen}\ngo {self.limit}"


def verify(answer: EngineAnswer, query: Query) -> None:
    """Raise EngineError if an answer names an illegal move, lacks the score of a requested move, or is of a lower depth than requested.

    With a mate found, or with one move to score, some engines end earlier; the answer is then the same at any depth.
    """
    word, _, number = query.limit.partition(" ")
    is_settled = len(answer.scores) == 1 == len(query.moves or ()) or any(score.is_mate for score in answer.scores.values())
    if word == "depth" and answer.depth < int(number.split()[0]) and not is_settled:
        raise EngineError(f"the engine searched to depth {answer.depth} instead of {number}")
    if query.moves is not None:
        if answer.scores.keys() != query.moves:
            raise EngineError(f"the engine scored {len(answer.scores)} moves, which are not the {len(query.moves)} legal ones")
        if answer.best_move not in query.moves:
            raise EngineError(f"{answer.best_move} is not legal")
        return
    try:
        is_legal = (query.board or chess.Board(query.fen)).is_legal(chess.Move.from_uci(answer.best_move))
    except chess.InvalidMoveError:
        is_legal = False
    if not is_legal:
        raise EngineError(f"{answer.best_move} is not legal")


def _refuse_too_few_lines(process: EngineProcess) -> None:
    most = process.maximum("MultiPV") or 1
    if most < _MAX_LEGAL_MOVES:
        raise EngineMissingError(
            f"{process.name} searches at most {most} {'line' if most == 1 else 'lines'} at once (option MultiPV), and a position can have"
            f" {_MAX_LEGAL_MOVES} moves; install Stockfish (apt-get install stockfish), or set CHESS_GRPO_STOCKFISH to another engine"
        )


@dataclass(slots=True)
class _Job:
    index: int
    query: Query
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Worker:
    """A process and the searches that were sent to it; the first one is running."""

    process: EngineProcess
    jobs: deque[_Job] = field(default_factory=deque)


class EnginePool:
    """A fixed number of engine processes, as a context manager that kills all of them on exit.

    Use it in one thread, which must outlive the pool: Linux kills the engines when the thread that started them ends.
    """

    def __init__(self, path: str, *, num_processes: int, options: Mapping[str, str | int]) -> None:
        """Find the engine; processes start on demand. Each has one thread, because searches with more are not reproducible.

        Args:
            path: The engine.
            num_processes: Most processes at a time.
            options: UCI options by name.
        """
        self._path = find_engine(path)
        self.options: dict[str, str | int] = {"Threads": 1, **options}
        """All requested UCI options; those that an engine does not declare are not sent."""
        self._num_processes = num_processes
        self._workers: dict[int, _Worker] = {}
        self._poll = select.poll()
        self._num_ahead = 1
        self._failed_in_a_row = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        for worker in list(self._workers.values()):
            self._end(worker)

    def search(self, queries: Iterable[Query]) -> list[EngineAnswer | EngineError]:
        """Return the results of `answers` as a list."""
        return list(self.answers(queries))

    def answers(self, queries: Iterable[Query]) -> Iterator[EngineAnswer | EngineError]:
        """Yield an answer for each query, in order; a query that failed on three fresh processes yields an EngineError instead.

        The engines keep searching while the caller works on an answer. Raises EngineError if several queries in a row fail, also across
        calls: then the engine is at fault, not a position.
        """
        finished: dict[int, EngineAnswer | EngineError] = {}
        num_yielded = 0
        with closing(self._outcomes(queries)) as outcomes:  # Closes at once, not when the last traceback is collected.
            for job, outcome in outcomes:
                self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(outcome, EngineError) else 0
                if self._failed_in_a_row >= _MAX_FAILURES_IN_A_ROW:
                    raise EngineError(
                        f"{self._path}: {self._failed_in_a_row} searches in a row failed on fresh processes, last: {outcome};"
                        " run it by hand, reinstall it, or set CHESS_GRPO_STOCKFISH to another engine"
                    )
                finished[job.index] = outcome
                while num_yielded in finished:
                    yield finished.pop(num_yielded)
                    num_yielded += 1

    def best_move(self, start_fen: str, moves: str, limit: str, *, is_fresh: bool) -> str:
        """Return the engine's move in a game, in UCI, or "" if it reports that there is none.

        The caller, who has the board, checks that the move is legal.

        Args:
            start_fen: Position at the start of the game.
            moves: Moves since then, in UCI, separated by blanks.
            limit: The arguments of `go`.
            is_fresh: Whether to clear the hash first; otherwise it is that of the previous call.

        Raises EngineError without a retry: a new process lacks the hash of the game so far, so the whole game must be replayed.
        """
        worker = next(iter(self._workers.values()), None)
        assert worker is None or not worker.jobs, "only one call at a time: another call has unread answers"
        if worker is None or (is_fresh and not worker.process.is_alive()):
            if worker is not None:
                self._end(worker)
            worker = self._start()
        try:
            worker.process.send(f"{_NEW_GAME if is_fresh else ''}position fen {start_fen}{' moves ' * bool(moves)}{moves}\ngo {limit}")
            return parse_best_move(worker.process.answer())
        except BaseException:
            self._end(worker)
            raise

    def _outcomes(self, queries: Iterable[Query]) -> Generator[tuple[_Job, EngineAnswer | EngineError], None, None]:
        assert not any(worker.jobs for worker in self._workers.values()), "only one call at a time: another call has unread answers"
        new_jobs = (_Job(index, query) for index, query in enumerate(queries))
        retries: deque[_Job] = deque()
        try:
            while True:
                yield from self._dispatch(new_jobs, retries)
                busy = [worker for worker in self._workers.values() if worker.jobs]
                if not busy:
                    if retries:
                        continue
                    return
                if min(len(worker.jobs) for worker in busy) > 1:
                    # Engines write line by line and have queued work, so waking once per search costs less than once per line.
                    time.sleep(_SLEEP_SECONDS)
                timeout = min(worker.process.seconds_left() for worker in busy)
                ready = {pipe for pipe, _ in self._poll.poll(timeout * 1000)}
                for worker in busy:
                    yield from self._listen(worker, worker.process.stdout in ready, retries)
        finally:
            for worker in [worker for worker in self._workers.values() if worker.jobs]:
                self._end(worker)  # It has unread answers that nobody waits for.

    def _dispatch(self, new_jobs: Iterator[_Job], retries: deque[_Job]) -> Iterator[tuple[_Job, EngineAnswer | EngineError]]:
        """Send searches until every process has enough; start processes up to the pool's size."""
        while True:
            worker = min(self._workers.values(), key=lambda worker: len(worker.jobs), default=None)
            has_room = len(self._workers) < self._num_processes
            if worker is not None and len(worker.jobs) >= self._num_ahead and not has_room:
                return
            job = retries.popleft() if retries else next(new_jobs, None)
            if job is None:
                return
            try:
                if worker is not None and not worker.jobs and not worker.process.is_alive():
                    self._end(worker)  # It died between two searches, so no answer is lost.
                    worker, has_room = None, True
                if worker is None or (worker.jobs and has_room):
                    worker = self._start()
            except EngineError as error:
                yield from self._failed(job, error, retries)
                continue
            if job.query.moves is not None:
                _refuse_too_few_lines(worker.process)
            worker.jobs.append(job)
            # A dead process may have answered before: `_listen` reads that first, and then finds the search on which it died.
            with suppress(EngineError):
                worker.process.send(job.query.commands())

    def _start(self) -> _Worker:
        process = EngineProcess(self._path, self.options, start_seconds=SILENT_SECONDS)
        self._num_ahead = _SENT_AHEAD.get(process.name.split(" ")[0], 1)
        worker = self._workers[process.stdout] = _Worker(process)
        self._poll.register(process.stdout, select.POLLIN)
        return worker

    def _end(self, worker: _Worker) -> None:
        self._poll.unregister(worker.process.stdout)
        del self._workers[worker.process.stdout]
        worker.process.kill()

    def _listen(self, worker: _Worker, is_ready: bool, retries: deque[_Job]) -> Iterator[tuple[_Job, EngineAnswer | EngineError]]:
        """Yield the answers that have arrived; kill a process that fails, and retry its search on a fresh one."""
        try:
            if is_ready:
                worker.process.read()
            while worker.jobs and (data := worker.process.take_until(b"bestmove")) is not None:
                query = worker.jobs[0].query
                answer = parse_answer(data, num_lines=None if query.moves is None else len(query.moves))
                verify(answer, query)
                yield worker.jobs.popleft(), answer
            if worker.jobs:
                worker.process.raise_if_hung()
        except (EngineError, ValueError, IndexError) as error:
            yield from self._lost(worker, EngineError(f"{worker.jobs[0].query.fen}: {error}"), retries)

    def _lost(self, worker: _Worker, error: EngineError, retries: deque[_Job]) -> Iterator[tuple[_Job, EngineError]]:
        """Kill a process whose first search failed; requeue its other searches."""
        self._end(worker)
        first, *others = worker.jobs
        worker.jobs.clear()
        retries.extendleft(reversed(others))
        yield from self._failed(first, error, retries)

    def _failed(self, job: _Job, error: EngineError, retries: deque[_Job]) -> Iterator[tuple[_Job, EngineError]]:
        job.failures.append(str(error))
        if len(job.failures) < _NUM_ATTEMPTS:
            retries.appendleft(job)
        else:
            yield job, error
