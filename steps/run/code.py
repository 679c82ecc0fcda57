"""The code that computes an output, without its words: docstrings, comments, annotations, messages and log lines change no result.

What counts are the modules that a step's module imports, directly or indirectly, inside functions too. Of the packages of `_BY_NAME`, which
every step touches, only what is taken by name counts. Classes of settings do not: their values are in the version. What describes metrics
does not: their names are in the code that logs them. A data file counts where a module beside it names it.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpo.base.files import sha256_file, sha256_json, sha256_text
from grpo.settings.tree import PolicyConfig

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("steps", "data_checks", "grpo")
_BY_NAME: Final = ("grpo.settings.", "steps.run.")
_DESCRIBES: Final = ("grpo.settings.metrics.METRICS", "grpo.settings.metrics.EVENTS")
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "network": ("steps.policies.network",),
    "language": ("grpo.language.", "steps.language.", "steps.policies.language"),
}
"""Kind of policy -> what only its runs reach, although others import it where they open a policy."""
_NETWORKS: Final = "grpo.policy.networks"
"""Where this is imported, the one network that the settings name is reached by its name."""
_USUAL_NETWORK: Final = str(PolicyConfig.model_fields["network"].default)
_VIEWS: Final = ("steps.live_diagnosis",)
"""What a step's code imports to tell people what happens, and no output depends on."""
_IN_EVERY_STEP: Final = (
    "steps.run.device.torch_device",
    "steps.run.work.Part",
    "steps.run.work.Work.write_history",
    "steps.run.work.record_row",
)
"""What `Work` does for a body, which has it without an import, and which decides bits of the output."""
_SPEAKERS: Final = ("print", "say", "warn")
_DESCRIPTIONS: Final = ("description", "help")
"""Keywords whose text is for people."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A module, or one of its definitions, without words."""

    path: Path
    module: "_Module"
    node: ast.AST

    @property
    def names(self) -> set[str]:
        """The names that it uses."""
        return {node.id for node in ast.walk(self.node) if isinstance(node, ast.Name)}

    @property
    def imports(self) -> list[tuple[str, str]]:
        """What it uses of what its module imports."""
        used = self.names  # Once, for it walks the whole tree.
        return sorted({(bound, target) for bound, target in self.module.imports if bound in used})

    @property
    def text(self) -> str:
        """What counts of it."""
        return f"{self.imports}{ast.dump(self.node)}"


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    tree: ast.Module
    imports: tuple[tuple[str, str], ...]
    """Name here, and dotted name of what it is; a name may have several."""
    definitions: Mapping[str, ast.AST]
    """By name, methods as `Class.method`."""


@cache
def code_hash(module: str, kind: str, network: str = _USUAL_NETWORK) -> str:
    """Return the hash of the code that computes what a module computes for a policy, and of the data files that it reads.

    Args:
        module: dotted name.
        kind: `policy.kind`.
        network: `policy.network`.
    """
    pieces = code_of(module, kind, network)
    data = {path.relative_to(ROOT).as_posix(): sha256_file(path) for path in _data_files(pieces.values())}
    return sha256_json({name: sha256_text(piece.text) for name, piece in pieces.items()} | data)


def code_of(module: str, kind: str, network: str = _USUAL_NETWORK) -> dict[str, _Piece]:
    """Return the modules, and of some modules the definitions, that a module's results depend on, by dotted name."""
    others = (*_VIEWS, *(name for other, names in _OF_KIND.items() if other != kind for name in names))
    found: dict[str, _Piece] = {}
    waiting, seen = [module, *_IN_EVERY_STEP], set[str]()
    while waiting:
        asked = waiting.pop()
        located = None if asked in seen else _located(asked)
        seen.add(asked)
        if located is None or located[0] in found or located[0].startswith(others):
            continue
        name, piece = located
        found[name] = piece
        waiting += [target for _, target in piece.imports]
        waiting += [f"{_NETWORKS}.{network}"] if name == _NETWORKS else []
        if not isinstance(piece.node, ast.Module):
            waiting += [f"{piece.module.name}.{each}" for each in piece.names & piece.module.definitions.keys()]
    return dict(sorted(found.items()))


