"""A UCI engine that answers from a hash of the position, and fails where its plan says so.

`ScriptedEngine` builds such an engine; this file, run as a program, is one. A fault of the plan has a kind, a position or a number of the
search, and a number of times. All processes of an engine share a journal, so `nth` counts the searches of all.
"""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOR_EVER = 600.0


class ScriptedEngine:
    """An executable engine in a folder, with the journal of what it was asked."""

    def __init__(
        self,
        folder: Path,
        *faults: dict[str, Any],
        multi_pv: int | None = 500,
        starts: bool = True,
        has_memory: bool = False,
        scores: dict[str, str] | None = None,
        positions: Sequence[str] = (),
    ) -> None:
        """Write the engine.

        Args:
            folder: For launcher, plan and journal; it is in the command line of every process of this engine.
            faults: Each a dict of `kind`, and optionally `fen` (only there), `nth` (only that search, from 1), `times` (1), `seconds`.
            multi_pv: Most lines at once; None for an engine without the option.
            starts: Whether it starts at all.
            has_memory: Answers depend on the positions searched since the last `ucinewgame`, like those of a kept hash.
            positions: FENs that it will be asked; an engine that is asked no others starts in a third of the time.
            scores: UCI move -> what the engine says of it (`cp 900`, `mate -2`), instead of the hash.
        """
        import chess

        self.journal = folder / "journal"
        self.journal.touch()
        plan = folder / "plan.json"
        plan.write_text(
            json.dumps(
                {
                    "faults": faults,
                    "journal": str(self.journal),
                    "multi_pv": multi_pv,
                    "starts": starts,
                    "has_memory": has_memory,
                    "scores": scores or {},
                    "site": str(Path(chess.__file__).parent.parent),
                    "legal_moves": {fen: sorted(move.uci() for move in chess.Board(fen).legal_moves) for fen in positions},
                }
            )
        )
        launcher = folder / "engine"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(__file__).resolve()}" "{plan}"\n')
        launcher.chmod(0o755)
        self.path = str(launcher)

    def searches(self) -> list[dict[str, Any]]:
        """Return all searches in the order they were asked for: `pid`, `fen`, `limit` and `is_fresh`."""
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


def move_scores(fen: str, moves: list[str], memory: str) -> list[tuple[int, str]]:
    """Return (centipawns, move), best first; plain chance, but the same chance each time."""
    digests = {move: hashlib.sha256(f"{memory}|{fen}|{move}".encode()).digest() for move in moves}
    return sorted(((int.from_bytes(digest[:2], "big") % 1201 - 600, move) for move, digest in digests.items()), reverse=True)


