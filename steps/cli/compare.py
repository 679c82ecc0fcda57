"""The command `chess-grpo compare`: two runs side by side, with the games that would decide between them."""

import click

from steps.cli.runs import results_of, status_of
from steps.cli.tables import text_table, when
from steps.pages.compare import compare, comparison_lines
from steps.pages.results import Decision
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import find_run


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
def command(first: str, second: str) -> int:
    """Two runs side by side: A and B are ids of runs, or `last`.

    The settings that differ and, where both were measured with the same yardstick (same opponent and rules, same ladder, same held-out
    boards), the results with the difference and its 95 % interval. It names the games that would decide the rest.
    """
    store = Store.of(Machine.here())
    runs = [find_run(name, store) for name in (first, second)]
    of_first, of_second = (results_of(run, store) for run in runs)
    verdicts = [status_of(run) if found is None else found.decision.verdict for run, found in zip(runs, (of_first, of_second), strict=True)]
    facts = zip("AB", runs, verdicts, strict=True)
    print(text_table([(side, run.name, when(run.started), verdict, run.facts["label"]) for side, run, verdict in facts]))
    if runs[0].name == runs[1].name:
        print("A and B are one and the same run: there is nothing to compare.")
    elif of_first is None or of_second is None:
        print("No results to compare: both runs must have reached the step `report`.")
    else:
        print("\n".join(comparison_lines(compare(of_first, of_second))))
        if match := _match({runs[0].name: of_first.decision, runs[1].name: of_second.decision}):
            print(f"No score against a third player says who would win between the two. Their games do: `{match}`")
    return 0


def _match(decisions: dict[str, Decision]) -> str:
    """Return the command for games between the champions of two runs, by the runs' names; empty where these are one policy.

    Where both began with one pretrained policy, a run whose champion it still is sends its peak: else a start could meet itself.
    """
    is_one_start = len({decision.initial_weights for decision in decisions.values()}) == 1
    if is_one_start and all(decision.peak_step == 0 and not decision.promoted for decision in decisions.values()):
        return ""
    players = [f"{run}/{each.peak_step}" if is_one_start and not each.promoted else run for run, each in decisions.items()]
    return f"chess-grpo match {' '.join(players)} --pairs 300"
