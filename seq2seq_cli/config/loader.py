"""From a YAML file and `--set` options to a `Config`, or one message that names every mistake."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from seq2seq_cli.config.safe_yaml import MOST_BYTES, Dumper, parse_yaml
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.files import read_bounded

_MOST_MISTAKES = 20  # that are named

# What an override takes the place of: the other way of naming a text.
_INSTEAD = {
    ("data", corpus, name): others
    for corpus in ("train", "valid")
    for name, others in (("pairs", ("src", "tgt")), ("src", ("pairs",)), ("tgt", ("pairs",)))
}

Location = tuple[str | int, ...]

# Sections for which one value may stand, as that of all their options.
_SHORT: dict[Location, tuple[str, ...]] = {
    ("model", "layers"): ("encoder", "decoder"),
    ("tokenizer", "normalization"): ("src", "tgt"),
}


def load_config(path: Path, overrides: Sequence[str] = (), *, is_given_now: bool = False) -> Config:
    """Read a YAML file, apply `section.key=value` overrides and check the result.

    Raises UserError naming, for every mistake at once, the line, the option, and the nearest valid
    name or the valid choices. With `is_given_now` it is a user's and not a run folder's: its paths
    may have `~` and `$HOME`, and its text files must be there.
    """
    tree, node = _read_yaml(path)
    places: dict[Location, str] = {}
    for override in overrides:
        location = _apply_override(tree, override)
        places[location] = f"--set {override}"
    try:
        return Config.model_validate(tree, context={"is_given_now": is_given_now})
    except ValidationError as error:
        mistakes: dict[Location, list[str]] = {}
        for found in error.errors():
            if found["type"] != "default_factory_not_called":  # another option's mistake
                location = _option(found["loc"])
                mistakes.setdefault(location, []).append(_describe(found, location))
    named = list(mistakes.items())[:_MOST_MISTAKES]
    placed = [(_place(at, node, places), "; or ".join(what)) for at, what in named]
    raise UserError(_message(path, placed, len(mistakes)))


def config_yaml(config: Config) -> str:
    """Every option, defaults included; `load_config` reads it back."""
    tree = config.model_dump(mode="json")
    return yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def flatten(section: BaseModel, prefix: str = "") -> dict[str, Any]:
    """`{"model.d_model": 256, ...}`: every option by its full name."""
    flat: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def differing_options(one: Config, other: Config) -> dict[str, tuple[str, str]]:
    """Both values, as YAML, of every option that has two."""
    values, others = flatten(one), flatten(other)
    return {
        name: (yaml_text(values.get(name)), yaml_text(others.get(name)))
        for name in dict.fromkeys([*values, *others])
        if values.get(name) != others.get(name)
    }


def _read_yaml(path: Path) -> tuple[dict[str, Any], yaml.Node | None]:
    """The file as plain data, and as nodes, which know their lines."""
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a config file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    try:
        tree, node = parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        is_worded = type(error) is yaml.MarkedYAMLError  # by safe_yaml
        what = error.problem if is_worded else f"this is not YAML ({error.problem})"
        raise UserError(f"{path}{line}: {what}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: this is not YAML ({str(error).splitlines()[0]})") from None
    tree = {} if node is None else tree
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a config is a mapping of sections ({_names(Config)})")
    return tree, node


def _apply_override(tree: dict[str, Any], override: str) -> Location:
    """Write `section.key=value` into the tree; the value is read as YAML."""
    name, equals, text = override.partition("=")
    parts = tuple(name.strip().split("."))
    if not equals or not all(parts) or not name.isprintable():
        raise UserError(f"--set {short(override)}: write it as section.key=value")
    try:
        value, _ = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"--set {short(override)}: the value is not YAML") from None
    section = tree
    for depth, part in enumerate(parts[:-1], 1):
        inner = section.get(part)
        if parts[:depth] in _SHORT and isinstance(inner, int | str):
            inner = dict.fromkeys(_SHORT[parts[:depth]], inner)
        elif inner is None:
            inner = {}
        elif not isinstance(inner, dict):
            raise UserError(
                f"--set {short(override)}: {'.'.join(parts[:depth])} has no options of its own"
            )
        section[part] = dict(inner)  # one that an alias stands for stays as it is elsewhere
        section = section[part]
    section[parts[-1]] = value
    if value is not None and parts in _INSTEAD:
        for other in _INSTEAD[parts]:
            section.pop(other, None)
    return parts


def _option(location: Location) -> Location:
    """Without what pydantic appends for each alternative of a type; an index of a list stays."""
    section: type[BaseModel] | None = Config
    for depth, part in enumerate(location):
        if section is None:
            return location[:depth] + tuple(n for n in location[depth:] if isinstance(n, int))
        section = _sections(section).get(str(part))
    return location


def _place(
    location: Location, node: yaml.Node | None, overrides: dict[Location, str]
) -> tuple[int | str | None, str]:
    """The line (or the `--set`) and the full name of an option."""
    name = short(".".join(str(part) for part in location))
    for changed, override in reversed(overrides.items()):
        common = min(len(changed), len(location))
        if common and changed[:common] == location[:common]:
            return short(override), name
    return _line(location, node), name


def _line(location: Location, node: yaml.Node | None) -> int | None:
    """The line of an option, or of the section in which it is missing; from 1."""
    line = None
    for part in location:
        if not isinstance(node, yaml.MappingNode):
            break
        entry = next((pair for pair in node.value if pair[0].value == part), None)
        if entry is None:
            break
        line = entry[0].start_mark.line + 1
        node = entry[1]
    return line


def _message(
    path: Path, mistakes: Iterable[tuple[tuple[int | str | None, str], str]], count: int
) -> str:
    lines = []
    for (place, name), what in mistakes:
        where = f"line {place}: " if isinstance(place, int) else f"{place}: " if place else ""
        option = f"{name}: " if name else ""
        lines.append(f"{where}{option}{what}")
    if len(lines) == 1:
        return f"{path}, {lines[0]}" if lines[0].startswith("line ") else f"{path}: {lines[0]}"
    named = "" if len(lines) == count else f"; the first {len(lines)} are"
    return "\n".join([f"{path} has {count} mistakes{named}", *(f"  {line}" for line in lines)])


def _describe(found: Any, location: Location) -> str:
    """One mistake in our words, from one entry of pydantic's error list."""
    kind, given, limits = found["type"], found["input"], found.get("ctx", {})
    shown = _shown(given)
    if kind == "extra_forbidden":
        return _unknown_option(location)
    if kind == "literal_error":
        return _wrong_choice(shown, given, re.findall("'([^']+)'", limits["expected"]))
    if kind == "value_error":
        return str(limits["error"])
    if kind == "missing":
        return "this option is required"
    wanted = _WANTED.get(kind)
    if wanted is None:
        return f"{found['msg']}, not {shown}"
    return f"must be {wanted.format(**limits)}, not {shown}"