class _Engine:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.fen = ""
        self.is_fresh = False
        self.seen_since_new: list[str] = []
        self.num_lines = 1

    def serve(self) -> None:
        if not self.plan["starts"]:
            os._exit(1)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "uci":
                self._start()
            elif word == "isready":
                say("readyok\n")
            elif word == "ucinewgame":
                self.is_fresh, self.seen_since_new = True, []
            elif word == "position":
                self.fen = self._fen_after(*rest.removeprefix("fen ").split(" moves "))
            elif word == "setoption" and rest.startswith("name MultiPV value "):
                lines = int(rest.split()[-1])
                self.num_lines = lines if lines <= self.plan["multi_pv"] else self.num_lines  # As Stockfish, for values out of range.
            elif word == "go":
                self._go(rest)
            elif word == "quit":
                return

    def _start(self) -> None:
        sys.path.append(self.plan["site"])
        if not self.plan["legal_moves"]:
            __import__("chess")  # Now, since a start is given more time than a search.
        lines = "" if self.plan["multi_pv"] is None else f"option name MultiPV type spin default 1 min 1 max {self.plan['multi_pv']}\n"
        say(f"id name Scripted 1\nid author nobody\noption name Threads type spin default 1 min 1 max 9\n{lines}uciok\n")

    def _go(self, limit: str) -> None:
        with Path(self.plan["journal"]).open("r+", encoding="utf-8") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)
            before = [json.loads(line)["fault"] for line in journal]
            fault = self._fault(before)
            entry = {"pid": os.getpid(), "fen": self.fen, "limit": limit, "is_fresh": self.is_fresh, "fault": fault}
            journal.write(json.dumps(entry) + "\n")
        self.is_fresh = False
        self.seen_since_new.append(self.fen)
        self._answer(limit, {} if fault is None else self.plan["faults"][fault])

    def _fault(self, before: list[int | None]) -> int | None:
        for index, fault in enumerate(self.plan["faults"]):
            is_here = fault.get("fen", self.fen) == self.fen and fault.get("nth", len(before) + 1) == len(before) + 1
            if is_here and before.count(index) < fault.get("times", 1):
                return index
        return None

    def _answer(self, limit: str, fault: dict[str, Any]) -> None:
        word, number, *searched = limit.split()
        moves = searched[1:] or self._legal_moves()
        scores = move_scores(self.fen, moves, "/".join(self.seen_since_new) if self.plan["has_memory"] else "")
        kind = fault.get("kind")
        depth = int(number) - (kind == "shallow") if word == "depth" and kind != "depth 1" else 1
        lines = [
            f"info depth {depth} seldepth {depth} multipv {rank} score {self._score(score, move)} nodes 9 nps 9 tbhits 0 time 1 pv {move}\n"
            for rank, (score, move) in enumerate(scores[: self.num_lines], start=1)
        ]
        whole, best = "".join(lines), f"bestmove {scores[0][1] if scores else '(none)'}\n"
        match kind:
            case "crash":
                say(whole + "bestmo")
                os._exit(1)
            case "last words" | "killed":
                say("info depth 1 currmove e2e4\ninfo string ERROR: The network file was not loaded.\n")
                os.write(2, b"cannot go on\n")
                os.kill(os.getpid(), signal.SIGILL) if kind == "killed" else os._exit(1)
            case "castles as Chess960":
                import chess

                board = chess.Board(self.fen)
                chess960 = {board.uci(move): board.uci(move, chess960=True) for move in board.generate_castling_moves()}
                whole = "".join(f"{line.rpartition(' ')[0]} {chess960.get(move := line.split()[-1], move)}\n" for line in lines)
            case "hang" | "hang with a child":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if kind == "hang with a child":
                    subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({_FOR_EVER})", self.plan["journal"]])
                time.sleep(_FOR_EVER)
            case "sleeps":
                time.sleep(fault["seconds"])
            case "computes":
                until = time.monotonic() + fault["seconds"]
                while time.monotonic() < until:
                    pass
            case "chatters for ever" | "flood":
                while True:
                    say("info string still thinking\n" * (1 if kind == "chatters for ever" else 1_000))
                    time.sleep(0.01 if kind == "chatters for ever" else 0)
        answers = {
            "none": whole + "bestmove (none)\n",
            "garbage": "\0\N{PILE OF POO} info depth x multipv y score z pv\ninfo depth 1 multipv 1 pv score\nbestmove\n",
            "no score": best,
            "illegal best move": whole + "bestmove a1a1\n",
            "half of the moves": "".join(lines[: len(lines) // 2]) + best,
        }
        say(answers.get(str(kind), whole + best))

    def _score(self, centipawns: int, move: str) -> str:
        return self.plan["scores"].get(move, f"cp {centipawns}")

    def _fen_after(self, fen: str, moves: str = "") -> str:
        if not moves:
            return fen
        import chess

        board = chess.Board(fen)
        for move in moves.split():
            board.push_uci(move)
        return board.fen()

    def _legal_moves(self) -> list[str]:
        if self.fen in self.plan["legal_moves"]:
            return list(self.plan["legal_moves"][self.fen])
        import chess

        return sorted(move.uci() for move in chess.Board(self.fen).legal_moves)


def say(text: str) -> None:
    os.write(1, text.encode())


if __name__ == "__main__":
    _Engine(json.loads(Path(sys.argv[1]).read_text())).serve()
