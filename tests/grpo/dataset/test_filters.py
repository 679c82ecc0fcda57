"""Filters: each drops what it says and no more, and is counted under its own name."""

from collections import Counter
from typing import Any

import pytest

from grpo.dataset.filters import dropped_by_tags, filtered, has_program, is_unrated, termination, time_control
from grpo.reading.games import Game, Reason, Rejection
from grpo.reading.pgn import PgnGame, SeenGames, read_pgn_games
from grpo.settings.tree import GameFilters, TimeControl

GOOD: dict[str, str] = {
    "Event": "Rated Blitz game",
    "White": "anna",
    "Black": "boris",
    "WhiteElo": "2300",
    "BlackElo": "2400",
    "TimeControl": "300+3",
    "Termination": "Normal",
}
MOVES = "1. e4 {[%clk 0:00:30]} e5 {[%clk 0:00:20]} 2. Nf3 {[%clk 0:00:10]} Nc6 {[%clk 0:00:09.9]} 3. Bb5 a6 {[%clk 0:00:30]} *"


def pgn_game(**tags: str) -> PgnGame:
    """Return a game of six plies that passes every filter, with other tags laid over its own; an empty one is left out."""
    header = "".join(f'[{name} "{value}"]\n' for name, value in (GOOD | tags).items() if value)
    [game] = read_pgn_games([f"{header}\n{MOVES}".encode()], "file.pgn")
    assert isinstance(game, PgnGame)
    return game


def dropped_by(game: PgnGame, **filters: Any) -> str | None:
    """Return the filter that drops the game, or None."""
    found = filtered(game, GameFilters(**filters), Counter())
    if isinstance(found, Rejection):
        assert (found.source, found.offset, found.reason) == ("file.pgn", 0, Reason.FILTERED)
        return found.detail
    return None


def labels(**filters: Any) -> tuple[str, dict[str, int]]:
    """Return which plies stay labels, as 0 and 1, and what was counted."""
    dropped: Counter[str] = Counter()
    game = filtered(pgn_game(), GameFilters(**filters), dropped)
    assert isinstance(game, Game)
    return "".join(str(int(is_label)) for is_label in game.is_label), dict(dropped)


def test_without_filters_a_game_stays_the_very_same() -> None:
    game = pgn_game(WhiteElo="?", Event="", TimeControl="", WhiteTitle="BOT")
    dropped: Counter[str] = Counter()
    assert filtered(game, GameFilters(), dropped) is game.game
    assert not dropped


@pytest.mark.parametrize(
    ("filters", "dropped_tags", "kept_tags"),
    [
        ({"rated_only": True}, {"Event": "Casual Blitz game"}, {"Event": "rated Blitz tournament"}),
        ({"humans_only": True}, {"BlackTitle": "BOT"}, {"BlackTitle": "GM"}),
        ({"min_rating": 2_300}, {"WhiteElo": "2299"}, {"WhiteElo": "2300"}),
        ({"min_rating": 2_300}, {"BlackElo": "2299"}, {}),
        ({"min_rating": 1}, {"BlackElo": "?"}, {"BlackElo": "1"}),
        ({"max_rating": 2_400}, {"BlackElo": "2401"}, {"BlackElo": "2400"}),
        ({"max_rating": 2_400}, {"WhiteElo": "2401"}, {}),
        ({"max_rating": 4_000}, {"WhiteElo": ""}, {"WhiteElo": "4000"}),
        ({"max_rating_gap": 100}, {"WhiteElo": "2501"}, {"WhiteElo": "2500"}),
        ({"max_rating_gap": 100}, {"BlackElo": "2401"}, {"BlackElo": "2200"}),
        ({"max_rating_gap": 4_000}, {"WhiteElo": "?"}, {}),
        ({"time_controls": ["blitz", "rapid"]}, {"TimeControl": "60+0"}, {"TimeControl": "600+0"}),
        ({"time_controls": ["correspondence"]}, {"TimeControl": "300"}, {"TimeControl": "-"}),
        ({"time_controls": ["blitz"]}, {"TimeControl": "60"}, {"TimeControl": "90 min/40 moves + 30 min"}),
        ({"terminations": ["normal", "time forfeit"]}, {"Termination": "Abandoned"}, {"Termination": "Time forfeit"}),
        ({"terminations": ["normal"]}, {"Termination": "anna won on time"}, {"Termination": "NORMAL"}),
        ({"terminations": ["normal"]}, {"Termination": "boris won - game abandoned"}, {"Termination": "anna won by resignation"}),
        ({"terminations": ["normal"]}, {"Termination": "Rules infraction"}, {"Termination": ""}),
    ],
)
def test_a_filter_drops_the_one_and_keeps_the_other(
    filters: dict[str, Any], dropped_tags: dict[str, str], kept_tags: dict[str, str]
) -> None:
    [name] = filters
    assert dropped_by(pgn_game(**dropped_tags), **filters) == name
    assert dropped_by(pgn_game(**kept_tags), **filters) is None


