"""A proxy before a real UCI engine that, at searches which a plan names, crashes, hangs, lies, floods or says nothing of use.

`python faulty_engine.py ENGINE` with SOAK_ENGINE_PLAN naming a JSON file: `counter` (a file that numbers the searches of all processes,
those within a game and those of a position alone each by themselves), `struck` (a file with a line for each fault that struck) and `faults`
("game 17" -> kind). Without the variable it becomes the engine itself.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SLOW = ("hang", "hang midway")
"""Kinds that cost their patience."""
KINDS = ("crash", "crash midway", "answers, then dies", "closes its output", "illegal best move", "none", "garbage", "no score", "flood")


def main() -> None:
    engine = sys.argv[1]
    if "SOAK_ENGINE_PLAN" not in os.environ:
        os.execv(engine, [engine])
    plan = json.loads(Path(os.environ["SOAK_ENGINE_PLAN"]).read_text())
    # In this process's group, which is killed as a whole.
    real = subprocess.Popen([engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    answers = os.fdopen(real.stdout.fileno(), "rb", closefd=False)
    position = ""
    for line in os.fdopen(0, "rb", buffering=0):
        word = line.split()[0] if line.split() else b""
        os.write(real.stdin.fileno(), line)
        if word == b"quit":
            return
        if word == b"position":
            position = line.decode()
        if word in (b"uci", b"isready"):
            _say(_until(answers, b"uciok" if word == b"uci" else b"readyok"))
        if word == b"go":
            _answer(_until(answers, b"bestmove"), _fault(plan, position))


def _until(answers: Any, word: bytes) -> bytes:
    lines = []
    for line in answers:
        lines.append(line)
        if line.startswith(word):
            break
    return b"".join(lines)


def _fault(plan: dict[str, Any], position: str) -> str:
    of = "game" if " moves " in position else "position"
    with Path(plan["counter"]).open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        counts = json.loads(counter.read() or '{"game": 0, "position": 0}')
        counts[of] += 1
        counter.truncate(0)
        counter.write(json.dumps(counts))
        counter.flush()
        kind = str(plan["faults"].get(f"{of} {counts[of]}", ""))
        if kind:
            with Path(plan["struck"]).open("a") as struck:
                struck.write(f"{kind}\n")
    return kind


def _answer(text: bytes, kind: str) -> None:
    half, last = text[: len(text) // 2], text[text.rfind(b"bestmove") :]
    match kind:
        case "":
            _say(text)
        case "crash":
            os._exit(1)
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
        case "none":
            _say(text[: -len(last)] + b"bestmove (none)\n")
        case "garbage":
            _say(b"\0\xff info depth x multipv y score z pv\ninfo depth 1 multipv 1 pv score\nbestmove\n")
        case "no score":
            _say(last)
        case "flood":
            while True:
                os.write(1, b"info string " + b"spam " * 4000 + b"\n")
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "hang midway":
            _say(half)
            time.sleep(600)


def _say(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    main()
