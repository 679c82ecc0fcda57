"""The summary: a page that needs nothing but itself, is the same for the same dataset, and takes nothing from a file for markup."""

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import chess
import pytest
from made_datasets import Dataset, sound_dataset

from data_checks.report import CheckReport, CheckResult, DatasetReport
from data_checks.summary import example_rows, summary_markdown, summary_page, summary_text

HOSTILE = '<script>alert(1)</script>" onload=x |` [a](b) *.pgn'
MET = CheckResult(name="sound", meaning="All is < well.", remedy="none", is_met=True, num_checked=1_234, num_unexpected=0, examples=())
FAILED = CheckResult(
    name="source_known", meaning="Known.", remedy="Mend it.", is_met=False, num_checked=18, num_unexpected=1, examples=(HOSTILE,)
)
FIT = DatasetReport(suites={"games": CheckReport(results=(MET,)), "boards": CheckReport(results=(MET, MET))})
UNFIT = DatasetReport(suites={"games": CheckReport(results=(MET,)), "boards": CheckReport(results=(MET, FAILED))})


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    dataset = sound_dataset()
    dataset.boards[0]["source"] = HOSTILE
    dataset.facts["rejected"] = {HOSTILE: 3}
    return dataset


def page(dataset: Dataset, report: DatasetReport = FIT) -> str:
    return summary_page(report, dataset.report_facts(), dataset.tables()[0])


class Reader(HTMLParser):
    """Notes elements that are left open, and what the page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("report", [FIT, UNFIT], ids=["fit", "unfit"])
def test_the_page_is_whole_and_fetches_and_runs_nothing(dataset: Dataset, report: DatasetReport) -> None:
    text = page(dataset, report)
    reader = read(text)

    assert reader.handlers == []
    assert all(link.startswith("#") for link in reader.links), "pieces of a drawing refer to the drawing itself"
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(reader.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text


def test_what_files_are_called_is_text_and_no_markup(dataset: Dataset) -> None:
    text = page(dataset, UNFIT)
    assert "<script" not in text
    assert HOSTILE in read(text).text
    assert "All is < well." in read(text).text

    markdown = summary_markdown(UNFIT, dataset.report_facts())
    assert "<" not in markdown
    [line] = [line for line in markdown.splitlines() if line.startswith("- Sources: ")]
    assert not set("|`*[]") & set(line)


def test_the_page_is_the_same_for_the_same_dataset_in_whatever_order_its_rows_are(dataset: Dataset) -> None:
    again = Dataset(list(reversed(dataset.boards)), dataset.games, dataset.facts)
    assert page(dataset) == page(dataset) == page(again)


def test_the_page_says_what_is_in_the_dataset_and_what_was_found(dataset: Dataset) -> None:
    text = read(page(dataset)).text
    assert "All 3 checks are met." in text
    assert "18 boards from 18 games and listed positions, of 23 usable ones; 3 were rejected, 4 repeated positions were left out." in text
    for words in ("Splits", "train12", "validation3", "heldout3", "list.epd3", "Labels from", "game15", "engine3", "judged1", "KP-K3"):
        assert words in text
    failing = page(dataset, UNFIT)
    assert "1 of 3 checks failed: boards: source_known." in read(failing).text
    assert "Remedy: Mend it." in read(failing).text
    assert failing.count("<details open>") == 1
    assert page(dataset).count("<details open>") == 0


def test_each_example_is_drawn_with_its_fen_its_label_and_the_best_move(dataset: Dataset) -> None:
    text = page(dataset)
    figures = text.split("<figure>")[1:]
    for row, figure in zip(example_rows(dataset.tables()[0]), figures, strict=True):
        drawing = ElementTree.fromstring(figure[: figure.index("</svg>") + len("</svg>")])
        best = row["moves"][row["values"].index(max(row["values"]))]
        arrows = list(drawing.iter("{http://www.w3.org/2000/svg}line"))
        assert len(arrows) == (1 if row["label"] == best else 2)
        assert row["fen"] in figure
        board = chess.Board(row["fen"])
        words = read(f"<p>{figure[figure.index('<figcaption>') :]}".partition("</figure>")[0] + "</p>").text
        assert f"label {board.san(chess.Move.from_uci(row['label']))} " in words
        assert f"best {board.san(chess.Move.from_uci(best))} " in words


def test_the_markdown_stays_within_what_a_tracker_takes_however_many_sources_there_are() -> None:
    dataset = sound_dataset()
    many = {f"{'x' * 200} {number:04}.pgn": 1_000 - number for number in range(900)}
    dataset.facts |= {"sources": many, "rejected": many, "left_out": many}
    markdown = summary_markdown(FIT, dataset.report_facts())
    assert len(markdown) < 5_000
    assert "and 888 more" in markdown
    assert "and 888 more" in summary_text(dataset.report_facts())


def test_an_empty_dataset_has_a_page_too() -> None:
    empty = Dataset([], [])
    assert "0 boards from 0 games" in page(empty, UNFIT)
