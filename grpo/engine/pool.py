"""Engine processes, pooled: many searches at once, each asked again on a fresh process when one fails.

Written against the pipes rather than on python-chess's wrapper, which waits for ever on a silent engine when the limit is nodes or depth,
and reaches a third of the speed (benchmarks/engine.py). One thread drives all processes of a pool.
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
"""MultiPV that covers all legal moves of any position (at most 218); Stockfish lowers it by itself."""
PLAYING_HASH_MIB: Final = 1
"""`Hash` of every engine that plays: with another it would be another opponent than the one that was rated. It is cleared before each move,
so that equal positions get equal answers; a small one is cheap to clear."""

_MAX_LEGAL_MOVES: Final = 218
_NUM_ATTEMPTS: Final = 3  # Each on a fresh process.
_MAX_FAILURES_IN_A_ROW: Final = 5  # Queries, after which the fault is the engine's and not the position's.
# Searches sent ahead, so that the engine need not wait for us. UCI does not allow it; Stockfish ends one search before it reads on.
_SENT_AHEAD: Final = {"Stockfish": 4}
_NAP_SECONDS: Final = 0.0005
_NEW_GAME: Final = "ucinewgame\n"


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
    board: chess.Board | None = field(default=None, compare=False)
    """The position, for who has it at hand: to set it up anew, only to see that the answer is legal, takes half as long as the search."""

    def commands(self) -> str:
        """Return what is sent to the engine."""
        return f"{_NEW_GAME if self.is_fresh else ''}position fen {self.fen}\ngo {self.limit}"


def verify(answer: EngineAnswer, query: Query) -> None:
    """Raise EngineError when an answer names an illegal move, or leaves out a move that was asked for."""
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
class _Lane:
    """A process and the searches that it was sent, the first being under way."""

    process: EngineProcess
    jobs: deque[_Job] = field(default_factory=deque)


class EnginePool:
    """A fixed number of engine processes, used as a context manager; nothing is left behind on any way out.

    For one thread, which must outlive it: Linux ends the engines with the thread that started them.
    """

    def __init__(self, path: str, *, num_processes: int, options: Mapping[str, str | int]) -> None:
        """Start nothing yet; `options` are UCI options by name. One thread per process, always: more would not be repeatable."""
        self._path = find_engine(path)
        self.options: dict[str, str | int] = {"Threads": 1, **options}
        """All UCI options that were asked for; those that an engine does not declare are not sent."""
        self._num_processes = num_processes
        self._lanes: dict[int, _Lane] = {}
        self._poll = select.poll()
        self._num_ahead = 1
        self._failed_in_a_row = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        for lane in list(self._lanes.values()):
            self._end(lane)

    def search(self, queries: Iterable[Query]) -> list[EngineAnswer | EngineError]:
        """Return all of `answers`."""
        return list(self.answers(queries))

    def answers(self, queries: Iterable[Query]) -> Iterator[EngineAnswer | EngineError]:
        """Yield an answer for each query, in order; one that failed on three fresh processes is an EngineError in its place.

        The engines go on while the caller works on what it got. Raises EngineError when several queries in a row fail that way, also over
        several calls: then the engine is at fault, not a position.
        """
        finished: dict[int, EngineAnswer | EngineError] = {}
        num_yielded = 0
        with closing(self._outcomes(queries)) as outcomes:  # At once, and not when the last traceback that knows it is forgotten.
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
        """Return the move that the engine plays in a game, in UCI, or "" when it says that there is none.

        Args:
            start_fen: where the game began.
            moves: those made since, in UCI, with blanks between.
            limit: the words after `go`.
            is_fresh: clear the hash first; else it is the one that the call before left.

        The caller, who has the board, checks that the move is legal. Raises EngineError without asking again: a new process has not the
        hash of the game so far, so that the game as a whole is to be played again.
        """
        lane = next(iter(self._lanes.values()), None)
        assert lane is None or not lane.jobs, "one call at a time: the answers of another are still to come"
        if lane is None or (is_fresh and not lane.process.is_alive()):
            if lane is not None:
                self._end(lane)
            lane = self._start()
        try:
            lane.process.send(f"{_NEW_GAME if is_fresh else ''}position fen {start_fen}{' moves ' * bool(moves)}{moves}\ngo {limit}")
            return parse_best_move(lane.process.answer())
        except BaseException:
            self._end(lane)
            raise

    def _outcomes(self, queries: Iterable[Query]) -> Generator[tuple[_Job, EngineAnswer | EngineError], None, None]:
        assert not any(lane.jobs for lane in self._lanes.values()), "one call at a time: the answers of another are still to come"
        coming = (_Job(index, query) for index, query in enumerate(queries))
        again: deque[_Job] = deque()
        try:
            while True:
                yield from self._hand_out(coming, again)
                busy = [lane for lane in self._lanes.values() if lane.jobs]
                if not busy:
                    if again:
                        continue
                    return
                if min(len(lane.jobs) for lane in busy) > 1:
                    # Engines write line by line, and have more to do: to be woken once a search costs less than once a line.
                    time.sleep(_NAP_SECONDS)
                patience = min(lane.process.seconds_left() for lane in busy)
                ready = {pipe for pipe, _ in self._poll.poll(patience * 1000)}
                for lane in busy:
                    yield from self._listen(lane, lane.process.stdout in ready, again)
        finally:
            for lane in [lane for lane in self._lanes.values() if lane.jobs]:
                self._end(lane)  # It owes answers that nobody waits for.

    def _hand_out(self, coming: Iterator[_Job], again: deque[_Job]) -> Iterator[tuple[_Job, EngineAnswer | EngineError]]:
        """Send searches until every process has enough, fresh processes being started as long as there may be more."""
        while True:
            lane = min(self._lanes.values(), key=lambda lane: len(lane.jobs), default=None)
            has_room = len(self._lanes) < self._num_processes
            if lane is not None and len(lane.jobs) >= self._num_ahead and not has_room:
                return
            job = again.popleft() if again else next(coming, None)
            if job is None:
                return
            try:
                if lane is not None and not lane.jobs and not lane.process.is_alive():
                    self._end(lane)  # It died between two searches, and owes no answer.
                    lane, has_room = None, True
                if lane is None or (lane.jobs and has_room):
                    lane = self._start()
            except EngineError as error:
                yield from self._failed(job, error, again)
                continue
            if job.query.moves is not None:
                _refuse_too_few_lines(lane.process)
            lane.jobs.append(job)
            # One that has died may have answered before: `_listen` reads that first, and then finds out on which search it died.
            with suppress(EngineError):
                lane.process.send(job.query.commands())

    def _start(self) -> _Lane:
        process = EngineProcess(self._path, self.options, start_seconds=SILENT_SECONDS)
        self._num_ahead = _SENT_AHEAD.get(process.name.split(" ")[0], 1)
        lane = self._lanes[process.stdout] = _Lane(process)
        self._poll.register(process.stdout, select.POLLIN)
        return lane

    def _end(self, lane: _Lane) -> None:
        self._poll.unregister(lane.process.stdout)
        del self._lanes[lane.process.stdout]
        lane.process.kill()

    def _listen(self, lane: _Lane, is_ready: bool, again: deque[_Job]) -> Iterator[tuple[_Job, EngineAnswer | EngineError]]:
        """Take the answers that have come; a process that fails is killed, and its search asked again on a fresh one."""
        try:
            if is_ready:
                lane.process.read()
            while lane.jobs and (data := lane.process.take_until(b"bestmove")) is not None:
                query = lane.jobs[0].query
                answer = parse_answer(data, num_lines=None if query.moves is None else len(query.moves))
                verify(answer, query)
                yield lane.jobs.popleft(), answer
            if lane.jobs:
                lane.process.raise_if_hung()
        except (EngineError, ValueError, IndexError) as error:
            yield from self._lost(lane, EngineError(f"{lane.jobs[0].query.fen}: {error}"), again)

    def _lost(self, lane: _Lane, error: EngineError, again: deque[_Job]) -> Iterator[tuple[_Job, EngineError]]:
        """End a process whose first search failed; those that it was sent ahead are no worse for it, unless they needed its hash."""
        self._end(lane)
        first, *others = lane.jobs
        lane.jobs.clear()
        again.extendleft(job for job in reversed(others) if job.query.is_fresh)
        yield from self._failed(first, error, again)
        for job in others:
            if not job.query.is_fresh:
                yield job, EngineError(f"{job.query.fen}: the process whose hash it needed has failed: {error}")

    def _failed(self, job: _Job, error: EngineError, again: deque[_Job]) -> Iterator[tuple[_Job, EngineError]]:
        job.failures.append(str(error))
        if job.query.is_fresh and len(job.failures) < _NUM_ATTEMPTS:
            again.appendleft(job)
        else:
            yield job, error
