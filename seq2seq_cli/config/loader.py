"""Builds a `Config` from YAML and `--set` options, or one message that lists all mistakes."""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from seq2seq_cli.config.safe_yaml import MOST_BYTES, Dumper, parse_yaml
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import SIDES, OnResume, Section, inner_sections, without_quotes
from seq2seq_cli.config.validation import ValidationConfig
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.files import read_bounded

_MOST_MISTAKES = 20  # listed in one message

Location = tuple[str | int, ...]

# The two ways of giving a corpus: an override of one replaces the other.
_REPLACED_BY_OVERRIDE = {
    "pairs": ("src", "tgt"),
    "src": ("pairs", "fields"),
    "tgt": ("pairs", "fields"),
}

# Names in other toolkits (docs/coming_from.md).
_ELSEWHERE = {
    "training.lr": "learning_rate",
    "training.tokens_per_batch": "batch_size batch_type max_tokens",
    "training.gradient_accumulation": "update_freq accum_count batch_multiplier",
    "training.precision": "fp16 bf16 amp",
    "training.save_every": "save_interval_updates save_steps",
    "training.max_grad_norm": "clip_norm clip_grad_norm",
    "training.max_epochs": "epochs",
    "training.max_steps": "updates train_steps",
    "model.layers": "num_layers",
    "model.d_model": "hidden_size embedding_dim",
    "model.d_ff": "ff_size",
    "model.heads": "num_heads",
    "decoding.beam_size": "beam num_beams",
    "decoding.length_penalty": "lenpen",
    "training.device": "gpu gpus",
}

# Parts of PyYAML's messages, and what users can do.
_YAML_HINTS = {
    "'\\t'": "indent with spaces, not with tabs",
    "block end": "this line is indented differently from its neighbors",
    "mapping values": "a space is missing after a colon, or the line is indented too far",
}

# Sections that may be given as a single value for all their options.
_SHORTHANDS: dict[Location, tuple[str, ...]] = {
    ("model", "layers"): ("encoder", "decoder"),
    ("tokenizer", "kind"): SIDES,
    ("tokenizer", "vocab_size"): SIDES,
    ("tokenizer", "normalization"): SIDES,
    ("training", "subword_sampling"): SIDES,
}


def load_config(
    path: str | Path, overrides: Iterable[str] = (), *, is_given_now: bool = False
) -> Config:
    """Read a YAML file, apply `section.key=value` overrides and validate the result.

    Raises a UserError that lists all mistakes, each with its line, its option, and the closest
    valid name or the valid choices. `is_given_now` marks a config that the user passes rather than
    one from a run folder: `~` and `$HOME` in its paths are expanded, and its text files must exist.
    """
    path, given = Path(path), strings("overrides", overrides)
    tree, node = _read_yaml(path)
    overridden = {_apply_override(tree, override): f"--set {override}" for override in given}
    try:
        context = {"is_given_now": is_given_now, "folder": path.parent}
        config = Config.model_validate(tree, context=context)
    except ValidationError as error:
        mistakes = _mistakes(error, tree)
    else:
        if is_given_now and len(config_yaml(config).encode("utf-8")) > MOST_BYTES // 2:
            raise UserError(
                f"{path} with every value written out, as a run keeps it, has more than "
                f"{MOST_BYTES // 2:,} bytes: shorten its lists"
            )
        return config
    lines = [
        f"{_place(location, node, overridden)}{'; or '.join(messages)}"
        for location, messages in list(mistakes.items())[:_MOST_MISTAKES]
    ]
    if len(mistakes) == 1:
        start = ", " if lines[0].startswith("line ") else ": "
        raise UserError(f"{path}{start}{lines[0]}")
    limit = "" if len(lines) == len(mistakes) else f"; the first {len(lines)} are"
    raise UserError("\n  ".join([f"{path} has {len(mistakes)} mistakes{limit}", *lines]))


def validation_of(overrides: Iterable[str]) -> ValidationConfig:
    """Return the section `validation` of overrides, where there is no config."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _apply_override(tree, override)
    try:
        return ValidationConfig.model_validate(tree.get("validation", {}))
    except ValidationError as error:
        location = ("validation", *error.errors()[0]["loc"])
        message = _describe(error.errors()[0], location)
        raise UserError(f"--set {'.'.join(map(str, location))}: {message}") from None


def strings(name: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return an argument's strings. Raises TypeError for a single one, not to take its letters."""
    if isinstance(given, str):
        raise TypeError(f"{name} is a list; a single one is [{short(repr(given))}]")
    return tuple(given)