def _shown(given: Any) -> str:
    try:
        return short(repr(given) if isinstance(given, str) else yaml_text(given))
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        return "what is given"


_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "model_type": "a section (a mapping of options)",
    "model_attributes_type": "a section (a mapping of options)",
    "dict_type": "a section (a mapping of options)",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
}


def _unknown_option(location: Location) -> str:
    section = _section_at(location[:-1])
    name = str(location[-1])
    near = difflib.get_close_matches(name, section.model_fields, n=1, cutoff=0.5)
    if near:
        full = ".".join([*map(str, location[:-1]), near[0]])
        return f"unknown option, did you mean {full}?"
    elsewhere = [full for full in _all_options(Config) if full.split(".")[-1] == name]
    if elsewhere:
        return f"unknown option, did you mean {elsewhere[0]}?"
    return f"unknown option (valid: {_names(section)})"


def _wrong_choice(shown: str, given: Any, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(given), choices, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return f"must be one of {', '.join(choices)}, not {shown}{hint}"


def _section_at(location: Location) -> type[BaseModel]:
    section: type[BaseModel] = Config
    for part in location:
        section = _sections(section)[str(part)]
    return section


def _sections(section: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The sub-sections of a section by name; `Corpus | None` counts as `Corpus`."""
    found = {}
    for name, field in section.model_fields.items():
        for candidate in (field.annotation, *get_args(field.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                found[name] = candidate
    return found


def _all_options(section: type[BaseModel], prefix: str = "") -> list[str]:
    inner = _sections(section)
    names = [prefix + name for name in section.model_fields if name not in inner]
    for name, part in inner.items():
        names += _all_options(part, f"{prefix}{name}.")
    return names


def _names(section: type[BaseModel]) -> str:
    return ", ".join(section.model_fields)


def yaml_text(value: Any) -> str:
    """A value as it would be written in a config, on one line."""
    if not isinstance(value, float):
        value = TypeAdapter(Any).dump_python(value, mode="json", fallback=str)
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1_000_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()