def test_short_games_are_dropped() -> None:
    assert dropped_by(pgn_game(), min_plies=7) == "min_plies"
    assert dropped_by(pgn_game(), min_plies=6) is None


def test_the_first_filter_that_drops_a_game_counts_it() -> None:
    tags = {
        "Event": "Casual",
        "WhiteTitle": "BOT",
        "WhiteElo": "900",
        "BlackElo": "3000",
        "TimeControl": "-",
        "Termination": "Abandoned",
    }
    mends: list[tuple[str, dict[str, str]]] = [
        ("rated_only", {"Event": "Rated"}),
        ("humans_only", {"WhiteTitle": ""}),
        ("min_rating", {"WhiteElo": "1500"}),
        ("max_rating", {"BlackElo": "2000"}),
        ("max_rating_gap", {"BlackElo": "1600"}),
        ("time_controls", {"TimeControl": "300+0"}),
        ("terminations", {"Termination": "Normal"}),
    ]
    every: dict[str, Any] = {
        "rated_only": True,
        "humans_only": True,
        "min_rating": 1_000,
        "max_rating": 2_500,
        "max_rating_gap": 300,
        "time_controls": ["blitz"],
        "terminations": ["normal"],
        "min_plies": 7,
    }
    for name, mend in mends:
        assert dropped_by(pgn_game(**tags), **every) == name
        tags |= mend
    assert dropped_by(pgn_game(**tags), **every) == "min_plies"
    assert list(every) == [name for name in GameFilters.model_fields if name in every]


@pytest.mark.parametrize("profile", ["rated_humans", "club", "strong"])
def test_the_profiles_are_applied(profile: str) -> None:
    assert dropped_by(pgn_game(Event="Casual game"), profile=profile) == "rated_only"
    assert dropped_by(pgn_game(White="Stockfish 16"), profile=profile) == "humans_only"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"first_ply": 2}, ("001111", {"first_ply": 2})),
        ({"first_ply": 0}, ("111111", {})),
        ({"last_ply": 2}, ("111000", {"last_ply": 3})),
        ({"last_ply": 5}, ("111111", {})),
        ({"min_clock_seconds": 10}, ("111011", {"min_clock_seconds": 1})),
        ({"min_clock_seconds": 0}, ("111111", {})),
        ({"first_ply": 1, "last_ply": 4, "min_clock_seconds": 20}, ("010010", {"first_ply": 1, "last_ply": 1, "min_clock_seconds": 2})),
        ({"first_ply": 90}, ("000000", {"first_ply": 6})),
        ({"max_centipawns": 1}, ("111111", {})),
    ],
)
def test_positions_are_dropped_and_counted_by_filter(filters: dict[str, Any], expected: tuple[str, dict[str, int]]) -> None:
    assert labels(**filters) == expected


