"""Command `chess-grpo play`."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import chess
import click

from grpo.base.files import explain_write_errors, replace_file
from grpo.settings.tree import ConfigError
from grpo.uci.options import UciOptions
from grpo.viewer.human_game import HumanGame
from grpo.viewer.page_server import PlayServer
from steps.cli.options import MAX_PORT, device_option, open_in_browser, temperature_option
from steps.pages.known import results_of
from steps.run.commands import shortened
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import find_policy, is_folder

PLAYED: Final = "played"  # Folder of finished games, below `Machine.home`.


@click.command()
@click.argument("model", metavar="[MODEL]", default="champion")
@click.option("--color", type=click.Choice(["white", "black", "random"]), default="white", help="Your color (default: white).")
@temperature_option
@click.option("--fen", default=chess.STARTING_FEN, help="First position (default: the usual one).")
@click.option("--port", type=click.IntRange(0, MAX_PORT), default=0, metavar="N", help="Port of the page (default: a free port).")
@device_option
def command(model: str, color: str, temperature: float, fen: str, port: int, device: str) -> int:  # noqa: PLR0917  # One parameter per option.
    """Play against a policy in this machine's browser. MODEL: champion (default), peak, a run id or a folder (docs/commands.md)."""
    machine = replace(Machine.here(), device=device, num_threads=1)
    HumanGame(lambda _: None, opponent="", person_is_white=True, fen=fen)  # Refuses a bad position before loading.
    named = find_policy(model, machine)

    from steps.common.policies.open import open_policy
    from steps.run.device import torch_device

    policy = open_policy(named.folder, torch_device(machine))
    finder, options, seed, numbers = policy.move_finder(), UciOptions(temperature=temperature), secrets.randbits(31), count(1)
    # The name is step and run. A folder adds the weights' hash. A MODEL without the run's id, such as `champion`, comes first.
    name = f"{named} ({named.weights_hash[:8]})" if is_folder(model) else str(named) if named.run in model else f"{model} ({named})"
    about = named.strength or "Its strength is unknown."
    if named.policy_step is not None and (results := results_of(named.record, Store.of(machine))) is not None:
        about = results.about(named.policy_step)

    def new_game(is_white: bool | None) -> HumanGame:
        """`is_white`: the person's color; None takes the color of `--color`."""
        number = next(numbers)
        if is_white is None:
            is_white = {"white": True, "black": False}.get(color, bool(secrets.randbits(1)))

        def choose(board: chess.Board) -> chess.Move | None:
            return finder.find(board, allowed=frozenset(), options=options, seed=seed, num_games=number).best

        return HumanGame(choose, opponent=name, about=about, person_is_white=is_white, fen=fen, probabilities=policy.move_probabilities)

    click.echo(f"{name}: {about}")
    return _serve(new_game, partial(_save, machine.home / PLAYED), port)


def _save(folder: Path, game: HumanGame) -> str:
    """Save or else print the game. Return the error, or ""."""
    now = datetime.now(UTC)
    paths = (folder / f"{now:%Y-%m-%dT%H-%M-%S}{f'-{number}' if number else ''}.pgn" for number in count())
    pgn, ended = game.pgn(person="you", played_on=now.date()), f"{game.result}, {game.end}."
    try:
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = next(path for path in paths if not path.exists())
        replace_file(path, pgn.encode())
    except OSError as error:
        click.echo(f"{ended} NOT SAVED ({error}). Copy the game from here:\n\n{pgn}")
        return f"This game is not saved ({error}). The terminal shows it as PGN."
    click.echo(f"{ended} Saved: {shortened(path)}")
    return ""


def _serve(new_game: Callable[[bool | None], HumanGame], on_finished: Callable[[HumanGame], str], port: int) -> int:
    try:
        server = PlayServer(new_game, on_finished=on_finished, port=port)
    except OSError as error:
        raise ConfigError(f"--port {port}: {error.strerror}; name another port") from None
    with server:
        click.echo(f"Play here: {server.address}\nOnly this machine can open the address; Ctrl-C ends the server.")
        open_in_browser(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
