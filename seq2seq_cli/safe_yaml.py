"""YAML from anywhere: plain data with its lines, small however it is written, nothing executed."""

import itertools
import re
from typing import Any

import yaml

from seq2seq_cli.errors import short

MOST_BYTES = 1 << 17  # of a config, aliases written out


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Plain data, and the nodes, which know their lines.

    Raises yaml.YAMLError, and ValueError or RecursionError for what Python cannot hold.
    """
    loader = _Loader(text)
    node = loader.get_single_node()
    if node is None:
        return None, None
    if _size(node, {}) > MOST_BYTES:
        raise yaml.YAMLError("its aliases unfold to more than a config needs")
    return loader.construct_document(node), node


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Of what a node stands for when its aliases are written out; too much if it holds itself."""
    if id(node) not in known:
        known[id(node)] = MOST_BYTES
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = itertools.chain.from_iterable(node.value)
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        known[id(node)] = 1 + own + sum(_size(part, known) for part in parts)
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    """Safe YAML with `3e-4` as a number (YAML 1.2), and no key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"{short(repr(key_node.value))} is not an option's name",
                    problem_mark=key_node.start_mark,
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode("utf-8")  # "\ud800" stands for half a character
            return value
        except (ValueError, LookupError, AttributeError):  # PyYAML's, of `!!int ""`, `!!bool x`
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{short(repr(node.value))} cannot be read as {kind}",
                problem_mark=node.start_mark,
            ) from None


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class Dumper(yaml.SafeDumper):
    """Puts quotes around text that `_Loader` would take for a number."""


Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
