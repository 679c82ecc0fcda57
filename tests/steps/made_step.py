"""A step that counts how often it was computed."""

from steps.run.step import Step
from steps.run.work import Work

STEP = Step(name="check_boards", variants={"network": __name__}, says="Counts.", reads="check_boards", takes=("boards",))
calls: list[str] = []
"""What the body has seen of its input."""
fails: list[Exception] = []
"""Raised by the next calls, one each."""


def body(work: Work) -> None:
    calls.append((work.inputs["boards"] / "boards.txt").read_text())
    if fails:
        raise fails.pop()
    (work.folder / "report.json").write_text("{}")
