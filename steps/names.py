"""Names of files in the steps' outputs, and names of policies: the step that writes a file and its readers take the name from here."""

from typing import Final

from grpo.base.files import ASIDE

REPORT: Final = "report.json"  # Results of any step that reports, as plain JSON.
HISTORY: Final = "history.jsonl"  # Metrics of any step that logs some, one record per line.
BOARDS: Final = "boards.parquet"  # The dataset in `join_boards`; a unit's part of the dataset in `build_boards`.
BOARDS_PREVIEW: Final = f"{ASIDE}/boards_preview.csv"  # First boards as text, because MLflow does not show Parquet.
GAMES: Final = "games.parquet"  # Games from which the boards come, beside `BOARDS`.
SUMMARY: Final = "summary.md"  # Summary of the dataset and its checks, in `check_boards`.
DECISIONS: Final = "decisions.json"  # A policy's notable moves on held-out boards, in `baseline` and `select`.
ANSWERS: Final = "answers.json"  # A language model's answers to some prompts, in `pretrain` and `finetune`.
CHECKPOINTS: Final = "checkpoints"  # Folder in `finetune`, with one folder per checkpoint.
FINDINGS: Final = f"{ASIDE}/findings.json"
"""Diagnosis of the history, in `finetune`. Not hashed, because it also depends on the current code of the diagnosis."""
CACHED_GAMES: Final = "games.json"  # Games of `screen` and `confirm`, which `select` does not play again.
PGN: Final = "games.pgn"  # All games, in `select`.
GAMES_PAGE: Final = "games.html"  # Viewer of the notable games, in `select`.
RESULTS: Final = "results.json"  # The run's results (`steps.pages.results`), in `report`; all pages show this document.
REPORT_PAGE: Final = "report.md"  # The run on one page, in `report`.
MODEL_CARD: Final = "model_card.md"  # The champion's model card, in `report` and in MLflow.
EXPORT_CARD: Final = "README.md"  # Model card of an exported policy.

CHAMPION: Final = "champion"
"""The policy to play: shown to be better than the run's own start and than the previous champion. A folder of `select` and an alias."""
PEAK: Final = "peak"
"""The checkpoint to resume from: the one with the best lower bound in its run. A folder of `select` and an alias."""
ALIASES: Final = (CHAMPION, PEAK)  # Aliases in the registry; commands accept them as names of policies.
