"""The step `confirm`. The candidate is the checkpoint that `screen` chose.

Each stage of `FRESH` is a match, whose openings the tasks divide.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from grpo.base.documents import read_document, write_document
from grpo.match.players import Player
from grpo.statistics.halving import Screened
from steps.common.measure import FRESH, PREVIOUS, PREVIOUS_POLICY, SAMPLED, Arena, SharedGame, SharedGames, checkpoint, player_names
from steps.common.policies.competitor import Competitor
from steps.common.policies.open import open_policy
from steps.names import CACHED_GAMES, REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="confirm",
    says="Plays one task's part of the games that judge the candidate: in pairs with both colors, from new openings.",
    reads=("seed", "evaluation", "selection"),
    reads_kind=True,
    inputs=("pretrain", "finetune", "screen"),
    outside=(Outside.ENGINE, Outside.DEVICE),
    resources="games",
)


def body(work: Work) -> None:
    """Write stage -> games, an empty mapping without a candidate."""
    screened = read_document(work.inputs["screen"] / REPORT, Screened)
    games: dict[str, tuple[SharedGame, ...]] = {}
    if (candidate_step := screened.candidate_step) is not None:
        open_once = cache(lambda folder: open_policy(folder, work.device, settings=work.settings))
        num_sharing = 1 if work.machine.is_container else work.part.count  # Outside of containers, the tasks divide this machine's cores.
        work.machine = replace(work.machine, num_threads=max(1, work.machine.num_threads // num_sharing))
        with Arena(work.settings, work.machine, work.progress) as arena:
            for stage in (stage for stage in FRESH if stage in screened.openings):
                openings = screened.openings[stage]
                share = work.part.of(range(len(openings)))
                arena.expect(2 * len(share), f"{stage} games")
                first, second = _players(work, open_once, stage, candidate_step)
                result = arena.match(first, second, {number: openings[number] for number in share})
                # Games 2i and 2i + 1 of the result share an opening.
                games[stage] = tuple(SharedGame.of(game, pair=share[index // 2]) for index, game in enumerate(result.games))
    write_document(work.folder / CACHED_GAMES, SharedGames(games))


def _players(work: Work, open_once: Callable[[Path], Competitor], stage: str, candidate_step: int) -> Iterator[Player]:
    opponent = work.inputs["screen"] / PREVIOUS_POLICY if stage == PREVIOUS else work.inputs["pretrain"]
    # The keys name random streams; "initial" is any opponent.
    policies = {"candidate": open_once(checkpoint(work, candidate_step)), "initial": open_once(opponent)}
    temperature, stream = (1.0, (SAMPLED,)) if stage == SAMPLED else (None, ("asked again", stage, 0))
    for (role, policy), name in zip(policies.items(), player_names(stage, candidate_step), strict=True):
        yield policy.player(name, temperature=temperature, seed=work.settings.seed, stream=(*stream, role))
