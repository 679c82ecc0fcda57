"""Games per second of a compressed file under a filter that rejects 95 % of the games by their tags, against the same without the filter.

    python benchmarks/tag_filter.py [MEGABYTES]

The file is made up: games of random moves with clocks and the tags of Lichess, every twentieth of strong players, at least so many
megabytes packed (100). Both ways read the same file in one process, in turns, one slice of it each; the ratio counts.
"""

import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

import chess
import zstandard

from grpo.dataset.quotas import SourceReport
from grpo.dataset.sources import file_games
from grpo.reading.streams import find_files, read_chunks
from grpo.settings.tree import BoardsConfig

NUM_TEXTS = 200
SLICES = 5
SLICE_SECONDS = 6.0


def movetext(rng: random.Random) -> str:
    """Return 60 to 100 random plies with clocks."""
    board, words = chess.Board(), []
    for ply in range(rng.randrange(60, 100)):
        if not (legal := list(board.legal_moves)):
            break
        move = rng.choice(legal)
        number = f"{ply // 2 + 1}. " if ply % 2 == 0 else f"{ply // 2 + 1}... "
        words.append(f"{number}{board.san(move)} {{ [%clk 0:0{rng.randrange(5)}:{rng.randrange(10, 60)}] }}")
        board.push(move)
    return " ".join(words)


def write(path: Path, num_bytes: int) -> int:
    """Write games until the packed file has so many bytes, and return their number."""
    rng = random.Random(0)
    texts = [movetext(rng) for _ in range(NUM_TEXTS)]
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as packed:
        for number in itertools.count():
            rating = 2_400 if number % 20 == 0 else rng.randrange(800, 2_100)
            packed.write(
                f'[Event "Rated Blitz game"]\n[Site "https://lichess.org/{rng.getrandbits(64):016x}"]\n[Date "2024.01.01"]\n[Round "-"]\n'
                f'[White "player{rng.getrandbits(40)}"]\n[Black "player{rng.getrandbits(40)}"]\n[Result "*"]\n[UTCDate "2024.01.01"]\n'
                f'[UTCTime "00:00:{number % 60:02}"]\n[WhiteElo "{rating}"]\n[BlackElo "{rating}"]\n[ECO "A00"]\n'
                f'[Opening "Some"]\n[TimeControl "300+3"]\n[Termination "Normal"]\n\n{texts[number % NUM_TEXTS]} *\n\n'.encode()
            )
            if number % 1_000 == 0 and file.tell() >= num_bytes:
                return number + 1
    raise AssertionError("games have no end")


def main() -> None:
    """Print games per second both ways, their ratio, and that of reading the bytes alone."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "games.pgn.zst"
        num_games = write(path, int(megabytes * 1e6))
        plain = BoardsConfig(source="files", files=(str(path),), num_units=1, num_tasks=1)
        strict = plain.model_copy(update={"filters": plain.filters.model_copy(update={"min_rating": 2_200})})
        ways = {name: file_games(config, unit=0, report=SourceReport()) for name, config in (("all", plain), ("filtered", strict))}
        games, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
        for _ in range(SLICES):
            for name, entries in ways.items():
                start = time.process_time()
                while time.process_time() - start < SLICE_SECONDS and next(entries, None) is not None:
                    games[name] += 1
                seconds[name] += time.process_time() - start
        rates = {name: games[name] / seconds[name] for name in ways}
        start = time.process_time()
        size = sum(map(len, read_chunks(find_files([str(path)])[0])))
        unpacking = time.process_time() - start
    print(f"{num_games:,} games, {path.name} of {megabytes:g} MB, {size / 1e6:,.0f} MB unpacked in {unpacking:.1f} CPU s")
    print(f"without the filter {rates['all']:,.0f} games/s ({games['all']:,} read)")
    print(f"with it            {rates['filtered']:,.0f} games/s ({games['filtered']:,} read), {rates['filtered'] / rates['all']:.1f} times")
    print(f"that is {rates['filtered'] * size / num_games / 1e6:,.1f} MB/s of PGN")


if __name__ == "__main__":
    main()