def test_a_dropped_game_drops_no_positions_and_a_kept_one_loses_only_labels() -> None:
    dropped: Counter[str] = Counter({"first_ply": 5})
    assert isinstance(filtered(pgn_game(), GameFilters(min_plies=7, first_ply=2), dropped), Rejection)
    assert dropped == {"first_ply": 5}
    game = pgn_game().game
    kept = filtered(pgn_game(), GameFilters(first_ply=2), dropped)
    assert isinstance(kept, Game)
    assert dropped == {"first_ply": 7}
    assert (kept.game_id, kept.moves, kept.boards, kept.result) == (game.game_id, game.moves, game.boards, game.result)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"Event": "Casual Blitz game"}, True),
        ({"Event": "Unrated game"}, True),
        ({"Event": "Club evening, not rated"}, True),
        ({"Event": "Casually Explained Cup"}, False),
        ({"Event": "Rated Blitz game"}, False),
        ({"Event": "Hourly Bullet Arena"}, False),
        ({"Event": "Live Chess"}, False),
        ({"Event": "?"}, False),
        ({}, False),
        ({"Rated": "false", "Event": "Rated game"}, True),
        ({"Rated": "False"}, True),
        ({"Rated": "0"}, True),
        ({"Rated": "true", "Event": "Casual Friday Cup"}, False),
        ({"Rated": "?"}, False),
    ],
)
def test_a_game_is_unrated_when_a_tag_says_so(tags: dict[str, str], expected: bool) -> None:
    assert is_unrated(tags) is expected


LICHESS = {
    "Event": "Rated Blitz game",
    "Site": "https://lichess.org/abcdefgh",
    "White": "anna",
    "Black": "boris",
    "WhiteElo": "2310",
    "BlackElo": "2280",
    "TimeControl": "300+3",
    "Termination": "Normal",
}
ARENA = LICHESS | {"Event": "Hourly Blitz Arena", "Termination": "Normal"}
CHESS_COM = {
    "Event": "Live Chess",
    "Site": "Chess.com",
    "White": "anna",
    "Black": "boris",
    "WhiteElo": "2310",
    "BlackElo": "2280",
    "TimeControl": "600",
    "EndTime": "14:03:11 PDT",
    "Termination": "anna won by resignation",
}
DAILY = CHESS_COM | {"Event": "Let's Play!", "TimeControl": "1/86400", "Termination": "boris won on time"}
BROADCAST = {
    "Event": "Round 3: Anna, A. - Boris, B.",
    "Site": "https://lichess.org/broadcast/some-open/round-3/abcdefgh",
    "White": "Anna, A.",
    "Black": "Boris, B.",
    "WhiteElo": "2410",
    "WhiteTitle": "IM",
    "BlackElo": "2390",
    "TimeControl": "90 min/40 moves + 30 min + 30 sec/move",
    "BroadcastName": "Some Open",
}
STUDY = {
    "Event": "Rook endings: Lucena",
    "Site": "https://lichess.org/study/abcdefgh/ijklmnop",
    "Annotator": "https://lichess.org/@/anna",
    "Variant": "Standard",
}
TOURNAMENT = {
    "Event": "Club championship",
    "Site": "Hastings",
    "White": "Anna, A",
    "Black": "Boris, B",
    "WhiteElo": "2250",
    "BlackElo": "2300",
}


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (LICHESS, (None, None, None)),
        (ARENA, (None, None, None)),
        (CHESS_COM, (None, None, None)),
        (BROADCAST, (None, None, None)),
        (TOURNAMENT, (None, None, None)),
        (STUDY, (None, None, "min_rating")),
        (DAILY, (None, "time_controls", "time_controls")),
        (CHESS_COM | {"Termination": "anna won on time"}, (None, None, "terminations")),
        (CHESS_COM | {"Black": "Nelson-BOT"}, ("humans_only",) * 3),
        (LICHESS | {"Event": "Casual Blitz game"}, ("rated_only",) * 3),
        (LICHESS | {"WhiteElo": "1500"}, (None, "min_rating", "min_rating")),
        (LICHESS | {"WhiteElo": "?"}, (None, None, "min_rating")),
        (LICHESS | {"TimeControl": "60+0"}, (None, "time_controls", "time_controls")),
    ],
)
def test_the_profiles_fit_what_people_export(tags: dict[str, str], expected: tuple[str | None, ...]) -> None:
    profiles = ("rated_humans", "club", "strong")
    assert tuple(dropped_by_tags(tags, GameFilters(profile=profile)) for profile in profiles) == expected


