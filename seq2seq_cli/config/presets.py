"""Presets: the options of a first run, by the number of sentence pairs.

`configs/small.yaml`, `medium.yaml` and `large.yaml` are generated from this table, `seq2seq init`
starts from it, and it fills in the options that a config leaves out.
"""

import logging
import textwrap
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from pydantic import ValidationError

from seq2seq_cli.config.loader import yaml_text
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import PresetName
from seq2seq_cli.errors import UserError

logger = logging.getLogger(__name__)

_WIDTH = 100  # characters of a line


class Choice(NamedTuple):
    """The value of an option, and the reason for it."""

    value: Any
    reason: str = ""


Choices = Mapping[str, Choice]  # by full name: model.d_model


class Preset(NamedTuple):
    """Options for corpora of `fewest_pairs` pairs or more, up to the next preset."""

    fewest_pairs: int
    description: str
    choices: Choices


_SMALL: Choices = {
    "model.d_model": Choice(128, "small models translate better with little text (Wu et al. 2021)"),
    "model.heads": Choice(4),
    "model.layers": Choice(4, "layers each in encoder and decoder"),
    "model.d_ff": Choice(256, "twice d_model"),
    "model.dropout": Choice(0.3, "less text needs more dropout"),
    "model.positions": Choice("rotary", "converges faster than sinusoidal"),
    "training.max_steps": Choice(3_200),
    "training.tokens_per_batch": Choice(4_096),
    "training.optimizer": Choice("muon", "converges faster than adamw"),
    "training.lr": Choice(2e-2, "small models tolerate high learning rates"),
    "training.weight_decay": Choice(0.1, "lowers the validation loss with muon"),
    "training.warmup_steps": Choice(300),
    "training.schedule": Choice("cosine", "decays to 0 at the end"),
}

PRESETS: dict[PresetName, Preset] = {
    "small": Preset(0, "up to 75,000 sentence pairs", _SMALL),
    "medium": Preset(
        75_000,
        "75,000 to 500,000 sentence pairs",
        {
            **_SMALL,
            "model.d_model": Choice(192, "trains on two cores in hours"),
            "model.d_ff": Choice(768, "four times d_model"),
            "model.dropout": Choice(0.2, "less text needs more dropout"),
            "training.max_steps": Choice(12_000),
            "training.lr": Choice(1.4e-2, "larger models need lower learning rates"),
            "training.warmup_steps": Choice(500),
        },
    ),
    "large": Preset(
        500_000,
        "more than 500,000 sentence pairs, and a GPU or days of training",
        {
            "model.d_model": Choice(512, "the base model of Vaswani et al. 2017"),
            "model.heads": Choice(8),
            "model.layers": Choice(6, "layers each in encoder and decoder"),
            "model.d_ff": Choice(2_048, "four times d_model"),
            "model.dropout": Choice(0.1),
            "training.max_steps": Choice(100_000),
            "training.tokens_per_batch": Choice(
                25_000, "if memory is short, use half and gradient_accumulation: 2"
            ),
            "training.lr": Choice(1e-3),
            "training.warmup_steps": Choice(4_000, "as in Vaswani et al. 2017"),
            "training.schedule": Choice("inverse_sqrt", "as in Vaswani et al. 2017"),
            "validation.every": Choice(2_000, "epochs are too long"),
            "validation.unit": Choice("steps"),
        },
    ),
}

# The values of `preset: fine_tuning`, which `train --from` chooses; the model is the other run's.
FINE_TUNING: Choices = {
    "training.max_epochs": Choice(5),
    "training.optimizer": Choice("adamw"),
    "training.lr": Choice(1e-4, "lower than for a new model, so that less is forgotten"),
    "training.schedule": Choice("linear", "decays to 0 at the end"),
    "validation.every": Choice(1, "also if it takes longer than an epoch of little text"),
    "validation.patience": Choice(3, "little text is soon learned by heart"),
}

_SIZE = {"d_model", "heads", "layers", "d_ff"}  # the options of the model's size

# Dependent options: if a config sets one of the first, a preset sets none of the second.
_LIMITS = {"max_steps", "max_epochs"}
_LENGTH = _LIMITS | {"warmup_steps"}
_OPTIMIZER = {"optimizer", "lr", "schedule"}
_DEPENDENT = (
    (_LENGTH, _LENGTH),
    (_OPTIMIZER, _OPTIMIZER | {"weight_decay"}),
    ({"every", "unit"}, {"every", "unit"}),
)


def preset_for(num_pairs: int) -> PresetName:
    return [name for name, preset in PRESETS.items() if num_pairs >= preset.fewest_pairs][-1]


