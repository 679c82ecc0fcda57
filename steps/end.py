"""The last step: close the run's record, log all remaining records to MLflow, and return the text that ends the run."""

from typing import Any

from steps.job.resume import Job
from steps.names import BOARDS, CHAMPION, GAMES_PAGE, PEAK, PGN, REPORT_PAGE, RESULTS
from steps.pages.results import read_results
from steps.pages.templates import finding_lines, verdict_lines
from steps.run.commands import pasteable, shortened
from steps.run.machine import Machine
from steps.run.records import Runs
from steps.run.store import Store


def end(flow: Any) -> tuple[dict[str, Any], str]:
    """Close the run; return its results as plain data, with the paths of its files in `where`, and the closing text.

    No line of the text begins with a space, because Metaflow strips leading spaces.
    """
    from steps.track.publish import SECONDS, publish_all  # Imports MLflow (seconds), which other uses of this module do not need.

    job: Job = flow.job
    machine = Machine.here()
    store = Store.of(machine)
    runs = Runs(store)
    results = read_results(store.open(flow.report_output) / RESULTS)
    places = {
        "champion": f"{store.place(flow.select_output)}/{CHAMPION}",
        "peak": f"{store.place(flow.select_output)}/{PEAK}",
        "games": f"{store.place(flow.select_output)}/{PGN}",
        "viewer": f"{store.place(flow.select_output)}/{GAMES_PAGE}",
        "report": f"{store.place(flow.report_output)}/{REPORT_PAGE}",
        "results": f"{store.place(flow.report_output)}/{RESULTS}",
        "boards": f"{store.place(flow.join_boards_output)}/{BOARDS}",
    }
    runs.begin(job["run"], "end", "", "").end("finished")
    left = publish_all(machine, seconds=SECONDS).get(job["run"], "")
    findings = () if results.findings is None else results.findings.findings
    commands = {
        **({pasteable("chess-grpo diagnose last"): "what is wrong with the training, and what to change"} if findings else {}),
        pasteable(f"chess-grpo play {job['run']}"): "play against the champion",
        pasteable("chess-grpo show last"): "the same in the terminal",
        pasteable("chess-grpo card last"): "the report as a page",
        pasteable("make ui"): "all runs in MLflow",
    }
    width = max(map(len, commands))
    lines = [
        "",
        *verdict_lines(results),
        "",
        *finding_lines(findings[:1], is_short=True),
        *([f"NOT LOGGED to MLflow yet: {left}. Log it later: {pasteable('chess-grpo track')}"] if left else []),
        f"Champion: {shortened(places['champion'])}",
        f"Report: {shortened(places['report'])}",
        "Next:",
        *(f"{command:<{width}}  # {why}" for command, why in commands.items()),
    ]
    return {**results.model_dump(mode="json"), "where": places, "run": job["run"]}, "\n".join(lines)
