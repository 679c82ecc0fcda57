"""A chess program plays the exported champion: 100 games with a clock under the engine module of python-chess."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import chess
import pytest
from chess.engine import Limit, SimpleEngine
from doubles import CPU, some_boards

from grpo.policy.policy import new_policy
from grpo.settings.tree import Settings

CHESS_GRPO = Path(sys.executable).with_name("chess-grpo")


def processor_seconds(engine: SimpleEngine) -> float:
    """Return how long an engine has computed, which does not depend on how busy the machine is."""
    fields = Path(f"/proc/{engine.transport.get_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.prove
def test_the_champion_plays_100_games_without_an_illegal_move_or_a_time_forfeit(stockfish: str, tmp_path: Path) -> None:
    """Against Stockfish and itself, each opening with both colors, half of them with drawn moves, at 10 s and 0.1 s a move."""
    new_policy(Settings().policy, seed=1, device=CPU).save(tmp_path)
    subprocess.run([CHESS_GRPO, "export", tmp_path, tmp_path / "champion"], check=True)
    command = [str(CHESS_GRPO), "uci", "--model", str(tmp_path / "champion")]
    with ExitStack() as stack:
        started = (SimpleEngine.popen_uci(each, timeout=600) for each in (command, command, [stockfish]))
        champion, itself, other = map(stack.enter_context, started)
        other.configure({"UCI_LimitStrength": True, "UCI_Elo": 1350})
        for number, opening in enumerate(board for board in some_boards(50, seed=5, max_plies=12) for _ in chess.COLORS):
            opponent, board, game, clocks = (other, itself)[number // 4 % 2], opening.copy(), object(), {True: 10.0, False: 10.0}
            while board.outcome(claim_draw=True) is None:
                engine = champion if board.turn == (number % 2 == 0) else opponent
                options = {"Temperature": "0.5"} if number // 2 % 2 and engine is not other else {}
                limit = Limit(white_clock=clocks[True], black_clock=clocks[False], white_inc=0.1, black_inc=0.1)
                limit.nodes = 1 if engine is other else None
                before = processor_seconds(engine)
                # Raises EngineError for an illegal move, and when the process has ended: none is started again.
                move = engine.play(board, limit, game=game, options=options).move
                clocks[board.turn] -= processor_seconds(engine) - before
                assert move is not None, f"game {number}: {board.fen()}"
                assert clocks[board.turn] >= 0, f"game {number}: out of time in {board.fen()}"
                clocks[board.turn] += 0.1
                board.push(move)
        assert len({line["pv"][0] for line in champion.analyse(chess.Board(), Limit(nodes=1), multipv=5)}) == 5
    assert number + 1 == 100
