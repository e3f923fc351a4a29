"""Model cards: the README of an export or of a run that is pushed to a hub (Mitchell et al. 2019).

The front matter is what the Hugging Face hub reads; the sections are for people. Nothing in a card
names a folder of the machine that the run was trained on.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seq2seq_cli import __version__
from seq2seq_cli.config.languages import language_name, languages_of
from seq2seq_cli.config.loader import config_yaml, yaml_text
from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpora
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.export.portable import portable_command, portable_config, portable_record
from seq2seq_cli.files import read_json
from seq2seq_cli.model.weights import read_model_scores
from seq2seq_cli.run_folder import RunFolder

UNKNOWN_LICENSE = "unknown"  # an identifier of the hub
# By the hub's names, of which none is for other scores: its wer counts the edits of words.
_HUB_METRICS = {
    "perplexity": "perplexity",
    "accuracy": "accuracy",
    "bleu": "bleu",
    "chrf": "chrf",
    "chrf++": "chrf",
    "ter": "ter",
    "exact_match": "exact_match",
    "cer": "cer",
}


class CardOptions(NamedTuple):
    """What a card says that the run does not know."""

    library: str  # that the model is for, by the hub's name
    usage: str  # code, and what the format cannot do
    license: str = UNKNOWN_LICENSE
    which: str = "best"  # weights, as --model names them


def model_card(
    run: RunFolder, config: Config, statistics: TextStatistics | None, options: CardOptions
) -> str:
    """Return the card of a run's model as Markdown with YAML front matter.

    Raises UserError if the license is no identifier, or if a file of the run is damaged.
    """
    license_name = options.license.strip().lower()
    if not re.fullmatch(r"[a-z0-9.+-]{1,60}", license_name):
        raise UserError(
            f"--license {short(options.license)}: write an identifier of the Hugging Face hub, "
            "such as apache-2.0, mit or cc-by-sa-4.0; other stands for any other license"
        )
    terms = f"`{license_name}`. The licenses of the training data may restrict it further."
    if license_name == UNKNOWN_LICENSE:
        terms = (
            "Unknown: whoever exported the model has not said under which license it may be used. "
            "The licenses of the training data may restrict it too."
        )
    manifest = read_json(run.manifest) if run.manifest.exists() else {}
    manifest = portable_record(manifest, config) if isinstance(manifest, dict) else {}
    config = portable_config(config)
    validated = read_model_scores(run.weights(options.which))
    scores = {} if validated is None else validated.scores
    parts = (
        f"---\n{_front_matter(config, scores, license_name, options.library)}---",
        _introduction(config, manifest),
        f"## Use\n\n{options.usage.strip()}",
        f"## Training data\n\n{_training_data(config, statistics)}",
        f"## Scores\n\n{_scores(config, scores)}",
        f"## Training\n\n{_training(config, manifest)}",
        f"## License\n\n{terms}",
        f"## Limits\n\n{_limits(statistics)}",
    )
    return "\n\n".join(parts) + "\n"


def _front_matter(
    config: Config, scores: Mapping[Metric, float], license_name: str, library: str
) -> str:
    languages = languages_of(config.data)
    codes = dict.fromkeys(code.split("-")[0].lower() for code in languages or ())
    metrics = [_HUB_METRICS[name] for name in scores if name in _HUB_METRICS]
    fields: dict[str, Any] = {
        "language": list(codes),
        "license": license_name,
        "library_name": library,
        "pipeline_tag": "translation" if languages else None,
        "tags": ["seq2seq-cli", "transformer", "encoder-decoder"],
        "metrics": list(dict.fromkeys(metrics)),
    }
    return "".join(f"{name}: {yaml_text(value)}\n" for name, value in fields.items() if value)


def _introduction(config: Config, manifest: Mapping[str, Any]) -> str:
    languages = languages_of(config.data)
    title = "A Transformer from text to text"
    what = "turns a line of text into another one, as in its training text"
    if languages is not None:
        title = " to ".join(map(language_name, languages))
        src, tgt = (f"{language_name(code)} (`{code}`)" for code in languages)
        back = ", and back" if config.data.direction == "both" else ""
        what = f"translates {src} into {tgt}{back}, sentence by sentence"
    version = manifest.get("seq2seq_cli", "unknown")
    model = config.model
    return (
        f"# {title}\n\n"
        f"An encoder-decoder Transformer that {what}. It has {model.layers.encoder} encoder and "
        f"{model.layers.decoder} decoder layers with d_model {model.d_model}, and was trained with "
        f"seq2seq-cli {version}; this card was written by version {__version__}."
    )


def _training_data(config: Config, statistics: TextStatistics | None) -> str:
    pairs = statistics.pairs if statistics is not None else None
    count = f"{pairs:,} pairs" if pairs is not None else "an unknown number of pairs"
    lines = [f"Trained on {count} from:\n", *_files(config.data.train)]
    if config.data.valid is not None:
        lines += ["\nValidated on:\n", *_files(config.data.valid)]
    return "\n".join(lines)


def _files(corpora: Corpora) -> Iterator[str]:
    for corpus in corpora:
        tag = f", with the tag `{corpus.tag}`" if corpus.tag else ""
        yield f"- {' and '.join(f'`{path.name}`' for path in corpus.paths)}{tag}"


def _scores(config: Config, scores: Mapping[Metric, float]) -> str:
    if not scores:
        return "The file of the weights has no validation scores."
    rows = [f"| {name} | {METRICS[name].unit} | {score:.3f} |" for name, score in scores.items()]
    search = "greedy search" if config.decoding.beam_size == 1 else "beam search"
    search = "sampling" if config.decoding.sampling else search
    table = "\n".join(["| metric | unit | score |", "|---|---|--:|", *rows])
    return f"On the validation text with {search}:\n\n{table}"


def _training(config: Config, manifest: Mapping[str, Any]) -> str:
    facts = []
    if isinstance(command := manifest.get("command"), list):
        facts.append(f"```bash\n{portable_command(command)}\n```\n")
    versions = manifest.get("packages")
    versions = versions if isinstance(versions, dict) else {}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    if begun := manifest.get("begun"):
        facts.append(f"Begun {begun}; Python {manifest.get('python')}, {named}.\n")
    facts.append(f"The config, with every default:\n\n```yaml\n{config_yaml(config)}```")
    return "\n".join(facts)


def _limits(statistics: TextStatistics | None) -> str:
    limits = [
        "The model knows what its training text shows, no more: other subjects, styles and "
        "spellings give worse translations, and so does text in another language. It may omit or "
        "invent things, and repeats biases of its training text. Its "
        "translations were not evaluated beyond the scores above."
    ]
    if statistics is not None:
        tokens = statistics.src_tokens
        limits.append(
            f"Half of its training sources have at most {tokens.p50:,} tokens, 99 % at most "
            f"{tokens.p99:,}, the longest {tokens.max:,}; longer sentences are translated worse."
        )
    return "\n\n".join(limits)
