"""What steps take in from outside of the run, by hash, and what of the settings cloning sees."""

from grpo.base.files import file_hashes, sha256_json
from grpo.engine.identity import EngineIdentity
from grpo.play.openings import book_files
from grpo.policy.files import LANGUAGE
from grpo.reading.streams import find_files, fingerprint, fingerprint_of_all
from grpo.settings.language import SMALL, LanguageConfig, model_folder
from grpo.settings.roles import is_read_by
from grpo.settings.tree import Settings


def seen_by_cloning(settings: Settings) -> Settings:
    """Return the settings with what cloning does not read at its default: a policy's folder holds its settings, and may hold no others."""
    unread = {name: field.default for name, field in LanguageConfig.model_fields.items() if not is_read_by("pretrain", f"language.{name}")}
    return settings.model_copy(update={"language": settings.language.model_copy(update=unread)})


def source_inputs(settings: Settings, engine: EngineIdentity) -> dict[str, str]:
    """Return what the dataset is made from, by hash."""
    boards = settings.boards
    files = find_files(boards.files) if boards.files else []
    judged = {"judged positions": fingerprint_of_all(find_files(boards.exclude))} if boards.exclude else {}
    # Names of sources are in the rows, folders are not; of what judges only the content counts.
    named = {f"file {file.name}": fingerprint(file) for file in files}
    return {"engine": str(engine)} | named | judged


def model_inputs(settings: Settings) -> dict[str, str]:
    """Return the language model that cloning begins with: by hash where it lies in a folder, by its commit where a hub has it.

    The name of a hub's model is in the settings; the commit tells a model that has changed there since.

    Raises MissingExtraError, and LanguageModelError when neither the hub nor its cache has the model.
    """
    language = settings.language
    if settings.policy.kind != LANGUAGE or language.model == SMALL:
        return {}
    folder = model_folder(language.model)
    if folder is not None:
        return {"model": sha256_json(file_hashes(folder))}
    from grpo.language.model.loading import hub_commit  # It imports torch, and transformers to ask the hub.

    return {"model": hub_commit(language)}


def opening_inputs(settings: Settings) -> dict[str, str]:
    """Return what matches begin from, by hash: of a book only the content counts; the generator is code."""
    book = settings.evaluation.opening_book
    return {"opening book": fingerprint_of_all(book_files(book))} if book else {}