def _mistakes(error: ValidationError, tree: dict[str, Any]) -> dict[Location, dict[str, None]]:
    """Return each option with its different messages; a list of valid options is in one of them."""
    mistakes: dict[Location, dict[str, None]] = {}
    listed = set()
    for details in error.errors():
        if details["type"] != "default_factory_not_called":  # follows from another mistake
            location = _option(details["loc"], tree)
            message = _describe(details, location)
            without_list = message.partition(" (valid: ")[0]
            is_repeated = without_list != message and message in listed
            listed.add(message)
            mistakes.setdefault(location, {})[without_list if is_repeated else message] = None
    return mistakes


def config_yaml(config: Config) -> str:
    """Return a config as YAML, defaults included; `load_config` reads it back."""
    return _dumped(config.model_dump(mode="json"))


def flatten(section: Section) -> dict[str, Any]:
    """Return every option by its full name: `{"model.d_model": 256, ...}`."""
    return {full: getattr(part, name) for full, part, name in _options(section)}


def resume_policies(config: Config) -> dict[str, OnResume]:
    """Return whether each option, by its full name, may change when a run is resumed."""
    return {full: section.resume_policy(name) for full, section, name in _options(config)}


def _options(section: Section, prefix: str = "") -> Iterator[tuple[str, Section, str]]:
    """Yield the full name of every option, its section, and its name in the section."""
    for name in type(section).model_fields:
        inner = inner_sections(getattr(section, name))
        for number, part in inner.items():
            yield from _options(part, f"{prefix}{name}{number}.")
        if not inner:
            yield prefix + name, section, name


def differing_options(a: Config, b: Config) -> dict[str, tuple[str, str]]:
    """Return both values, as YAML, of every option in which two configs differ."""
    flat_a, flat_b = flatten(a), flatten(b)
    return {
        name: (yaml_text(flat_a.get(name)), yaml_text(flat_b.get(name)))
        for name in dict.fromkeys([*flat_a, *flat_b])
        if flat_a.get(name) != flat_b.get(name)
    }


def _read_yaml(path: Path) -> tuple[dict[str, Any], yaml.Node | None]:
    """Return the file as plain data and as YAML nodes, which carry line numbers."""
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
        problem = str(error.problem)
        if type(error) is not yaml.MarkedYAMLError:  # or raised by safe_yaml
            hints = (hint for part, hint in _YAML_HINTS.items() if part in problem)
            problem = f"this is not valid YAML ({next(hints, problem)})"
        raise UserError(f"{path}{line}: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: this is not valid YAML ({str(error).splitlines()[0]})") from None
    tree = {} if node is None else tree
    if not isinstance(tree, dict):
        raise UserError(
            f"{path}: a config must be a mapping of options ({', '.join(Config.model_fields)})"
        )
    return tree, node


def _apply_override(tree: dict[str, Any], override: str) -> Location:
    """Write `section.key=value` into the tree, the value parsed as YAML; return its location."""
    name, equals, text = override.partition("=")
    parts = tuple(name.strip().split("."))
    if not equals or not all(parts) or not name.isprintable():
        raise UserError(f"--set {short(override)}: write it as section.key=value")
    value = yaml_value(text, f"--set {short(override)}")
    section: Any = tree
    for depth, part in enumerate(parts, 1):
        key: Any = part
        if isinstance(section, list):
            if not (part.isascii() and part.isdigit() and int(part) < len(section)):
                count, full = len(section), ".".join(parts[: depth - 1])
                raise UserError(
                    f"--set {short(override)}: {full} is a list of {count:,}; write {full}.0 for "
                    "the first"
                )
            key = int(part)
        if depth == len(parts):
            section[key] = value
            break
        inner = section[key] if isinstance(section, list) else section.get(key)
        if parts[:depth] in _SHORTHANDS and isinstance(inner, int | float | str):
            inner = dict.fromkeys(_SHORTHANDS[parts[:depth]], inner)
        elif inner is None:
            inner = {}
        elif not isinstance(inner, dict | list):
            raise UserError(
                f"--set {short(override)}: {'.'.join(parts[:depth])} is an option, not a section"
            )
        section[key] = inner.copy()  # YAML aliases may share one mapping
        section = section[key]
    if value is not None and parts[0] == "data" and len(parts) > 2:
        for replaced in _REPLACED_BY_OVERRIDE.get(parts[-1], ()):
            section.pop(replaced, None)
    return parts


def _option(location: Location, tree: Any) -> Location:
    """Drop what pydantic appends for each alternative of a union, and the number of a lone corpus.

    Indices of lists that the user has written stay. A single value for both sides has one name.
    """
    kept: list[str | int] = []
    for part in location:
        if tuple(kept) in _SHORTHANDS and not isinstance(tree, dict):
            break
        is_section = _section_at(kept) is not None
        if isinstance(part, int):
            if not is_section or isinstance(tree, list):
                kept.append(part)
            tree = tree[part] if isinstance(tree, list) and part < len(tree) else tree
        elif is_section:
            kept.append(part)
            tree = tree.get(part) if isinstance(tree, dict) else None
    return tuple(kept)


