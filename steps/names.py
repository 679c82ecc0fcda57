"""The files that steps leave in their outputs, and the policies among them: one name each, for who writes it and for all that read it."""

from typing import Final

from grpo.base.files import ASIDE
from steps import STEPS

REPORT: Final = "report.json"
"""Of every step that reports: its facts as plain JSON."""
HISTORY: Final = "history.jsonl"
"""Of every step that records metrics: a line a record."""
BOARDS: Final = "boards.parquet"
"""Of `join_boards`: the dataset; of `build_boards`: a unit of it."""
BOARDS_PREVIEW: Final = f"{ASIDE}/boards_preview.csv"
"""The first of the boards as text, which MLflow shows; it shows no Parquet."""
GAMES: Final = "games.parquet"
"""Beside the boards: the games that they are from."""
SUMMARY: Final = "summary.md"
"""Of `check_boards`: what holds and what does not, as text."""
DECISIONS: Final = "decisions.json"
"""Of `baseline` and `select`: what a policy plays on held-out boards."""
ANSWERS: Final = "answers.json"
"""The same of a language model: its answers."""
CHECKPOINTS: Final = "checkpoints"
"""Of `finetune`: a folder, with a folder for each checkpoint."""
FINDINGS: Final = f"{ASIDE}/findings.json"
"""Of `finetune`: what the diagnosis found in its history; aside, for it follows from the history and the diagnosis of today."""
CACHED_GAMES: Final = "games.json"
"""Of `screen` and `confirm`: the games that `select` need not play again."""
PGN: Final = "games.pgn"
"""Of `select`: all its games."""
GAMES_PAGE: Final = "games.html"
"""Of `select`: a viewer of the games that are worth looking at."""
RESULTS: Final = "results.json"
"""Of `report`: the run's results, of which all pages are templates (`steps.pages.results`)."""
REPORT_PAGE: Final = "report.md"
"""Of `report`: the run on one page."""
MODEL_CARD: Final = "model_card.md"
"""Beside the report, in MLflow: the champion's card."""
EXPORT_CARD: Final = "README.md"
"""Of an exported policy: its card."""

CHAMPION: Final = "champion"
"""The policy to play: shown to be better than its own start, and than the champion before it. A folder of `select`, and an alias."""
PEAK: Final = "peak"
"""The checkpoint to resume from: the best lower bound of its run. A folder of `select`, and an alias."""
ALIASES: Final = (CHAMPION, PEAK)
"""Of the registry; commands take them as names of policies."""
PRETRAINED_STEP: Final = 0
"""The step of the pretrained policy, before the first of GRPO."""
RESUMED_WITH: Final = STEPS[STEPS.index("join_boards") : STEPS.index("finetune")]
"""Steps whose outputs are beside a registered peak: a run that resumes from it takes them, and need not measure again."""
