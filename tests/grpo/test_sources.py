"""Where positions come from: quotas filled exactly, no game or position on two sides, and errors that name cause and remedy."""

import io
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from grpo.boards import Position, Split
from grpo.config import BoardsConfig, EngineGames
from grpo.encoding import position_key
from grpo.engine import EnginePool
from grpo.phases import PHASES, Phase, phase_of
from grpo.sources import (
    Game,
    Quota,
    SourceError,
    SourceReport,
    cut_to_quota,
    engine_games,
    engine_unit,
    pgn_games,
    pgn_positions,
    split_of,
    split_shares,
    unit_positions,
    wanted_boards,
)

SMALL: dict[str, Any] = {
    "num_train": 60,
    "num_validation": 15,
    "num_heldout": 15,
    "num_units": 2,
    "num_tasks": 2,
    "max_per_game_and_phase": 6,
}
FAST_GAMES = EngineGames(nodes=(1, 5), max_plies=160, random_opening_plies=6, random_move_probability=0.08)
GAME = '[Event "e"]\n[White "a"]\n[Black "b"]\n[Result "*"]\n'


def pgn_config(path: Path, **changes: Any) -> BoardsConfig:
    """Return a small dataset read from a file."""
    return BoardsConfig(source="pgn", path=str(path), **{**SMALL, **changes})


def random_pgn(num_games: int, *, max_plies: int, seed: int = 1) -> str:
    """Return games of random moves; with 160 plies and more they reach all phases."""
    rng = random.Random(seed)
    texts = []
    for number in range(num_games):
        board = chess.Board()
        for _ in range(max_plies):
            legal = list(board.legal_moves)
            if not legal or board.is_insufficient_material():
                break
            captures = [move for move in legal if board.is_capture(move)]
            board.push(rng.choice(captures if captures and rng.random() < 0.4 else legal))
        game = chess.pgn.Game.from_board(board)
        game.headers.update(
            {"White": f"white {number}", "Black": "b", "UTCDate": "2020.01.02", "WhiteElo": str(1_000 + number), "BlackElo": "?"}
        )
        texts.append(f"{game}\n\n")
    return "".join(texts)