def _place(location: Location, node: yaml.Node | None, overridden: dict[Location, str]) -> str:
    """Return the line (or the `--set` option) and the full name of an option, to print before it.

    An option that is missing is placed at its section, and at nothing if that is missing too.
    """
    name = short(".".join(str(part) for part in location))
    place = f"line {line}" if (line := _line(location, node)) is not None else None
    for changed, override in overridden.items():  # the last one that concerns it
        common = min(len(changed), len(location))
        if common and changed[:common] == location[:common]:
            place = short(override)
    return "".join(f"{part}: " for part in (place, name) if part)


def _line(location: Location, node: yaml.Node | None) -> int | None:
    """Return the 1-based line of an option, or of the section in which it is missing."""
    line = None
    for part in location:
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}  # what begins each, and its value
        if isinstance(node, yaml.SequenceNode):
            entries = {str(number): (each, each) for number, each in enumerate(node.value)}
        elif isinstance(node, yaml.MappingNode):
            entries = {name.value: (name, value) for name, value in node.value}
        if str(part) not in entries:
            break
        start, node = entries[str(part)]
        line = start.start_mark.line + 1
    return line


def _describe(details: Any, location: Location) -> str:
    """Describe one mistake, given as an entry of pydantic's list of errors."""
    error_type, given, context = details["type"], details["input"], details.get("ctx", {})
    try:
        value = short(repr(given) if isinstance(given, str) else yaml_text(given))
    except (ValueError, RecursionError):  # numbers of thousands of digits, deeply nested lists
        value = "the given value"
    if error_type == "extra_forbidden":
        return _unknown_option(location)
    if error_type == "literal_error":
        choices = re.findall("'([^']+)'", context["expected"])
        wanted = {"gpu": "cuda", "gpus": "cuda", "fp16": "auto"}.get(str(given), str(given))
        similar = difflib.get_close_matches(wanted, choices, n=1)
        hint = f", did you mean {similar[0]}?" if similar else ""
        return f"must be one of {', '.join(choices)}, not {value}{hint}"
    if error_type == "value_error":
        return str(context["error"])
    if error_type == "missing":
        return "this option is required"
    expected = _EXPECTED.get(error_type)
    if expected is None:
        return f"{details['msg']}, not {value}"
    hint = without_quotes(given) if error_type.startswith(("int", "float", "bool")) else ""
    return f"must be {expected.format(**context)}, not {value}{hint}"


_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type"), "a section (a mapping of options)"
    ),
    "finite_number": "a finite number",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
}


def _unknown_option(location: Location) -> str:
    section, name = _section_at(location[:-1]), str(location[-1])
    assert section is not None, "pydantic knows it"
    if re.search(r":[^\s/]", name):
        return "unknown option; write a space after the colon"
    suggestions = [full for full, names in _ELSEWHERE.items() if name in names.split()]
    suggestions += [
        ".".join(map(str, (*where, name)))
        for where, other in _sections().items()
        if name in other.model_fields
    ]
    similar = difflib.get_close_matches(name, section.model_fields, n=1, cutoff=0.5)
    suggestions += [".".join([*map(str, location[:-1]), similar_name]) for similar_name in similar]
    if suggestions:
        return f"unknown option, did you mean {suggestions[0]}?"
    return f"unknown option (valid: {', '.join(section.model_fields)})"


@functools.cache
def _sections() -> dict[Location, type[BaseModel]]:
    """Return all sections by their locations, without numbers of corpora."""

    def within(annotation: Any, location: Location) -> Iterator[tuple[Location, type[BaseModel]]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield location, annotation
            for name, field in annotation.model_fields.items():
                yield from within(field.annotation, (*location, name))
        for part in get_args(annotation):
            yield from within(part, location)

    return dict(within(Config, ()))


def _section_at(location: Sequence[str | int]) -> type[BaseModel] | None:
    return _sections().get(tuple(part for part in location if isinstance(part, str)))


def yaml_value(text: str, where: str) -> Any:
    """Return what YAML text stands for. Raises UserError, which begins with `where`."""
    try:
        value, _ = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"{where}: the value is not valid YAML") from None
    return value


def yaml_text(value: Any) -> str:
    """Return a value as it would be written in a config, on one line."""
    if not isinstance(value, float):
        value = TypeAdapter(Any).dump_python(value, mode="json", fallback=str)
    text = _dumped(value, default_flow_style=True, width=1_000_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _dumped(tree: Any, **style: Any) -> str:
    return str(yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, **style))
