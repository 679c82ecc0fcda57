"""A proxy before a real UCI engine that, at some searches, crashes, hangs, lies, floods or says nothing of use.

`python faulty_engine.py ENGINE` with SOAK_ENGINE_FAULTS naming a folder, in which it notes each fault as a file. Without the variable it
becomes the engine itself. SOAK_ENGINE_RARITY, by default 1, makes faults so many times rarer.
"""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("crash midway", "answers, then dies", "closes its output", "illegal best move", "garbage", "flood", "hang midway")
ONE_IN, ONE_IN_OF_GAMES = 40, 300
"""One of so many searches fails; more rarely in a game, which is replayed from its beginning after each fault."""


def launcher(folder: Path, engine: str) -> Path:
    program = folder / "stockfish"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(__file__).resolve()}" "{engine}"\n')
    program.chmod(0o755)
    return program


def main() -> None:
    engine = sys.argv[1]
    if "SOAK_ENGINE_FAULTS" not in os.environ:
        os.execv(engine, [engine])
    # In this process's group, which is killed as a whole.
    real = subprocess.Popen([engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    answers = os.fdopen(real.stdout.fileno(), "rb", closefd=False)
    position = b""
    for line in os.fdopen(0, "rb", buffering=0):
        word = line.split()[0] if line.split() else b""
        os.write(real.stdin.fileno(), line)
        if word == b"quit":
            return
        if word == b"position":
            position = line
        if word in (b"uci", b"isready"):
            _say(_until(answers, b"uciok" if word == b"uci" else b"readyok"))
        if word == b"go":
            _answer(_until(answers, b"bestmove"), _fault(Path(os.environ["SOAK_ENGINE_FAULTS"]), position + line))


def _until(answers: Any, word: bytes) -> bytes:
    lines = []
    for line in answers:
        lines.append(line)
        if line.startswith(word):
            break
    return b"".join(lines)


def _fault(folder: Path, asked: bytes) -> str:
    """Return what goes wrong with a search, or nothing; each fails once, so that it is answered when it is asked again."""
    number = int.from_bytes(hashlib.sha256(folder.parent.name.encode() + asked).digest()[:6], "big")
    one_in = int(os.environ.get("SOAK_ENGINE_RARITY", "1")) * (ONE_IN_OF_GAMES if b" moves " in asked else ONE_IN)
    kind = KINDS[number // one_in % len(KINDS)]
    try:
        if number % one_in == 0:
            (folder / f"{number} {kind}").touch(exist_ok=False)
            return kind
    except FileExistsError:
        pass
    return ""


def _answer(text: bytes, kind: str) -> None:
    half, last = text[: len(text) // 2], text[text.rfind(b"bestmove") :]
    match kind:
        case "":
            _say(text)
        case "crash midway":
            _say(half)
            os._exit(1)
        case "answers, then dies":
            _say(text)
            os._exit(0)
        case "closes its output":
            os.close(1)
            time.sleep(600)
        case "illegal best move":
            _say(text[: -len(last)] + b"bestmove a1a1\n")
        case "garbage":
            _say(b"\0\xff info depth x multipv y score z pv\ninfo depth 1 multipv 1 pv score\nbestmove\n")
        case "flood":
            while True:
                os.write(1, b"info string " + b"spam " * 4000 + b"\n")
        case "hang midway":
            _say(half)
            time.sleep(600)


def _say(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    main()
