"""The code that computes an output, without its words: docstrings, comments, annotations, messages and log lines change no result.

What counts are the modules that a step's module imports and uses, directly or indirectly, inside functions too, and the data files of some.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpo.base.files import sha256_file, sha256_json, sha256_text
from grpo.settings.kinds import KINDS
from steps.run.kinds import PARTS

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("steps", "data_checks", "grpo")
_IN_EVERY_STEP: Final = ("steps.run.device", "steps.run.work")
"""What decides bits of an output although a body, which is handed its `Work`, does not import it."""
_LEFT_OUT: Final = (
    *("grpo.settings.grpo", "grpo.settings.language", "grpo.settings.tree"),  # Their values are in the version.
    *("steps.run.machine", "steps.run.outside", "steps.run.step"),  # So are these.
    "grpo.metrics.table",  # The names of metrics are in the code that logs them, and the rest are words.
    "steps.common.live_diagnosis",  # It tells people.
)
_TABLES: Final[Mapping[str, Mapping[str, Any]]] = {"grpo.settings.kinds": KINDS, "steps.run.kinds": PARTS}
"""Module -> its table of kinds. The row of the policy's kind counts, by value; rows of other kinds and what they import do not."""
_NETWORKS: Final = "grpo.policy.networks"
"""Imports the network that the settings name."""
_OPEN: Final = "steps.common.policies.open"
"""Imports the competitor of the policy's kind."""
_DATA: Final = {
    "grpo.viewer.page": ("grpo/viewer/pages/*",),
    "steps.pages.templates": ("steps/pages/*.j2", "steps/pages/kinds/{kind}.md.j2"),
}
"""Module -> patterns of its data files."""
_VIEWS: Final = ("STEP", "card")
"""Of a step's module: its declaration is in the version by value, and its card is no part of the output."""
_MESSAGE_CALLS: Final = ("print", "say", "warn")


@cache
def code_hash(module: str, kind: str, network: str) -> str:
    """Return the hash of the code that computes what a module computes for a policy, and of the data files that it reads.

    Args:
        module: dotted name.
        kind: `policy.kind`.
        network: `policy.network`.
    """
    code = code_of(module, kind, network)
    patterns = (pattern.format(kind=kind) for name in _DATA.keys() & code.keys() for pattern in _DATA[name])
    data = {path.relative_to(ROOT).as_posix(): path for pattern in patterns for path in ROOT.glob(pattern)}
    return sha256_json({name: sha256_text(text) for name, text in code.items()} | {name: sha256_file(path) for name, path in data.items()})


def code_of(module: str, kind: str, network: str) -> dict[str, str]:
    """Return the modules that a module's results depend on, and what counts of each."""
    by_name = {_NETWORKS: [f"{_NETWORKS}.{network}"], _OPEN: [PARTS[kind].competitor]}
    code: dict[str, str] = {}
    waiting = [module, *_IN_EVERY_STEP]
    while waiting:
        name = waiting.pop()
        if name in _TABLES:
            code[name] = repr(_TABLES[name][kind])
            continue
        path = None if name in code or name.startswith(_LEFT_OUT) else _path_of(name)
        if path is not None:
            code[name], imports = _without_words(path.read_text(encoding="utf-8"))
            waiting += [*imports, *by_name.get(name, [])]
    return dict(sorted(code.items()))


def _path_of(name: str) -> Path | None:
    """Return the file of a module; None for a module of others, and for a name that is no module."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py") if name.startswith(_PACKAGES) else ()
    return next(filter(Path.is_file, files), None)


@cache
def _without_words(text: str) -> tuple[str, frozenset[str]]:
    """Return what counts of a module, and the dotted names that it may import by that: of what is no module the parent is one."""
    tree, remover = ast.parse(text), _WordRemover()
    tree.body = [node for node in tree.body if not _is_view(node)]
    remover.visit(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = sorted((bound, target) for bound, target in remover.imports if bound in used)
    names = (name for _, target in imports for name in (target, target.rpartition(".")[0]))
    return f"{imports}{ast.dump(tree)}", frozenset(names)


def _is_view(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _VIEWS
    return False


class _WordRemover(ast.NodeTransformer):
    """Takes out of a module what changes no result, and its imports, which it lists: name here, and dotted name of what it is."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str]] = []

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None, "import from the package by its name"
        self.imports += [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc.args, node.exc.keywords = [], []
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        match node.value:
            case ast.Constant():
                return None
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords) if name in _MESSAGE_CALLS:
                is_output = any(keyword.arg == "file" for keyword in keywords)
                return self.generic_visit(node if is_output else _TextRemover().visit(node))
        return self.generic_visit(node)


class _TextRemover(ast.NodeTransformer):
    """Takes texts out of a statement that speaks to people."""

    def visit_Constant(self, node: ast.Constant) -> Any:
        return None if isinstance(node.value, str) else node