@pytest.fixture(scope="session")
def long_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 60 random games that reach all phases."""
    path = tmp_path_factory.mktemp("pgn") / "long.pgn"
    path.write_text(random_pgn(60, max_plies=220))
    return path


def written(tmp_path: Path, text: str | bytes) -> Path:
    """Return a file with this content."""
    path = tmp_path / "games.pgn"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def game_of(moves: str, *, game_id: str = "g", is_label: Sequence[bool] | None = None, fen: str = chess.STARTING_FEN) -> Game:
    """Return a game of these UCI moves."""
    parsed = tuple(chess.Move.from_uci(move) for move in moves.split())
    return Game(
        game_id=game_id,
        source="test",
        offset=0,
        start_fen=fen,
        moves=parsed,
        is_label=tuple(is_label) if is_label else (True,) * len(parsed),
    )


def in_each_cell(count: int) -> dict[tuple[Split, Phase], int]:
    """Return a quota of so many boards in every cell."""
    return {(split, phase): count for split in Split for phase in PHASES}


def check_positions(positions: Sequence[Position]) -> None:
    """Check all that must hold of positions from any source."""
    assert len({position.key for position in positions}) == len(positions), "a position is there twice"
    splits = {(position.game_id, position.split) for position in positions}
    assert len(splits) == len({game_id for game_id, _ in splits}), "a game is in two splits"
    for position in positions:
        board = chess.Board(position.fen)
        assert position.key == position_key(board)
        assert position.phase is phase_of(board)
        assert chess.Move.from_uci(position.move_played) in board.legal_moves
        assert board.legal_moves.count() > 1
        assert board.ply() == position.ply, "every game here begins at move 1"


# Splits and quotas.


@pytest.mark.parametrize("sizes", [(48_000, 2_400, 900), (60, 15, 15), (3, 3_000, 3_000)])
def test_the_shares_of_the_splits_sum_to_one_and_training_keeps_a_good_part(sizes: tuple[int, int, int]) -> None:
    train, validation, heldout = sizes
    shares = split_shares(BoardsConfig(num_train=train, num_validation=validation, num_heldout=heldout))
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    assert min(shares.values()) > 0
    assert shares[Split.TRAIN] >= 0.4 - 1e-12


def test_small_splits_get_half_as_many_games_again_as_their_boards_need() -> None:
    shares = split_shares(BoardsConfig(num_train=900, num_validation=60, num_heldout=39))
    assert shares[Split.VALIDATION] == pytest.approx(1.5 * 60 / 999)
    assert shares[Split.HELDOUT] == pytest.approx(1.5 * 39 / 999)


def test_games_fall_into_the_splits_in_proportion_to_the_shares() -> None:
    shares = {Split.HELDOUT: 0.1, Split.VALIDATION: 0.25, Split.TRAIN: 0.65}
    count = 20_000
    found = Counter(split_of(f"game-{number}", shares) for number in range(count))
    for split, share in shares.items():
        assert abs(found[split] / count - share) < 4 * (share * (1 - share) / count) ** 0.5


def test_the_split_of_a_game_is_the_same_on_every_machine() -> None:
    shares = {Split.HELDOUT: 0.3, Split.VALIDATION: 0.3, Split.TRAIN: 0.4}
    # printf 'split/engine-0-N' | sha256sum: the first digits are ff, df, 46, 6b, f5, 09.
    assert [split_of(f"engine-0-{number}", shares).value for number in range(6)] == [
        "train",
        "train",
        "heldout",
        "validation",
        "train",
        "heldout",
    ]


def test_each_split_wants_a_third_of_its_boards_from_each_phase() -> None:
    wanted = wanted_boards(BoardsConfig(**SMALL))
    assert len(wanted) == 9
    assert {split: [wanted[split, phase] for phase in PHASES] for split in Split} == {
        Split.TRAIN: [20, 20, 20], Split.VALIDATION: [5, 5, 5], Split.HELDOUT: [5, 5, 5],
    }  # fmt: skip


def test_a_quota_takes_labels_only_and_no_position_with_a_single_legal_move() -> None:
    # After 1 e4 f6 2 Qh5+ there is only 2 ... g6.
    game = game_of("e2e4 f7f6 d1h5 g7g6 h5h4", is_label=[True, True, False, True, True])
    quota = Quota(in_each_cell(9), BoardsConfig(**SMALL), seed=0)
    assert quota.offer(game) == 3
    assert sorted(position.move_played for position in quota.positions) == ["e2e4", "f7f6", "h5h4"]
    assert quota.report.natural_phases == {"opening": 5}, "all five were met"
    check_positions(quota.positions)


def test_a_quota_takes_no_more_from_one_game_and_phase_than_allowed_and_no_more_than_is_missing() -> None:
    moves = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 d2d3 d7d6"
    limited = Quota(in_each_cell(9), BoardsConfig(**SMALL | {"max_per_game_and_phase": 4}), seed=0)
    assert limited.offer(game_of(moves)) == 4
    short = Quota(in_each_cell(2), BoardsConfig(**SMALL | {"max_per_game_and_phase": 4}), seed=0)
    assert short.offer(game_of(moves)) == 2
    [split] = {position.split for position in short.positions}
    assert short.missing() == {f"{other}/{phase}": 2 for other in Split for phase in PHASES if (other, phase) != (split, Phase.OPENING)}
    assert not short.is_full


def test_a_position_met_again_or_in_a_mirror_is_a_duplicate() -> None:
    quota = Quota(in_each_cell(50), BoardsConfig(**SMALL), seed=0)
    assert quota.offer(game_of("e2e4 e7e5 g1f3", game_id="one")) == 3
    assert quota.offer(game_of("e2e4 e7e5 g1f3", game_id="two")) == 0
    mirrored = chess.Board().mirror().fen()
    assert quota.offer(game_of("e7e5 e2e4 g8f6 g1f3", game_id="three", fen=mirrored)) == 1, "only the position before g1f3 is new"
    assert quota.report.num_duplicates == 6
    assert quota.report.num_games == 3


def test_what_a_quota_takes_from_a_game_depends_on_seed_and_game_alone() -> None:
    moves = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 d2d3 d7d6"
    config = BoardsConfig(**SMALL | {"max_per_game_and_phase": 3})

    def taken(seed: int, *, after: str = "") -> list[str]:
        quota = Quota(in_each_cell(50), config, seed)
        if after:
            quota.offer(game_of(after, game_id="other"))
        before = len(quota.positions)
        quota.offer(game_of(moves))
        return [position.fen for position in quota.positions[before:]]

    assert taken(1) == taken(1) == taken(1, after="a2a3 h7h6")
    assert any(taken(1) != taken(seed) for seed in range(2, 6))


def test_the_choice_within_a_game_is_another_one_in_another_game() -> None:
    moves = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 d2d3 d7d6"
    plies = set()
    for number in range(8):
        quota = Quota(in_each_cell(50), BoardsConfig(**SMALL | {"max_per_game_and_phase": 3}), seed=0)
        quota.offer(game_of(moves, game_id=f"game-{number}"))
        plies.add(tuple(position.ply for position in quota.positions))
    assert len(plies) > 4


# PGN files.


def test_a_pgn_file_fills_the_quotas_exactly(long_games: Path) -> None:
    config = pgn_config(long_games)
    quota = pgn_positions(config, seed=0)
    assert Counter((position.split, position.phase) for position in quota.positions) == wanted_boards(config)
    check_positions(quota.positions)
    assert max(Counter((position.game_id, position.phase) for position in quota.positions).values()) <= config.max_per_game_and_phase


def test_every_position_is_found_again_at_its_place_in_the_file(long_games: Path) -> None:
    content = long_games.read_bytes()
    for position in pgn_positions(pgn_config(long_games), seed=0).positions[::5]:
        game = chess.pgn.read_game(io.StringIO(content[position.offset :].decode()))
        assert game is not None
        moves = list(game.mainline_moves())
        board = game.board()
        for move in moves[: position.ply]:
            board.push(move)
        assert (board.fen(), moves[position.ply].uci()) == (position.fen, position.move_played)
        assert (position.source, position.date) == ("long.pgn", "2020.01.02")
        assert (position.white_rating, position.black_rating) == (int(game.headers["WhiteElo"]), None)


@pytest.mark.parametrize(
    ("prefix", "newline", "encoding"),
    [(b"", "\n", "utf-8"), (b"\xef\xbb\xbf", "\n", "utf-8"), (b"", "\r\n", "utf-8"), (b"", "\n", "latin-1")],
)
def test_offsets_are_bytes_whatever_the_encoding(prefix: bytes, newline: str, encoding: str, tmp_path: Path) -> None:
    games = "".join(f'[Event "é{number}"]\n[Result "*"]\n\n1. e4 {{ü{"x" * (number * 37 % 500)}}} e5 *\n\n' for number in range(60))
    content = prefix + games.replace("\n", newline).encode(encoding)
    offsets = [game.offset for game in pgn_games(written(tmp_path, content), SourceReport())]
    assert len(offsets) == 60
    for number, offset in enumerate(offsets):
        assert content[offset:].lstrip(b"\r\n\xef\xbb\xbf").startswith(f'[Event "é{number}"]'.encode(encoding))


def test_one_seed_gives_one_dataset_and_another_seed_another(long_games: Path) -> None:
    config = pgn_config(long_games)
    once = pgn_positions(config, seed=0)
    again = pgn_positions(config, seed=0)
    assert once.positions == again.positions
    assert asdict(once.report) == asdict(again.report)
    assert pgn_positions(config, seed=1).positions != once.positions


def test_a_file_is_read_only_as_far_as_needed(long_games: Path) -> None:
    tiny = pgn_positions(pgn_config(long_games, num_train=3, num_validation=3, num_heldout=3), seed=0)
    assert tiny.report.num_games < 40


@pytest.mark.parametrize(
    ("reason", "game"),
    [
        ("illegal or unreadable moves", f"{GAME}\n1. e4 e5 2. Ke3 *\n\n"),
        ("variant", f'{GAME}[Variant "Atomic"]\n\n1. e4 e5 *\n\n'),
        (
            "variant",
            f'{GAME}[Variant "Chess960"]\n[FEN "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9"]\n\n9. e4 *\n\n',
        ),
        ("null move", f"{GAME}\n1. e4 -- 2. d4 *\n\n"),
        ("null move", f"{GAME}\n1. e4 e5 2. Z0 d5 *\n\n"),
        ("no moves", f"{GAME}\n*\n\n"),
        ("unknown result", GAME.replace('"*"', '"2-0"') + "\n1. e4 e5 2-0\n\n"),
        ("impossible start position", f'{GAME}[SetUp "1"]\n[FEN "8/8/8/8/8/8/8/K7 w - - 0 1"]\n\n1. Ka2 *\n\n'),
        ("impossible start position", f'{GAME}[SetUp "1"]\n[FEN "4k3/8/8/8/8/8/8/K3R3 w - - 0 1"]\n\n1. Ka2 *\n\n'),
    ],
)
def test_a_game_of_no_use_is_counted_under_its_reason_and_the_next_one_is_read(reason: str, game: str, tmp_path: Path) -> None:
    report = SourceReport()
    good = f"{GAME}\n1. d4 d5 2. c4 *\n\n"
    [kept] = pgn_games(written(tmp_path, game + good), report)
    assert [move.uci() for move in kept.moves] == ["d2d4", "d7d5", "c2c4"]
    assert report.rejected == {reason: 1}


def test_a_variant_that_nobody_knows_is_counted_as_a_variant(tmp_path: Path) -> None:
    report = SourceReport()
    assert list(pgn_games(written(tmp_path, f'{GAME}[Variant "Hexagonal"]\n\n1. e4 e5 *\n\n'), report)) == []
    assert report.rejected == {"variant": 1}


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("a result against the mate on the board", GAME.replace('"*"', '"0-1"') + "\n1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 0-1\n\n"),
        ("a comment that is never closed and swallows the next game", f"{GAME}\n1. e4 e5 2. Nf3 {{ oh\n\n{GAME}\n1. d4 d5 *\n\n"),
    ],
)
def test_a_game_that_cannot_be_as_written_is_rejected(name: str, game: str, tmp_path: Path) -> None:
    # python-chess reports no error for these.
    report = SourceReport()
    assert list(pgn_games(written(tmp_path, game), report)) == [], name
    assert report.rejected.total() == 1


def test_variations_comments_and_glyphs_are_no_part_of_a_game(tmp_path: Path) -> None:
    [game] = pgn_games(written(tmp_path, f"{GAME}\n1. e4 (1. d4 d5 (1... Nf6)) 1... e5 $1 {{good}} 2. Nf3! ; better\n *\n"), SourceReport())
    assert [move.uci() for move in game.moves] == ["e2e4", "e7e5", "g1f3"]
    assert game.is_label == (True, True, True)


def test_a_game_may_begin_at_a_position_of_its_own(tmp_path: Path) -> None:
    fen = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
    [game] = pgn_games(written(tmp_path, f'{GAME}[Variant "From Position"]\n[SetUp "1"]\n[FEN "{fen}"]\n\n1. e4 *\n'), SourceReport())
    assert (game.start_fen, [move.uci() for move in game.moves]) == (fen, ["e2e4"])


def test_a_game_met_twice_is_one_game_and_equal_moves_of_other_players_are_another(tmp_path: Path) -> None:
    moves = "\n1. e4 e5 *\n\n"
    games = [GAME + moves, GAME + moves, GAME.replace('"a"', '"c"') + moves, GAME + "\n1. e4 e6 *\n\n"]
    ids = [game.game_id for game in pgn_games(written(tmp_path, "".join(games)), SourceReport())]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it holds no games at all"),
        ("\n\n\n", "it holds no games at all"),
        ("This is a letter.\n\nYours, A.\n", r"\d no moves"),
        (bytes(random.Random(1).randrange(256) for _ in range(3_000)), r"\d no moves|\d illegal or unreadable moves"),
        (f"{GAME}\n1. e4 e5 2. Ke3 *\n", "1 illegal or unreadable moves"),
        (f'{GAME}[Variant "Atomic"]\n\n1. e4 e5 *\n\n{GAME}\n1. e4 -- *\n', "1 null move, 1 variant"),
    ],
)
def test_a_file_without_usable_games_is_an_error_that_says_why(content: str | bytes, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(
        SourceError, match=rf"^{re.escape(str(path))}: no usable game in this file \({reason}\); give a PGN file of standard chess$"
    ):
        pgn_positions(pgn_config(path), seed=0)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.pgn", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(SourceError, match=rf"^{re.escape(str(path))}: {why}; boards.path must name a plain PGN file$"):
            pgn_positions(pgn_config(path), seed=0)


def test_a_file_without_endgames_is_an_error_with_the_histogram_and_the_remedy(tmp_path: Path) -> None:
    path = written(tmp_path, random_pgn(12, max_plies=16) + f"{GAME}\n1. e4 e5 2. Ke3 *\n")
    with pytest.raises(SourceError) as refusal:
        pgn_positions(pgn_config(path, num_train=6, num_validation=3, num_heldout=3), seed=0)
    message = str(refusal.value)
    assert message.startswith(f"{path} cannot fill the quotas: missing ")
    assert "2 of train/endgame" in message
    assert "1 of heldout/endgame" in message
    assert "opening," not in message.partition("Met")[0]
    assert re.search(r"Met \d+ opening, \d+ middlegame, 0 endgame positions in 12 games", message)
    assert "games rejected: 1 illegal or unreadable moves" in message
    assert message.endswith(
        "Give more games, lower boards.num_train, boards.num_validation or boards.num_heldout, or raise boards.max_per_game_and_phase"
    )


def test_a_quota_larger_than_the_file_is_an_error_that_says_how_many_are_missing(tmp_path: Path) -> None:
    path = written(tmp_path, f"{GAME}\n1. e4 e5 2. Nf3 *\n")
    with pytest.raises(
        SourceError,
        match=r"cannot fill the quotas: missing .*1,000 of train/endgame.* Met 3 opening, 0 middlegame, 0 endgame positions in 1 games",
    ):
        pgn_positions(pgn_config(path, num_train=3_000), seed=0)


def test_the_parts_of_a_pgn_dataset_make_up_the_whole_and_share_nothing(long_games: Path) -> None:
    config = pgn_config(long_games, num_units=4, num_tasks=2)

    def parts(units: Sequence[int]) -> dict[int, list[Position]]:
        with EnginePool("true", num_processes=1, options={}) as never_asked:
            return {unit: positions for unit, positions, _ in unit_positions(config, units=units, seed=0, pool=never_asked)}

    together = parts(range(4))
    assert sorted(position.key for positions in together.values() for position in positions) == sorted(
        position.key for position in pgn_positions(config, seed=0).positions
    )
    assert {**parts([0, 2]), **parts([3, 1])} == together, "whichever task makes a part"


def test_the_games_of_a_pgn_dataset_are_counted_once(long_games: Path) -> None:
    config = pgn_config(long_games)
    with EnginePool("true", num_processes=1, options={}) as never_asked:
        counts = [report.num_games for _, _, report in unit_positions(config, units=range(2), seed=0, pool=never_asked)]
    assert counts == [pgn_positions(config, seed=0).report.num_games, 0]


def test_real_games_fill_the_quotas() -> None:
    folder = os.environ.get("CHESS_GRPO_SAMPLE_DATA")
    if folder is None:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA does not name the folder of lichess_fishnet_games.pgn")
    config = pgn_config(Path(folder) / "lichess_fishnet_games.pgn", num_train=600, num_validation=90, num_heldout=90)
    quota = pgn_positions(config, seed=0)
    check_positions(quota.positions)
    assert Counter((position.split, position.phase) for position in quota.positions) == wanted_boards(config)
    assert quota.report.rejected.total() == 0


# Engine games.


def test_engine_games_are_legal_varied_and_depend_on_seed_and_number_alone(stockfish: str) -> None:
    def games(seed: int, unit: int, *, num_processes: int = 1) -> list[Game]:
        report = SourceReport()
        with EnginePool(stockfish, num_processes=num_processes, options={"Hash": 1}) as pool:
            made = list(islice(engine_games(FAST_GAMES, unit=unit, seed=seed, pool=pool, report=report), 6))
        assert report.rejected.total() == 0
        return made

    once = games(3, 0)
    assert games(3, 0, num_processes=2) == once
    assert [game.game_id for game in once] == [f"engine-0-{number}" for number in range(6)]
    for game in once:
        board = chess.Board(game.start_fen)
        for move in game.moves:
            assert board.is_legal(move)
            board.push(move)
        assert len(game.moves) == FAST_GAMES.max_plies or board.halfmove_clock >= 60 or board.is_game_over()
        assert True in game.is_label
        assert len(game.is_label) == len(game.moves)
    everything = [*once, *games(4, 0), *games(3, 1)]
    assert len({game.moves for game in everything}) == len(everything) == 18
    labels = [label for game in everything for label in game.is_label[FAST_GAMES.random_opening_plies :]]
    share = 1 - sum(labels) / len(labels)
    assert abs(share - FAST_GAMES.random_move_probability) < 5 * (0.08 * 0.92 / len(labels)) ** 0.5


def test_two_equal_units_are_equal_and_two_different_ones_share_no_game(stockfish: str) -> None:
    config = BoardsConfig(**SMALL, games=FAST_GAMES)
    with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool:
        first, second, again = (engine_unit(config, unit=unit, seed=0, pool=pool) for unit in (0, 1, 0))
    assert first.positions == again.positions
    assert asdict(first.report) == asdict(again.report)
    assert {position.game_id for position in first.positions}.isdisjoint(position.game_id for position in second.positions)
    joined = [*first.positions, *second.positions]
    for unit in (first, second):
        check_positions(unit.positions)
    kept, _ = cut_to_quota(joined, wanted_boards(config))
    check_positions([joined[index] for index in kept])
    assert Counter((joined[index].split, joined[index].phase) for index in kept) == wanted_boards(config)


def test_an_engine_dataset_is_the_same_however_its_parts_are_dealt_out(stockfish: str) -> None:
    config = BoardsConfig(**{**SMALL, "num_train": 30}, games=FAST_GAMES)

    def parts(units: Sequence[int]) -> dict[int, list[Position]]:
        with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool:
            return {unit: positions for unit, positions, _ in unit_positions(config, units=units, seed=5, pool=pool)}

    assert {**parts([1]), **parts([0])} == parts([0, 1])


def test_an_engine_unit_that_cannot_fill_its_quotas_says_what_to_change(stockfish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.sources._MAX_IDLE_GAMES", 20)
    config = BoardsConfig(**SMALL, games=EngineGames(nodes=(1,), max_plies=8))
    with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool, pytest.raises(SourceError) as refusal:
        engine_unit(config, unit=1, seed=0, pool=pool)
    message = str(refusal.value)
    assert message.startswith("engine games (unit 1 of 2) cannot fill the quotas: missing ")
    assert "of train/endgame" in message
    assert "0 endgame positions" in message
    assert message.endswith("or raise boards.max_per_game_and_phase, or boards.games.max_plies")


def first_game(path: str, report: SourceReport) -> Game:
    """Return the first game that the engine plays."""
    with EnginePool(path, num_processes=1, options={}) as pool:
        return next(engine_games(EngineGames(nodes=(5,), max_plies=20), unit=0, seed=0, pool=pool, report=report))


def test_a_game_in_which_the_engine_fails_once_is_the_game_without_the_fault(scripted: Callable[..., ScriptedEngine]) -> None:
    # The engine remembers the game (its hash is kept): a fresh process asked in the middle would answer otherwise.
    expected = first_game(scripted(has_memory=True).path, SourceReport())
    report = SourceReport()
    assert first_game(scripted({"kind": "crash", "nth": 6}, has_memory=True).path, report) == expected
    assert report.rejected.total() == 0


def test_the_engine_forgets_between_games_and_remembers_within_them(scripted: Callable[..., ScriptedEngine]) -> None:
    healthy = scripted()
    config = EngineGames(nodes=(5,), max_plies=12, random_opening_plies=0)
    with EnginePool(healthy.path, num_processes=1, options={}) as pool:
        games = list(islice(engine_games(config, unit=0, seed=0, pool=pool, report=SourceReport()), 3))
    expected = [number == 0 for game in games for number in range(sum(game.is_label))]
    assert [search["is_fresh"] for search in healthy.searches()] == expected


def test_a_game_in_which_the_engine_always_fails_is_counted_and_left_out(scripted: Callable[..., ScriptedEngine]) -> None:
    # Three attempts at the first search, the game again from its seed, three more.
    report = SourceReport()
    assert first_game(scripted({"kind": "crash", "times": 6}).path, report).game_id == "engine-0-1"
    assert report.rejected == {"engine failure": 1}


def test_an_illegal_move_by_the_engine_ends_no_run(scripted: Callable[..., ScriptedEngine]) -> None:
    expected = first_game(scripted(has_memory=True).path, SourceReport())
    assert first_game(scripted({"kind": "illegal best move", "nth": 4}, has_memory=True).path, SourceReport()) == expected


# Joining the parts.


def position(number: int, split: Split, phase: Phase, *, key: int | None = None) -> Position:
    """Return a made-up position."""
    return Position(
        fen=f"fen {number}", key=f"key {number if key is None else key}", phase=phase, split=split, move_played="e2e4",
        game_id=f"game {number}", ply=number, source="test", offset=0,
    )  # fmt: skip


MADE_UP = [position(number, *cell) for number, cell in enumerate((split, phase) for split in Split for phase in PHASES for _ in range(7))]
# Two boards of each phase of the training split are in another split as well.
MADE_UP += [
    position(100 + twin.ply, split, twin.phase, key=twin.ply)
    for start in (0, 7, 14)
    for twin, split in zip(MADE_UP[start:], [Split.HELDOUT, Split.VALIDATION], strict=False)
]


@settings(derandomize=True, max_examples=30)
@given(st.permutations(range(len(MADE_UP))))
def test_what_is_kept_does_not_depend_on_the_order_of_the_parts(order: list[int]) -> None:
    wanted = in_each_cell(5)
    straight, num_duplicates = cut_to_quota(MADE_UP, wanted)
    shuffled = [MADE_UP[index] for index in order]
    kept, num_shuffled_duplicates = cut_to_quota(shuffled, wanted)
    assert [shuffled[index] for index in kept] == [MADE_UP[index] for index in straight]
    assert num_shuffled_duplicates == num_duplicates


def test_exactly_the_quota_is_kept_without_duplicates() -> None:
    wanted = in_each_cell(5)
    kept, _ = cut_to_quota(MADE_UP, wanted)
    assert Counter((MADE_UP[index].split, MADE_UP[index].phase) for index in kept) == wanted
    assert len({MADE_UP[index].key for index in kept}) == len(kept) == 45


def test_of_equal_positions_in_several_splits_the_one_that_judges_stays() -> None:
    phase = Phase.OPENING
    for splits, stays in (
        ([Split.TRAIN, Split.VALIDATION, Split.HELDOUT], Split.HELDOUT),
        ([Split.TRAIN, Split.VALIDATION], Split.VALIDATION),
    ):
        equal = [position(number, split, phase, key=0) for number, split in enumerate(splits)]
        kept, num_duplicates = cut_to_quota(equal, {**in_each_cell(0), (stays, phase): 1})
        assert [equal[index].split for index in kept] == [stays]
        assert num_duplicates == len(splits) - 1


def test_too_few_joined_positions_are_an_error_with_the_histogram() -> None:
    positions = [position(number, Split.TRAIN, Phase.OPENING) for number in range(3)]
    with pytest.raises(
        SourceError,
        match=r"^the joined parts cannot fill the quotas: missing 2 of train/opening, 1 of heldout/endgame\. Met 3 opening, 0 middlegame,"
        r" 0 endgame positions in 3 games",
    ):
        cut_to_quota(positions, {**in_each_cell(0), (Split.TRAIN, Phase.OPENING): 5, (Split.HELDOUT, Phase.ENDGAME): 1})
