"""The command `chess-grpo play`: a game against a policy, in the terminal or on a page of this machine."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

import chess
import click

from grpo.base.files import replace_file
from grpo.match.human_game import HumanGame, MoveError
from grpo.settings.tree import ConfigError
from grpo.uci.options import UciOptions
from steps.cli.options import device_option, open_in_browser, temperature_option
from steps.run.commands import shortened
from steps.run.machine import Machine
from steps.track.find import find_policy

PLAYED: Final = "played"
"""Folder of the home with the games that people finished."""
_PERSON: Final = "you"
_HELP: Final = "a move (e4, Nf3, e2e4, e8=Q), or: undo, hint, resign, flip, help, quit"

NewGame = Callable[[bool | None], HumanGame]


@click.command()
@click.argument("model", metavar="[MODEL]", default="champion")
@click.option("--color", type=click.Choice(["white", "black", "random"]), default="white", help="Your side (default: white).")
@temperature_option
@click.option("--fen", default=chess.STARTING_FEN, help="The position to start from.")
@click.option("--page", "is_page", is_flag=True, help="Play on a page in the browser, which only this machine can open.")
@click.option("--port", type=int, default=0, metavar="N", help="With --page: its port (default: a free one).")
@device_option
def command(model: str, color: str, temperature: float, fen: str, is_page: bool, port: int, device: str) -> int:  # noqa: PLR0917  # One for each option.
    """Play against a policy, in the terminal or on a page.

    MODEL is champion (default), peak, a run's id or a folder (docs/commands.md).
    """
    machine = replace(Machine.here(), device=device, num_threads=1)
    if port and not is_page:
        raise ConfigError("--port is the port of the page: give --page too")
    HumanGame(lambda _: None, opponent="", person_is_white=True, fen=fen)  # A bad position is refused before anything is loaded.
    found = find_policy(model, machine)

    from steps.policies.open import open_policy  # torch takes a second to import: bad arguments get their answer before.
    from steps.run.device import torch_device

    policy = open_policy(found.folder, torch_device(machine))
    finder, options, seed, numbers = policy.move_finder(), UciOptions(temperature=temperature), secrets.randbits(31), count(1)
    name = f"{model} ({found.weights_hash[:8]})"

    def new_game(is_white: bool | None) -> HumanGame:
        number = next(numbers)
        if is_white is None:
            is_white = {"white": True, "black": False}.get(color, bool(secrets.randbits(1)))

        def choose(board: chess.Board) -> chess.Move | None:
            return finder.find(board, allowed=frozenset(), options=options, seed=seed, num_games=number).best

        return HumanGame(choose, opponent=name, person_is_white=is_white, fen=fen, probabilities=policy.move_probabilities)

    saved = _saver(machine.home / PLAYED)
    return _serve(new_game, saved, port) if is_page else _in_terminal(new_game(None), saved)


def _saver(folder: Path) -> Callable[[HumanGame], None]:
    """Return what writes a finished game to a file of its own."""

    def save(game: HumanGame) -> None:
        now = datetime.now(UTC)
        folder.mkdir(parents=True, exist_ok=True)
        names = (folder / f"{now:%Y-%m-%dT%H-%M-%S}{f'-{number}' if number else ''}.pgn" for number in count())
        path = next(name for name in names if not name.exists())
        replace_file(path, game.pgn(person=_PERSON, played_on=now.date()).encode())
        click.echo(f"{game.result}, {game.end}. Saved: {shortened(path)}")

    return save


def _serve(new_game: NewGame, saved: Callable[[HumanGame], None], port: int) -> int:
    from grpo.match.page_server import PlayServer

    try:
        server = PlayServer(new_game, on_finished=saved, port=port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "there is no such port"
        raise ConfigError(f"--port {port}: {why}; name another, or leave --port out for a free one") from None
    click.echo(f"Play here: {server.address}\nThe address works on this machine only; Ctrl-C ends.")
    open_in_browser(server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0


def _in_terminal(game: HumanGame, saved: Callable[[HumanGame], None]) -> int:
    is_flipped = not game.person_is_white
    click.echo(f"You are {'White' if game.person_is_white else 'Black'} against {game.opponent}. Type {_HELP}.")
    _show(game, is_flipped)
    while not game.end:
        try:
            text = input("your move> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            text = "quit"
        try:
            match text.lower():
                case "":
                    continue
                case "quit" | "exit":
                    click.echo("The game is not finished, so it is not saved.")
                    return 0
                case "help" | "?":
                    click.echo(_HELP)
                    continue
                case "hint":
                    click.echo(", ".join(f"{san} {probability:.1%}" for san, probability in game.hints()) or "It has no probabilities.")
                    continue
                case "flip":
                    is_flipped = not is_flipped
                case "undo":
                    game.undo()
                case "resign":
                    game.resign()
                case _:
                    game.play(text)
        except MoveError as error:
            click.echo(str(error))
            continue
        _show(game, is_flipped)
    saved(game)
    return 0


def _show(game: HumanGame, is_flipped: bool) -> None:
    """Print the board with its coordinates, and the last moves."""
    rows = game.board.unicode(empty_square="·", orientation=not is_flipped).splitlines()
    ranks = range(1, 9) if is_flipped else range(8, 0, -1)
    files = " ".join("hgfedcba" if is_flipped else "abcdefgh")
    print("\n".join(["", *(f"{rank} {row}" for rank, row in zip(ranks, rows, strict=True)), f"  {files}"]))
    if game.sans():
        answer = ", ".join(f"{san} {probability:.0%}" for san, probability in game.answer_probabilities()[:3])
        click.echo(f"last moves: {' '.join(game.sans()[-2:])}{f'   (its probabilities: {answer})' if answer else ''}")
    if game.board.is_check() and not game.end:
        click.echo("You are in check.")
