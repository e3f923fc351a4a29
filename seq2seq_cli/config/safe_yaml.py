"""Safe YAML: plain data with line numbers, bounded in size, and nothing is executed.

ruamel.yaml would replace only the table of scalars and the check of duplicate keys: it does not
bound aliases, reads 010 and dates, and fails with IndexError or KeyError on `!!int ""`. The C
loader of PyYAML takes 1 ms for a config instead of 10, but crashes on 100,000 open brackets.
"""

import itertools
import re
from typing import Any

import yaml

from seq2seq_cli.errors import short

MOST_BYTES = 1 << 19  # of a config with its aliases expanded


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Return plain data, and the YAML nodes, which carry line numbers.

    Raises yaml.YAMLError, and ValueError or RecursionError for values that Python cannot represent.
    """
    loader = _Loader(text)
    node = loader.get_single_node()
    if node is None:
        return None, None
    if _size(node, {}) > MOST_BYTES:
        raise yaml.YAMLError("its aliases expand to more than a config needs")
    return loader.construct_document(node), node


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Size of a node with its aliases expanded; above the limit if the node contains itself."""
    if id(node) not in known:
        known[id(node)] = MOST_BYTES
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = itertools.chain.from_iterable(node.value)
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        known[id(node)] = 1 + own + sum(_size(part, known) for part in parts)
    return known[id(node)]


# Numbers, booleans and null of YAML 1.2's core schema, plus grouped digits (1_000). Scalars that
# only YAML 1.1 converts (010 to 8, 1:30 to 90, no to false) stay text.
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+"
        r"|[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
_TAG = "tag:yaml.org,2002:"
_PATTERNS = {_TAG + kind: re.compile(f"(?:{pattern})$") for kind, (pattern, _) in _SCALARS.items()}


class _Loader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2 does, and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refusal(
                    f"{short(repr(key_node.value))} is not the name of an option", key_node
                )
            if key in seen:
                raise _refusal(f"{key} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            if isinstance(node, yaml.ScalarNode) and (pattern := _PATTERNS.get(node.tag)):
                is_whole = node.tag == _TAG + "float" and _PATTERNS[_TAG + "int"].match(node.value)
                if not is_whole and not pattern.match(node.value):
                    raise ValueError(node.value)  # `!!int 010`, which PyYAML reads as YAML 1.1
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode("utf-8")  # "\ud800" stands for half a character
            return value
        except (ValueError, LookupError, AttributeError):  # PyYAML's, of `!!int ""`, `!!bool x`
            kind = node.tag.rpartition(":")[2]
            raise _refusal(f"{short(repr(node.value))} cannot be read as {kind}", node) from None


def _refusal(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_MERGE = _TAG + "merge"  # <<, which YAML 1.2 has dropped, but people still use
_Loader.yaml_implicit_resolvers = {"<": [(_MERGE, re.compile("<<$"))]}
for _kind, (_, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _kind, _PATTERNS[_TAG + _kind], _first)


class Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` or a YAML 1.1 parser would read as another type."""


_OURS, _THEIRS = _Loader.yaml_implicit_resolvers, yaml.SafeDumper.yaml_implicit_resolvers
Dumper.yaml_implicit_resolvers = {
    first: [*_OURS.get(first, []), *_THEIRS.get(first, [])] for first in {*_OURS, *_THEIRS}
}