def chooses_preset(config: Config) -> bool:
    """Return True if `preset: auto` resolves to a preset: the config does not set the size."""
    return config.preset == "auto" and not config.model.model_fields_set & _SIZE


def with_preset(config: Config, num_pairs: int, begun: Config | None = None) -> Config:
    """Return the config with the values of its preset for the options that it leaves out.

    `auto` is resolved for a training text of this size. A run that has `begun` keeps its values of
    options that may not change in a run, as the preset may have changed since. Raises UserError for
    options that cannot be combined with the preset.
    """
    name, preset = _preset_of(config, num_pairs)
    updated: dict[str, Any] = {"preset": name}
    for section, values in preset.items():
        present = getattr(config, section)
        given = present.model_fields_set
        excluded = _excluded(given)
        taken = {option: value for option, value in values.items() if option not in excluded}
        if begun is not None and begun.preset == name:
            theirs = getattr(begun, section)
            kept = {name for name in taken if present.resume_policy(name) != "free"}
            taken |= theirs.model_dump(include=kept)
        options = present.model_dump(include=given)
        if isinstance(present, ModelConfig) and "layers" in given and "layers" in taken:
            # The config may set one of the two depths only.
            depths = ModelConfig(layers=taken["layers"]).layers.model_dump()
            options["layers"] = depths | present.layers.model_dump(exclude_unset=True)
        try:
            updated[section] = type(present).model_validate(taken | options)
        except ValidationError as error:
            problems = [mistake["msg"].removeprefix("Value error, ") for mistake in error.errors()]
            raise UserError(
                f"section {section} cannot be combined with preset {name}: {'; '.join(problems)}"
            ) from None
    return config.model_copy(update=updated)


def warn_of_defaults(config: Config, num_pairs: int) -> None:
    """Warn of options that `with_preset` does not set because the config sets one of their group.

    Except where the config sets a limit of updates, to which `warmup_steps: auto` adapts.
    """
    name, preset = _preset_of(config, num_pairs)
    for section, values in preset.items():
        given = getattr(config, section).model_fields_set
        excluded = _excluded(given) - (_LENGTH if given & _LIMITS else set())
        left_out = {option: values[option] for option in values if option in excluded - given}
        if left_out:
            logger.warning(
                "with %s in the config, related options have their defaults, not the values of "
                "preset %s; to use the preset's values, also set %s",
                " and ".join(f"{section}.{option}" for option in sorted(excluded & given)),
                name,
                " and ".join(f"{section}.{o}={yaml_text(value)}" for o, value in left_out.items()),
            )


def fine_tuning_defaults(config: Config) -> dict[str, Any]:
    """Return the values of `FINE_TUNING` that `with_preset` gives to a config with this preset."""
    chosen: dict[str, Any] = {}
    for section, values in as_tree(FINE_TUNING).items():
        given = getattr(config, section).model_fields_set
        left_out = given | _excluded(given)
        chosen |= {f"{section}.{name}": values[name] for name in values if name not in left_out}
    return chosen


def _preset_of(config: Config, num_pairs: int) -> tuple[PresetName, dict[str, dict[str, Any]]]:
    """Return the preset of a config and its options; `auto` is chosen by the number of pairs."""
    name = config.preset
    if name == "auto":
        name = preset_for(num_pairs) if chooses_preset(config) else "none"
    if name == "fine_tuning":
        return name, as_tree(FINE_TUNING)
    return name, as_tree(PRESETS[name].choices) if name in PRESETS else {}


def _excluded(given: Set[str]) -> set[str]:
    """Return the options that a preset does not set if these are given."""
    return set().union(*(others for some, others in _DEPENDENT if some & given))


def commented_yaml(head: Sequence[str], choices: Choices, schema: str | None = None) -> str:
    """Return a config with paragraphs and reasons as comments; editors read the JSON `schema`."""
    lines = [f"# yaml-language-server: $schema={schema}"] if schema else []
    for paragraph in head:
        lines += [f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH - 2)]
    for section in Config.model_fields:
        options = [name for name in choices if name.startswith(f"{section}.")]
        lines += ["", f"{section}:"] if options else []
        for name in options:
            value, reason = choices[name]
            option = f"  {name.removeprefix(f'{section}.')}: {yaml_text(value)}"
            line = f"{option}  # {reason}" if reason else option
            if len(line) > _WIDTH:
                lines += [f"  # {part}" for part in textwrap.wrap(reason, _WIDTH - 4)]
                line = option
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def as_tree(choices: Choices) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for name, (value, _) in choices.items():
        section, option = name.split(".")
        tree.setdefault(section, {})[option] = value
    return tree
