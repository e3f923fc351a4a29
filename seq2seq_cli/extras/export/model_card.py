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

# Names on the hub. It has none for other scores: its wer counts the edits of words.
_HUB_METRICS = ("perplexity", "accuracy", "bleu", "chrf", "ter", "exact_match", "cer")


def model_card(
    run: RunFolder,
    config: Config,
    statistics: TextStatistics | None,
    library: str,
    usage: str,
    license_name: str,
    which: str = "best",
) -> str:
    """Return the card of a run's model as Markdown with YAML front matter.

    `library` is the name on the hub of the library that reads the model; `usage` shows code and
    names what the format cannot do; `which` names the weights, as --model does. Raises UserError if
    the license is no identifier, or if a file of the run is damaged.
    """
    if not re.fullmatch(r"[a-z0-9.+-]{1,60}", license_id := license_name.strip().lower()):
        raise UserError(
            f"--license {short(license_name)}: write an identifier of the Hugging Face Hub, "
            "such as apache-2.0, mit or cc-by-sa-4.0; other stands for any other license"
        )
    manifest = read_json(run.manifest) if run.manifest.exists() else {}
    manifest = portable_record(manifest, config) if isinstance(manifest, dict) else {}
    origin = _Origin.of(manifest)
    others = "the imported model and the training data" if origin.imported else "the training data"
    terms = f"`{license_id}`. The licenses of {others} may restrict it further."
    if license_id == "unknown":  # an identifier of the hub
        terms = (
            "Unknown: no license was given when the model was exported. "
            f"The licenses of {others} may restrict it too."
        )
    config = portable_config(config)
    validated = run.with_weights(which, read_model_scores)
    scores = {} if validated is None else validated.scores
    parts = (
        f"---\n{_front_matter(config, scores, license_id, library)}---",
        _introduction(config, manifest, origin),
        f"## Use\n\n{usage.strip()}",
        f"## Training data\n\n{_training_data(config, statistics, origin)}",
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
    metrics = [name for score in scores if (name := score.rstrip("+")) in _HUB_METRICS]
    fields: dict[str, Any] = {
        "language": list(dict.fromkeys(code.split("-")[0].lower() for code in languages or ())),
        "license": license_name,
        "library_name": library,
        "pipeline_tag": "translation" if languages else None,
        "tags": ["seq2seq-cli", "transformer", "encoder-decoder"],
        "metrics": list(dict.fromkeys(metrics)),
    }
    return "".join(f"{name}: {yaml_text(value)}\n" for name, value in fields.items() if value)


class _Origin(NamedTuple):
    """Names of the models that a model was made from, and how."""

    imported: str | None
    parent: str | None  # that it was fine-tuned or trimmed from
    verb: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "_Origin":
        records = (manifest.get(name) for name in ("imported", "trimmed"))
        imported, trimmed = (r.get("from") if isinstance(r, dict) else None for r in records)
        names = (imported, manifest.get("from"), trimmed)
        imported, tuned, trimmed = (f"`{short(str(name))}`" if name else None for name in names)
        verb = f"imported from {imported}" if imported else "trained"
        verb = f"fine-tuned from {tuned}" if tuned else verb
        verb = f"made from {trimmed} by reducing its vocabulary" if trimmed else verb
        return cls(imported, trimmed or tuned, verb)


def _introduction(config: Config, manifest: Mapping[str, Any], origin: _Origin) -> str:
    languages = languages_of(config.data)
    title = "A Transformer from text to text"
    what = "turns a line of text into another one, as in its training text"
    if languages is not None:
        title = " to ".join(map(language_name, languages))
        src, tgt = (f"{language_name(code)} (`{code}`)" for code in languages)
        back = ", and back" if config.data.direction == "both" else ""
        what = f"translates {src} into {tgt}{back}, sentence by sentence"
    model, version = config.model, manifest.get("seq2seq_cli", "unknown")
    derivation = ""
    if origin.imported and origin.parent:
        derivation = f" {origin.parent} derives from the imported {origin.imported}."
    return (
        f"# {title}\n\n"
        f"An encoder-decoder Transformer that {what}. It has {model.layers.encoder} encoder and "
        f"{model.layers.decoder} decoder layers with d_model {model.d_model}, and was "
        f"{origin.verb} with seq2seq-cli {version}; this card was written by version "
        f"{__version__}.{derivation}"
    )


def _training_data(config: Config, statistics: TextStatistics | None, origin: _Origin) -> str:
    if not config.data.train:
        return f"The model was {origin.verb}: the text that it was trained on is not known here."
    pairs = None if statistics is None else statistics.pairs
    if pairs is not None and config.data.direction == "both":
        pairs //= 2
    count = "an unknown number of pairs" if pairs is None else f"{pairs:,} pairs"
    verb = "Fine-tuned" if origin.parent else "Trained"
    lines = [f"{verb} on {count} from:\n", *_files(config.data.train)]
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
    search = "greedy search" if config.decoding.width == 1 else "beam search"
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
    limits = (
        "The model knows only what its training text shows: other subjects, styles and spellings "
        "give worse translations, and so does text in another language. It may omit or invent "
        "things, and repeats biases of its training text. Its translations were not evaluated "
        "beyond the scores above."
    )
    if statistics is not None:
        tokens = statistics.src_tokens
        limits += (
            f"\n\nHalf of its training sources have at most {tokens.p50:,} tokens, 99% at most "
            f"{tokens.p99:,}, the longest {tokens.max:,}; longer sentences are translated worse."
        )
    return limits