def _located(name: str) -> tuple[str, _Piece] | None:
    """Return what a dotted name is the name of, with its own name; None for what does not count."""
    parts = name.split(".")
    for length in range(len(parts) if parts[0] in _PACKAGES else 0, 0, -1):
        place, rest = ROOT.joinpath(*parts[:length]), ".".join(parts[length:])
        path = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
        if path is None:
            continue
        module = _module(".".join(parts[:length]), path.read_text(encoding="utf-8"))
        if not rest or not name.startswith(_BY_NAME):
            return module.name, _Piece(path, module, module.tree)
        node = module.definitions.get(rest)
        is_settings = isinstance(node, ast.ClassDef) and name.startswith("grpo.settings.")
        return None if node is None or is_settings or name in _DESCRIBES else (name, _Piece(path, module, node))
    return None


@cache
def _module(name: str, text: str) -> _Module:
    tree = ast.parse(text)
    if name.startswith("steps.") and name.count(".") == 1:  # A step's declaration is in the version by value; its card is a view.
        tree.body = [node for node in tree.body if not {"STEP", "card"} & {defined for defined, _ in _defined(node)}]
    silence = _Silence()
    silence.visit(tree)
    definitions = {name: each for node in tree.body for name, each in _defined(node)}
    return _Module(name, tree, tuple(silence.imports), definitions)


def _defined(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a statement of a module defines, by name."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, node
    if isinstance(node, ast.ClassDef):
        yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((name.id, node) for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


class _Silence(ast.NodeTransformer):
    """Takes out of a module what changes no result, and its imports, which it lists."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str]] = []
        self._fields: set[ast.stmt] = set()
        """Of classes: dataclasses and pydantic take meaning from their annotations."""

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None, "import from the package by its name"
        self.imports += [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> Any:
        return self._without_unused(self.generic_visit(node), lambda name: name.startswith("_"))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        return self._without_unused(self.generic_visit(node), lambda _: True)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._fields |= set(node.body)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_text = all(isinstance(target, ast.Attribute) and target.attr == "args" for target in node.targets)
        return None if is_text else self.generic_visit(node)  # An error's text that goes on with it.

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = _without_texts(node.annotation) if node in self._fields else ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return self.generic_visit(_without_texts(node) if node.arg in _DESCRIPTIONS else node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        error = node.exc
        if isinstance(error, ast.Call) and _name(error.func)[:1].isupper():  # Else a function, which makes the error.
            error.args, error.keywords = [], []
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        said = node.value
        if isinstance(said, ast.Constant):
            return None
        if isinstance(said, ast.Call) and _name(said.func) in _SPEAKERS and all(keyword.arg != "file" for keyword in said.keywords):
            if not any(_does_something(each) for each in (*said.args, *said.keywords)):
                return None
            _without_texts(said)
        return self.generic_visit(node)

    def _without_unused(self, scope: ast.AST, is_ours: Callable[[str], bool]) -> Any:
        """Take out the assignments to names that nothing uses, once the messages that did are gone."""
        nodes = list(ast.walk(scope))
        used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        used |= {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}

        def is_unused(node: ast.AST) -> bool:
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node in self._fields or _does_something(node):
                return False
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return all(isinstance(target, ast.Name) and target.id not in used and is_ours(target.id) for target in targets)

        return _without(scope, filter(is_unused, nodes))


def _does_something(node: ast.AST) -> bool:
    """Return whether something is called in an expression: what is called may do more than make words."""
    return any(isinstance(each, ast.Call | ast.NamedExpr | ast.Await) for each in ast.walk(node))


def _without_texts(node: ast.AST) -> Any:
    return _without(node, (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)))


def _without(node: ast.AST, left_out: Iterable[ast.AST]) -> Any:
    """Return a node of which these nodes are taken out, in place."""
    gone = set(left_out)

    class Without(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST | None:
            return None if node in gone else self.generic_visit(node)

    return Without().visit(node)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


def _data_files(pieces: Collection[_Piece]) -> set[Path]:
    """Return the files that modules name which lie beside them or below, and those that such files name."""
    found: set[Path] = set()
    for piece in pieces:
        if not (beside := _files_beside(piece.path.parent)):
            continue
        texts = [node.value for node in ast.walk(piece.node) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        waiting = [path for path in beside if any("." in text and path.as_posix().endswith(text) for text in texts)]
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                content = path.read_text(encoding="utf-8", errors="replace")
                waiting += [other for other in beside if other.name in content]
    return found


@cache
def _files_beside(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