def test_an_unknown_rating_is_dropped_or_kept_as_the_settings_say() -> None:
    for name, bound in (("min_rating", 1_000), ("max_rating", 2_500), ("max_rating_gap", 200)):
        unknown = pgn_game(WhiteElo="?")
        assert dropped_by(unknown, **{name: bound}) == name
        assert dropped_by(unknown, **{name: bound}, unknown_ratings="keep") is None
    assert dropped_by(pgn_game(WhiteElo="?", BlackElo="900"), min_rating=1_000, unknown_ratings="keep") == "min_rating"


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("Normal", "normal"),
        ("anna won by checkmate", "normal"),
        ("Game drawn by agreement", "normal"),
        ("Game drawn by timeout vs insufficient material", "time forfeit"),
        ("anna won on time", "time forfeit"),
        ("boris won - game abandoned", "abandoned"),
        ("Rules infraction", "rules infraction"),
        ("", None),
        (None, None),
    ],
)
def test_the_end_of_a_game_in_the_words_of_the_standard(tag: str | None, expected: str | None) -> None:
    assert termination(tag) == expected


def test_the_moves_of_a_game_that_is_dropped_for_its_tags_are_not_read() -> None:
    header = "".join(f'[{name} "{value}"]\n' for name, value in (GOOD | {"Event": "Casual"}).items())
    text = f"{header}\n1. e4 e5 2. Ke3 *\n\n".encode() * 2
    filters = GameFilters(rated_only=True)
    unread = list(read_pgn_games([text], "file.pgn", seen=SeenGames(), dropped_by=lambda headers: dropped_by_tags(headers, filters)))
    assert [entry.reason for entry in unread if isinstance(entry, Rejection)] == [Reason.FILTERED] * 2
    assert {entry.detail for entry in unread if isinstance(entry, Rejection)} == {"rated_only"}
    read = list(read_pgn_games([text], "file.pgn", seen=SeenGames()))
    assert [entry.reason for entry in read if isinstance(entry, Rejection)] == [Reason.ILLEGAL_MOVE] * 2


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"White": "lichess AI level 5"}, True),
        ({"Black": "Stockfish"}, True),
        ({"Black": "Stockfish_16.1"}, True),
        ({"White": "stockfish15"}, True),
        ({"White": "Leela Chess Zero"}, True),
        ({"White": "Lc0 v0.30"}, True),
        ({"White": "mystockfish"}, False),
        ({"White": "stockfisher"}, False),
        ({"White": "Fritz Reuter", "Black": "Maia Chiburdanidze"}, False),
        ({"White": "Robot"}, False),
        ({"WhiteTitle": "BOT"}, True),
        ({"BlackTitle": "bot"}, True),
        ({"BlackTitle": "GM"}, False),
        ({"BlackType": "program"}, True),
        ({"BlackType": "human"}, False),
        ({"Event": "Stockfish"}, False),
        ({}, False),
    ],
)
def test_a_program_is_known_by_title_type_or_name(tags: dict[str, str], expected: bool) -> None:
    assert has_program(tags) is expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("15+0", TimeControl.ULTRABULLET),
        ("29+0", TimeControl.ULTRABULLET),
        ("30+0", TimeControl.BULLET),
        ("0+1", TimeControl.BULLET),
        ("179+0", TimeControl.BULLET),
        ("60+3", TimeControl.BLITZ),  # 60 + 40 * 3 = 180
        ("300+3", TimeControl.BLITZ),
        ("479", TimeControl.BLITZ),
        ("480", TimeControl.RAPID),
        ("900+14", TimeControl.RAPID),  # 1,460
        ("900+15", TimeControl.CLASSICAL),  # 1,500
        ("10+0.1", TimeControl.ULTRABULLET),
        ("40/7200:3600", TimeControl.CLASSICAL),
        ("40/300+3:60", TimeControl.BLITZ),
        ("40/7200:20/3600:900+30", TimeControl.CLASSICAL),
        (" 300+3 ", TimeControl.BLITZ),
        ("-", TimeControl.CORRESPONDENCE),
        ("1/86400", TimeControl.CORRESPONDENCE),
        ("1/259200", TimeControl.CORRESPONDENCE),
        ("1/60", TimeControl.BULLET),
        ("40/86400", TimeControl.CLASSICAL),
        ("?", None),
        ("", None),
        (None, None),
        ("*60", None),
        ("0", None),
        ("0+0", None),
        ("5 min", None),
        ("300+", None),
        ("-300", None),
        ("9" * 5_000, None),
    ],
)
def test_a_time_control_has_the_class_of_lichess(tag: str | None, expected: TimeControl | None) -> None:
    assert time_control(tag) == expected
