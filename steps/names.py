"""Names of files in the steps' outputs, with the steps that write them, and names of policies.

An output's hash leaves out the folder `ASIDE`.
"""

from typing import Final

from grpo.base.files import ASIDE

REPORT: Final = "report.json"  # A step's results.
HISTORY: Final = "history.jsonl"  # A step's metrics.
BOARDS: Final = "boards.parquet"  # `join_boards`: the dataset. `build_boards`: `unit-NNNN.boards.parquet`.
BOARDS_PREVIEW: Final = f"{ASIDE}/boards_preview.csv"  # First boards as text, because MLflow does not show Parquet.
GAMES: Final = "games.parquet"  # The boards' games, beside `BOARDS`.
SUMMARY: Final = "summary.md"  # `check_boards`: summary of the dataset and the checks.
DECISIONS: Final = "decisions.json"  # `baseline`, `select`: a policy's notable moves on held-out boards.
ANSWERS: Final = "answers.json"  # `pretrain`, `finetune`: a language model's answers to some prompts.
CHECKPOINTS: Final = "checkpoints"  # `finetune`: one folder per checkpoint.
FINDINGS: Final = f"{ASIDE}/findings.json"  # `finetune`: diagnosis. Aside, because the diagnosis's code may change.
CACHED_GAMES: Final = "games.json"  # `screen`, `confirm`: games, for `select`.
PGN: Final = "games.pgn"  # `select`: all games.
GAMES_PAGE: Final = "games.html"  # `select`: viewer of the notable games.
RESULTS: Final = "results.json"  # `report`: the run's results.
REPORT_PAGE: Final = "report.md"  # `report`: the run on one page.
MODEL_CARD: Final = "model_card.md"  # `report`: the champion's model card.
EXPORT_CARD: Final = "README.md"  # Model card of an exported policy.

CHAMPION: Final = "champion"
"""The policy to play: a folder in the output of `select`, and an alias in MLflow's registry.

It is the candidate (the checkpoint that games judge) if promoted, otherwise the pretrained policy.
"""
PEAK: Final = "peak"
"""The checkpoint to resume from: a folder in the output of `select`, and an alias in the registry.

It is the checkpoint whose score against the pretrained policy has the highest lower confidence bound.
"""
ALIASES: Final = (CHAMPION, PEAK)  # Also policy names in commands.
