"""Finds which options of a config the package reads, by the types that its annotations give."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

from commands import ROOT

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import Section

Sections = frozenset[type[Section]]
NONE: Sections = frozenset()


def sections_of(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_of(part)


def all_sections(root: type[Section]) -> dict[str, type[Section]]:
    """The root and every section below it, by the names of their classes."""
    sections = {root.__name__: root}
    for field in root.model_fields.values():
        for section in sections_of(field.annotation):
            sections |= all_sections(section)
    return sections


SECTIONS = all_sections(Config)


def annotated(annotation: ast.expr | None) -> Sections:
    """The sections that an annotation such as `Config | None` names."""
    nodes = ast.walk(annotation) if annotation else ()
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(SECTIONS[name] for name in names if name in SECTIONS)


class Reads(ast.NodeVisitor):
    """Collects `(section, option)` for each `x.option` where x is known to be a section.

    Types come from annotations of parameters and attributes, and from assignments of what has a
    type. The attributes of all classes are taken together.
    """

    def __init__(self, attributes: dict[str, Sections], returns: dict[str, Sections]) -> None:
        self.attributes, self.returns = attributes, returns
        self.names: dict[str, Sections] = {}
        self.options: set[tuple[type[Section], str]] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in SECTIONS:
            self.generic_visit(node)
            return
        for part in node.body:  # the properties of a section; its validators use nothing
            if isinstance(part, ast.FunctionDef) and "property" in map(
                ast.unparse, part.decorator_list
            ):
                self.names["self"] = frozenset({SECTIONS[node.name]})
                self.generic_visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self.names = self.names, dict(self.names)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self.names[argument.arg] = annotated(argument.annotation)
        self.returns[node.name] = annotated(node.returns)
        self.generic_visit(node)
        self.names = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.assign(node.target, annotated(node.annotation))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for part, value in zip(target.elts, node.value.elts, strict=True):
                    self.assign(part, self.type_of(value))
            else:
                self.assign(target, self.type_of(node.value))

    def visit_ListComp(self, node: ast.ListComp) -> None:
        for part in node.generators:
            self.assign(part.target, self.type_of(part.iter))
        self.generic_visit(node)

    def assign(self, target: ast.expr, sections: Sections) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = sections
            self.attributes[target.id] |= sections  # a field of a dataclass
        elif isinstance(target, ast.Attribute):
            self.attributes[target.attr] |= sections

    def visit_Attribute(self, node: ast.Attribute) -> None:
        for section in self.type_of(node.value):
            if node.attr in section.model_fields:
                self.options.add((section, node.attr))
        self.generic_visit(node)

    def type_of(self, node: ast.expr) -> Sections:
        if isinstance(node, ast.Name):
            return self.names.get(node.id, NONE)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            return self.returns.get(name, NONE)
        if not isinstance(node, ast.Attribute):
            return NONE
        owners = self.type_of(node.value)
        of_owners = [o.model_fields[node.attr] for o in owners if node.attr in o.model_fields]
        if of_owners:
            return frozenset(s for field in of_owners for s in sections_of(field.annotation))
        return NONE if owners else self.attributes.get(node.attr, NONE)


def options_read() -> set[tuple[type[Section], str]]:
    """Every option that the package reads, other than to check it."""
    files = sorted((ROOT / "seq2seq_cli").rglob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    attributes: dict[str, Sections] = defaultdict(frozenset)
    returns: dict[str, Sections] = {}
    for _ in range(2):  # the second time with the attributes and results of every file
        reads: set[tuple[type[Section], str]] = set()
        for tree in trees:
            visitor = Reads(attributes, returns)
            visitor.visit(tree)
            reads |= visitor.options
    return reads


def options(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """The full name of every option, and the section that has it."""
    for name, field in section.model_fields.items():
        inner = list(sections_of(field.annotation))
        for part in inner:
            yield from options(part, f"{prefix}{name}.")
        if not inner:
            yield prefix + name, section
