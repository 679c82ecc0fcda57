"""The table of `chess-grpo` commands: module, goal, examples, exit codes and documentation page of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CODES: Final = "0 done; 1 an error that the message explains; 2 wrong usage"
"""Default exit codes of a command."""

BEFORE: Final = "before a run"
LOOKING: Final = "runs"
PLAYING: Final = "policies"
PARTS: Final = "single steps"
COMMAND_GROUPS: Final = (BEFORE, LOOKING, PLAYING, PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One word after `chess-grpo`."""

    module: str
    """Module with `add_commands`; imported only when this command is used."""
    group: str
    goal: str
    """What the command does, in one line."""
    examples: tuple[str, ...]
    """Command lines that work as typed."""
    page: str
    """Documentation page."""
    codes: str = CODES


COMMANDS: Final[Mapping[str, Command]] = {
    "doctor": Command(
        module="steps.cli.doctor",
        group=BEFORE,
        goal="check this machine and the settings before a run, with a remedy for each problem",
        examples=(
            "chess-grpo doctor",
            "chess-grpo doctor --config smoke",
            "chess-grpo doctor --set grpo.num_steps=600 --json",
            "chess-grpo doctor --batch",
        ),
        page="docs/commands.md",
        codes="0 all checks passed; 1 a check failed; 2 wrong usage",
    ),
    "plan-games": Command(
        module="steps.cli.plan_games",
        group=BEFORE,
        goal="how many games show an Elo difference, and which difference given games can show",
        examples=("chess-grpo plan-games --elo 30", "chess-grpo plan-games --games 600 --draw-rate 0.4"),
        page="docs/evaluation.md",
    ),
    "cost": Command(
        module="steps.cli.language_model",
        group=BEFORE,
        goal="memory and time of GRPO on a language model, before paying for them",
        examples=(
            "chess-grpo cost --config language",
            "chess-grpo cost --config language --set language.model='\"jrahn/RookWorld-LM-124M\"' --memory 24 --teraflops 30",
        ),
        page="docs/language.md",
        codes="0 done; 1 a step needs more than --memory, or an error that the message explains; 2 wrong usage",
    ),
    "runs": Command(
        module="steps.cli.runs",
        group=LOOKING,
        goal="list the runs in MLflow, newest first: settings, status and results",
        examples=("chess-grpo runs", "chess-grpo runs --last 5", "chess-grpo runs --json"),
        page="docs/commands.md",
    ),
    "show": Command(
        module="steps.cli.show",
        group=LOOKING,
        goal="show one run: settings, steps, results with confidence intervals, findings and locations",
        examples=("chess-grpo show last", "chess-grpo show champion", "chess-grpo show last --json"),
        page="docs/commands.md",
    ),
    "card": Command(
        module="steps.cli.card",
        group=LOOKING,
        goal="open a step's card: the report of a run, the curves of its training, the games that decided",
        examples=("chess-grpo card", "chess-grpo card last/finetune", "chess-grpo card champion/select --out decision.html"),
        page="docs/cards.md",
    ),
    "diagnose": Command(
        module="steps.cli.diagnose",
        group=LOOKING,
        goal="diagnose what is wrong with a run, and how to fix it",
        examples=(
            "chess-grpo diagnose last",
            "chess-grpo diagnose --history losses.csv rewards.csv --evals evals.csv",
            "chess-grpo diagnose --history wandb_export.csv --settings settings.json --json",
        ),
        page="docs/diagnosis.md, which explains each finding, and which files and columns are read",
        codes="0 healthy; 1 there are findings; 2 wrong input or usage",
    ),
    "compare": Command(
        module="steps.cli.compare",
        group=LOOKING,
        goal="compare two runs, with conclusions",
        examples=("chess-grpo compare champion last", "chess-grpo compare peak last --json"),
        page="docs/commands.md",
    ),
    "sweep": Command(
        module="steps.cli.sweep",
        group=LOOKING,
        goal="run the pipeline over seeds and combinations of settings, with means over seeds",
        examples=(
            "chess-grpo sweep laptop --seeds 0 1 2",
            "chess-grpo sweep laptop --seeds 0 1 2 --set grpo.learning_rate=5e-4,1e-3 --set grpo.group_size=8,16",
            "chess-grpo sweep laptop --seeds 0 1 2 --show",
        ),
        page="docs/evaluation.md",
        codes="0 all runs finished; 1 a run failed, or an error that the message explains; 2 wrong usage",
    ),
    "ui": Command(
        module="steps.cli.ui",
        group=LOOKING,
        goal="open this home's tracking store in the MLflow UI",
        examples=("chess-grpo ui", "chess-grpo ui --port 5001"),
        page="docs/commands.md",
    ),
    "track": Command(
        module="steps.cli.track",
        group=LOOKING,
        goal="log to MLflow what runs could not log during an outage",
        examples=("chess-grpo track", "chess-grpo track --list"),
        page="docs/faults.md",
        codes="0 everything is logged; 1 records are left, or the server is away; 2 wrong usage",
    ),
    "play": Command(
        module="steps.cli.play",
        group=PLAYING,
        goal="play against a policy yourself, in the terminal or by clicks on a local page",
        examples=("chess-grpo play", "chess-grpo play peak --color black --temperature 0.5", "chess-grpo play --page"),
        page="docs/playing.md",
    ),
    "uci": Command(
        module="steps.cli.uci",
        group=PLAYING,
        goal="run a policy as a UCI engine",
        examples=("chess-grpo uci", "chess-grpo uci --model peak --temperature 0.5"),
        page="docs/playing.md",
    ),
    "match": Command(
        module="steps.cli.match",
        group=PLAYING,
        goal="play paired games between two players, with confidence intervals",
        examples=(
            "chess-grpo match champion stockfish:nodes=1",
            "chess-grpo match champion peak --pairs 200 --pgn games.pgn",
            "chess-grpo match champion@0.5 random --pairs 20 --seed 7 --html games.html",
        ),
        page="docs/evaluation.md",
    ),
    "solve": Command(
        module="steps.cli.solve",
        group=PLAYING,
        goal="how many puzzles (Lichess CSV) or problems (EPD: bm, am, points) a policy solves",
        examples=("chess-grpo solve champion puzzles.csv --limit 1000", "chess-grpo solve peak suites/*.epd --json"),
        page="docs/evaluation.md",
    ),
    "export": Command(
        module="steps.cli.export",
        group=PLAYING,
        goal="export a model for other programs: safetensors, JSON and a model card",
        examples=("chess-grpo export champion exported", "chess-grpo export my_run/checkpoints/step-00000120 exported"),
        page="docs/playing.md",
    ),
    "boards": Command(
        module="steps.cli.boards",
        group=PARTS,
        goal="build or inspect a dataset of boards",
        examples=(
            "chess-grpo boards build my_boards --config smoke",
            "chess-grpo boards inspect my_boards",
            "chess-grpo boards inspect games.pgn",
        ),
        page="docs/boards.md",
    ),
    "finetune": Command(
        module="steps.cli.finetune",
        group=PARTS,
        goal="run GRPO alone, on a dataset and a policy",
        examples=("chess-grpo finetune my_boards my_policy my_run --config smoke",),
        page="docs/howto.md",
    ),
    "single-batch": Command(
        module="steps.cli.language_model",
        group=PARTS,
        goal="print one rollout of a language model; optionally overfit it as a test of the training code",
        examples=(
            "chess-grpo single-batch my_policy --boards my_boards",
            "chess-grpo single-batch peak --fen 'r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3'",
            "chess-grpo single-batch my_policy --boards my_boards --update 20 --set grpo.learning_rate=1e-4",
        ),
        page="docs/commands.md",
        codes="0 done, and with --update the loss fell; 1 it did not fall, or an error that the message explains; 2 wrong usage",
    ),
}
"""Commands in the order of the help text."""
