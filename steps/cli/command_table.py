"""What `chess-grpo` can do: each command's goal, examples that work as typed, and where to read on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CODES: Final = "0 done; 1 an error that the message explains; 2 a wrong usage"
"""Exit codes of a command that says nothing else."""

BEFORE: Final = "before a run"
LOOKING: Final = "looking at runs"
PLAYING: Final = "with a policy"
PARTS: Final = "steps by themselves"
COMMAND_GROUPS: Final = (BEFORE, LOOKING, PLAYING, PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One word after `chess-grpo`."""

    module: str
    """Has `add_commands`; imported only when this command is given."""
    group: str
    goal: str
    """What it is good for, in one line."""
    examples: tuple[str, ...]
    """As typed."""
    page: str
    """Where to read on."""
    codes: str = CODES


COMMANDS: Final[Mapping[str, Command]] = {
    "doctor": Command(
        module="steps.cli.doctor",
        group=BEFORE,
        goal="find in seconds what would fail in an hour, each with its remedy",
        examples=("chess-grpo doctor", "chess-grpo doctor --config smoke", "chess-grpo doctor --set grpo.num_steps=600 --json"),
        page="docs/commands.md",
        codes="0 all is fine; 1 something is wrong; 2 a wrong usage",
    ),
    "plan-games": Command(
        module="steps.cli.plan_games",
        group=BEFORE,
        goal="how many games it takes to show a difference, and what given games could show",
        examples=("chess-grpo plan-games --elo 30", "chess-grpo plan-games --games 600 --draw-rate 0.4"),
        page="docs/evaluation.md",
    ),
    "runs": Command(
        module="steps.cli.runs",
        group=LOOKING,
        goal="the runs of the tracking store, newest first: what each was, how it ended, and what came out",
        examples=("chess-grpo runs", "chess-grpo runs --last 5", "chess-grpo runs --json"),
        page="docs/commands.md",
    ),
    "show": Command(
        module="steps.cli.show",
        group=LOOKING,
        goal="one run: settings, steps, numbers with intervals, findings, and where everything is",
        examples=("chess-grpo show last", "chess-grpo show champion", "chess-grpo show last --json"),
        page="docs/commands.md",
    ),
    "diagnose": Command(
        module="steps.cli.diagnose",
        group=LOOKING,
        goal="say what is wrong with a run, and how to mend it",
        examples=(
            "chess-grpo diagnose last",
            "chess-grpo diagnose --history losses.csv rewards.csv --evals evals.csv",
            "chess-grpo diagnose --history wandb_export.csv --settings settings.json --json",
        ),
        page="docs/diagnosis.md, which explains each finding, and says which files and columns are read",
        codes="0 healthy; 1 something was found; 2 the input or the usage is wrong",
    ),
    "compare": Command(
        module="steps.cli.compare",
        group=LOOKING,
        goal="two runs side by side, and what may be concluded from that",
        examples=("chess-grpo compare champion last", "chess-grpo compare peak last --json"),
        page="docs/commands.md",
    ),
    "ui": Command(
        module="steps.cli.ui",
        group=LOOKING,
        goal="open the tracking store of this home in the MLflow UI",
        examples=("chess-grpo ui", "chess-grpo ui --port 5001"),
        page="docs/commands.md",
    ),
    "track": Command(
        module="steps.cli.track",
        group=LOOKING,
        goal="tell the tracking store what runs could not tell it while it was away",
        examples=("chess-grpo track", "chess-grpo track --list"),
        page="docs/faults.md",
        codes="0 nothing is left to tell; 1 something is, or the store is away; 2 a wrong usage",
    ),
    "uci": Command(
        module="steps.cli.uci",
        group=PLAYING,
        goal="a policy as an engine for chess programs",
        examples=("chess-grpo uci", "chess-grpo uci --model peak --temperature 0.5"),
        page="docs/playing.md",
    ),
    "match": Command(
        module="steps.cli.match",
        group=PLAYING,
        goal="paired games between two players, with intervals",
        examples=(
            "chess-grpo match champion stockfish:nodes=1",
            "chess-grpo match champion peak --pairs 200 --pgn games.pgn",
            "chess-grpo match champion@0.5 random --pairs 20 --seed 7",
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
        goal="a model for other programs: safetensors, JSON, ONNX, and a model card",
        examples=("chess-grpo export champion exported", "chess-grpo export my_run/checkpoints/step-00000120 exported"),
        page="docs/playing.md",
    ),
    "boards": Command(
        module="steps.cli.boards",
        group=PARTS,
        goal="make a dataset of boards, or look at one",
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
        goal="GRPO by itself, on a dataset and a policy",
        examples=("chess-grpo finetune my_boards my_policy my_run --config smoke",),
        page="docs/nodes.md",
    ),
    "single-batch": Command(
        module="steps.cli.single_batch",
        group=PARTS,
        goal="one rollout of a language model, answer by answer; and whether training on it alone moves it",
        examples=(
            "chess-grpo single-batch my_policy --boards my_boards",
            "chess-grpo single-batch peak --fen 'r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3'",
            "chess-grpo single-batch my_policy --boards my_boards --update 20 --set grpo.learning_rate=1e-4",
        ),
        page="docs/commands.md",
        codes="0 done, and the loss fell where it was asked to; 1 it did not, or an error that the message explains; 2 a wrong usage",
    ),
}
"""In the order in which help names them."""
