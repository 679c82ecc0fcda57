"""Table of games lost to Stockfish at 1 node, by phase and blunder: `python benchmarks/lost_games.py RUN_OR_FOLDER`.

A blunder loses at least 0.15 of a win probability above 0.25: Lichess's, by searches of 20,000 nodes (positions). A game is lost by its
largest blunder, else slowly. A search depth sees a blunder if it finds more than half of the loss; depth 1 is the reply, with captures.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import chess
import torch

from grpo.base.seeding import numpy_stream
from grpo.board.phases import PHASES, Phase, phase_of
from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.move_values import win_chance
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool, Query
from grpo.match.ladder import BASELINE_RUNGS
from grpo.match.matches import PlayedGame
from grpo.settings.tree import Settings
from steps.common.measure import Arena
from steps.common.policies.open import open_policy
from steps.run.machine import Machine
from steps.track.find import find_policy

_NUM_LOST: Final = 200
_PAIRS: Final = 50
_LIMIT: Final = "nodes 20000"
_DROP: Final = 0.15
_LOST: Final = 0.25
_DEPTHS: Final = ("depth 1", "depth 2", "depth 4", "depth 6")
_WAYS: Final = ("slowly", "by a blunder of 0.15 to 0.3", "by a blunder above 0.3")
_REPLIES: Final = ("mate", "takes the moved piece", "takes another piece", "check or fork", "another move")


class Loss(NamedTuple):
    way: str
    phase: Phase
    seen_at: str = ""
    reply: str = ""


def lost_games(policy: str, machine: Machine) -> list[PlayedGame]:
    used, lost = set[str](), list[PlayedGame]()
    player = open_policy(find_policy(policy, machine).folder, torch.device("cpu")).player(policy, temperature=None, seed=0, stream=())
    with Arena(Settings(), machine, lambda *_: None) as arena:
        opponent = BASELINE_RUNGS["engine"].player(arena.pool, numpy_stream(0))
        while len(lost) < _NUM_LOST:
            result = arena.match(player, opponent, arena.openings(_PAIRS, used, "lost games", str(len(used))))
            lost += [game for game in result.games if game.score == 0]
            print(f"{len(lost)} lost; this round {result.interval().score_text}", file=sys.stderr, flush=True)
    return lost[:_NUM_LOST]


def answered(pool: EnginePool, board: chess.Board, limit: str = _LIMIT) -> EngineAnswer:
    [answer] = pool.search([Query(fen=board.fen(), limit=limit, board=board)])
    if isinstance(answer, EngineError):
        raise answer
    return answer


def chance(pool: EnginePool, board: chess.Board, limit: str = _LIMIT) -> float:
    if any(board.legal_moves):
        return win_chance(next(iter(answered(pool, board, limit).scores.values())))
    return 0.0 if board.is_check() else 0.5


def loss_of(game: PlayedGame, pool: EnginePool) -> Loss:
    boards = [board.copy(stack=False) for board in game.boards()]
    own = [number for number, board in enumerate(boards[:-1]) if (board.turn == chess.WHITE) == game.first_is_white]
    chances = [*(chance(pool, boards[number]) for number in own), 0.0]  # 0: lost.
    undecided = [(number, before, later) for number, before, later in zip(own, chances, chances[1:], strict=False) if before > _LOST]
    drops = {
        number: before - 1 + chance(pool, boards[number + 1])
        for number, before, later in undecided
        if before - later > _DROP / 3  # Saves searches. A third, because the reply can give back a part.
    }
    worst = max(drops, key=drops.__getitem__, default=None)
    if worst is None or drops[worst] < _DROP:
        return Loss(_WAYS[0], phase_of(boards[undecided[-1][0] if undecided else 0]))
    board, after, drop = boards[worst], boards[worst + 1], drops[worst]
    best = board.copy(stack=False)
    best.push_uci(answered(pool, board).best_move)
    gaps = {depth: chance(pool, after, depth) - chance(pool, best, depth) for depth in _DEPTHS}
    seen_at = next((depth for depth in _DEPTHS if gaps[depth] > drop / 2), "more")
    return Loss(_WAYS[1 + (drop > 2 * _DROP)], phase_of(board), seen_at, _reply(board, after, pool))


def _reply(board: chess.Board, after: chess.Board, pool: EnginePool) -> str:
    reply = after.parse_uci((answer := answered(pool, after)).best_move)
    if next(iter(answer.scores.values())).is_mate:
        return "mate"
    if after.is_capture(reply):
        moved = after.occupied_co[board.turn] & ~board.occupied_co[board.turn]  # Squares that the move filled.
        return "takes the moved piece" if moved & chess.BB_SQUARES[reply.to_square] else "takes another piece"
    after.push(reply)
    # A fork attacks two pieces.
    attacked = after.attacks_mask(reply.to_square) & after.occupied_co[board.turn] & ~after.pawns
    return "check or fork" if after.is_check() or attacked.bit_count() > 1 else "another move"


def table(losses: Sequence[Loss]) -> Iterator[str]:
    yield f"| lost games | {' | '.join(PHASES)} | all |\n| {' | '.join(['---'] * (len(PHASES) + 2))} |"
    for column, says, labels in ((0, "", _WAYS), (2, "seen at ", (*_DEPTHS, "more")), (3, "best reply: ", _REPLIES)):
        for label in labels:
            counts = Counter(loss.phase for loss in losses if loss[column] == label)
            yield f"| {says}{label} | {' | '.join(str(counts[phase]) for phase in PHASES)} | {counts.total()} |"


def main() -> None:
    machine = Machine.here()
    games = lost_games(sys.argv[1], machine)
    with EnginePool(machine.stockfish, num_processes=1, options={"Hash": PLAYING_HASH_MIB}) as pool:
        print("\n".join(table([loss_of(game, pool) for game in games])))


if __name__ == "__main__":
    main()
