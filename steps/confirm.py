"""Play one task's share of the games that decide on the candidate: fresh games, from openings that serve nothing else."""

from dataclasses import asdict
from typing import Any, Final

from grpo.base.files import write_json
from grpo.match.players import Player
from steps.measure import CONFIRMATION, PREVIOUS, PREVIOUS_POLICY, SAMPLED, Arena, checkpoint, player_names, read_screened
from steps.names import CACHED_GAMES
from steps.policies.open import Competitor, open_checkpoint, open_policy
from steps.run.step import Step
from steps.run.work import Work

STEP: Final = Step(
    name="confirm",
    says="Plays one task's part of the games that decide on the candidate: fresh games, in pairs with both colors, from openings"
    " that were not used before.",
    reads=("seed", "language", "evaluation", "selection"),
    takes=("pretrained", "finetuned", "screened", "engine", "device"),
    resources="games",
)


def body(work: Work) -> None:
    """Write this part's games of each stage; each has the number of its pair in the whole match."""
    screened = read_screened(work.inputs["screened"])
    games: dict[str, list[dict[str, Any]]] = {}
    if screened["candidate_step"] is not None:
        players = _players(work, screened["candidate_step"])
        with Arena(work) as arena:
            for stage in (stage for stage in players if stage in screened["openings"]):
                openings = screened["openings"][stage]
                share = work.part.of(range(len(openings)))
                arena.expect(2 * len(share), f"{stage} games")
                result = arena.match(*players[stage], [openings[number] for number in share], numbers=share)
                games[stage] = [asdict(game) | {"pair": share[index // 2]} for index, game in enumerate(result.games)]
    write_json(work.folder / CACHED_GAMES, games)


def _players(work: Work, step: int) -> dict[str, tuple[Player, Player]]:
    """Return the candidate and its opponent in each stage; the previous champion only where there is one to be played."""
    device, rules, seed = work.device, work.settings.language, work.settings.seed
    candidate = open_checkpoint(checkpoint(work, step), device, rules=rules)
    initial, previous = open_policy(work.inputs["pretrained"], device, rules=rules), work.inputs["screened"] / PREVIOUS_POLICY
    rivals: dict[str, tuple[Competitor, tuple[str | int, ...]]] = {CONFIRMATION: (initial, ("asked again", CONFIRMATION, 0, "initial"))}
    if previous.is_dir():
        rivals[PREVIOUS] = (open_policy(previous, device, rules=rules), ("asked again", PREVIOUS, 0))
    found: dict[str, tuple[Player, Player]] = {}
    for stage, (rival, stream) in rivals.items():
        first, second = player_names(stage, step)
        best = candidate.best_player(first, seed=seed, stream=("asked again", stage, 0, "candidate"))
        found[stage] = (best, rival.best_player(second, seed=seed, stream=stream))
    first, second = player_names(SAMPLED, step)
    found[SAMPLED] = (
        candidate.sampling_player(first, temperature=1.0, seed=seed, stream=(SAMPLED, "candidate")),
        initial.sampling_player(second, temperature=1.0, seed=seed, stream=(SAMPLED, "initial")),
    )
    return found
