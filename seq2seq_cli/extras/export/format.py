"""What an export format is: what it can represent, how a run is written, and how it is used.

A format is a class in a file of this folder, whose instance is the module's `FORMAT`, and a name in
`limits.py: FORMATS`. Importing its module must not import torch: `init` asks for the limits.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import TOKENIZER_KINDS
from seq2seq_cli.files import new_folder, require_new_folder
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.decoding.requests import Ids
    from seq2seq_cli.decoding.translation import Translation
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.model.transformer import Transformer

# Options that do not change what a translation is, and the longest one, which every format knows.
_NOT_SEARCH = (
    *("precision", "engine", "tokens_per_batch", "n_best", "seed", "tag"),
    *("max_len_factor", "max_len_extra"),
)
_MOST_TAGS = 20  # that a README lists


class Source(NamedTuple):
    """A sentence whose translations are compared."""

    text: str
    ids: "Ids"  # with tag and features, without EOS
    longest: int  # tokens of its translation


class Format(ABC):
    """A format that a run can be exported to."""

    name: ClassVar[str]  # in --format
    library: ClassVar[str]  # that reads it, by its name on the Hugging Face hub
    max_positions: ClassVar[int]  # of a source with EOS, and of a target with BOS
    needs_sentencepiece: ClassVar[bool] = False  # on both sides
    is_for_imported: ClassVar[bool] = False  # whether it knows imported vocabularies only
    has_tags: ClassVar[bool] = True  # whether every source may have a tag of its own
    has_min_length: ClassVar[bool] = True  # of translations
    # The options of section `model` that it knows, with their values; None stands for all values,
    # but `limits` may look at them. Options that are not here are unknown; these are known to all.
    model_options: ClassVar[Mapping[str, Collection[object] | None]] = {
        **dict.fromkeys(("d_model", "heads", "layers", "d_ff", "dropout", "attention_dropout")),
        **dict.fromkeys(("activation_dropout", "attention_bias", "output_bias", "tie_embeddings")),
        **dict.fromkeys(("norm_epsilon", "position_base", "ngram_buckets", "ngram_dropout")),
        "norm": ("pre", "post"),
        "attention_scale": ("sqrt", "none", "temperature"),
        "rotary_cross_attention": (False,),
        "ngrams": (1,),
    }
    # The search options of the other program by the names of `decoding`, first those that have the
    # same name in several programs.
    search_options: ClassVar[Mapping[str, str]] = {
        name: name for name in ("length_penalty", "repetition_penalty", "no_repeat_ngram_size")
    }
    tag_usage: ClassVar[str]  # Markdown: how to give a tag, and features
    feature_usage: ClassVar[str]

    def limits(self, config: Config) -> str | None:
        """Return the reason why the format cannot represent a model of this config, or None."""
        if self.needs_sentencepiece and not has_imported_kind(config):
            for kind in (config.tokenizer.kind.src, config.tokenizer.kind.tgt):
                if not TOKENIZER_KINDS[kind].is_sentencepiece:
                    return f"tokenizer.kind {kind} is not SentencePiece's"
        return config.model.unknown_option(self.model_options)

    def limits_of_model(self, model: "Transformer") -> str | None:
        """Return the first part of a model that `write` cannot write, or None."""
        from seq2seq_cli.decoding.engines.capabilities import unknown_part
        from seq2seq_cli.decoding.engines.choice import differs_from_c
        from seq2seq_cli.model.layers import ACTIVATIONS

        known = self.model_options["activation"] or ()
        makers = [make for name, make in ACTIVATIONS.items() if name in known]
        if part := unknown_part(model, [type(make()) for make in makers]):
            return part
        return "its equations have been edited" if differs_from_c(model) else None

    def limits_of_run(self, translator: "Translator") -> str | None:
        """Return the reason why the format cannot represent this model, or None."""
        return self.limits_of_model(translator.model)

    def compared_model(self, model: "Transformer") -> "Transformer":
        """Return the model whose translations the other program gives."""
        return model

    @abstractmethod
    def write(self, translator: "Translator", folder: Path) -> None:
        """Write everything but the README to a folder."""

    @abstractmethod
    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code for the README that uses the model, and what it cannot do."""

    @abstractmethod
    def source_ids(self, folder: Path, lines: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        """Return the ids here of what the other program makes of lines, without EOS."""

    @abstractmethod
    def translate(self, folder: Path, sources: list[Source], tokenizers: Tokenizers) -> list[str]:
        """Return greedy translations by the other program in fp32, in the form of `shown`."""

    def shown(self, translation: "Translation") -> str:
        """Return a translation of this program as `translate` returns it: here as tokens."""
        return " ".join(translation.tokens)

    def compared_search(self, decoding: DecodingConfig) -> dict[str, Any]:
        """Return options of the greedy search that `translate` is compared with."""
        return {}

    def check_output(self, output: Path) -> None:
        """Raise UserError if the output exists; an empty folder may."""
        require_new_folder(output)

    def require(  # noqa: B027 (most formats need nothing)
        self, config: Config, tokenizers: Tokenizers
    ) -> None:
        """Raise UserError if the config does not say what the format needs."""

    def opened(self, output: Path, config: Config) -> AbstractContextManager[Path]:
        """Give a folder to write to, which becomes the output if the block succeeds."""
        return new_folder(output)

    def search_of(self, options: DecodingConfig) -> dict[str, Any]:
        """Return the search options that are not defaults, by the other program's names."""
        given, known = _given(options), self.search_options
        return {theirs: given[ours] for ours, theirs in known.items() if ours in given}

    def length_limits(self, options: DecodingConfig, length: str) -> dict[str, str]:
        """Return Python code for the greatest and least length of a translation in tokens."""
        shortest = f"int({options.min_len_factor} * {length}) + {options.min_len_extra}"
        return {
            "longest": f"int({options.max_len_factor} * {length}) + {options.max_len_extra}",
            "shortest": shortest if options.min_len_factor or options.min_len_extra else "0",
        }

    def notes(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return what the README says of unsupported search options, tags and features."""
        known, notes = {*self.search_options, *_NOT_SEARCH}, ""
        known |= {"min_len_factor", "min_len_extra"} if self.has_min_length else set()
        known |= {"sampling"} if "temperature" in known else set()
        options = config.decoding
        if unknown := [f"`decoding.{name}`" for name in _given(options) if name not in known]:
            notes += f"\nUnsupported options of the run: {', '.join(unknown)}.\n"
        default = [options.tag] if options.tag else []
        if tags := ", ".join(f"`{t}`" for t in dict.fromkeys([*config.train_text.tags, *default])):
            always = f" The run puts `{options.tag}` before every line." if default else ""
            notes += f"\nThe model knows the tags {tags}.{always} {self.tag_usage}\n"
        elif symbols := possible_tags(config, tokenizers):
            notes += (
                f"\nThe vocabulary has the symbols {symbols}, which may be tags. {self.tag_usage}\n"
            )
        if features := ", ".join(f"`{symbol}`" for symbol in tokenizers.src.features):
            notes += f"\nThe model knows features of a source: {features}. {self.feature_usage}\n"
        return notes


def possible_tags(config: Config, tokenizers: Tokenizers) -> str:
    """Return a list of the symbols in the source vocabulary, if the training text is not known."""
    if config.data.train:
        return ""
    symbols = tokenizers.src.user_defined_symbols()  # of a run that was imported or trimmed
    listed = ", ".join(f"`{symbol}`" for symbol in symbols[:_MOST_TAGS])
    more = len(symbols) - _MOST_TAGS
    return f"{listed} and {more:,} more" if more > 0 else listed


def has_imported_kind(config: Config) -> bool:
    """Return True if both vocabularies were imported with a model."""
    return config.tokenizer.kind.src == config.tokenizer.kind.tgt == "spm_vocab"


def is_imported(tokenizers: Tokenizers) -> bool:
    """Return True if both vocabularies were imported with a model."""
    return all(tokenizer.kind == "spm_vocab" for tokenizer in tokenizers)


def _given(options: DecodingConfig) -> dict[str, Any]:
    defaults = DecodingConfig().with_search()
    unused = set() if options.sampling else {"temperature", "top_k", "top_p"}
    if options.length_penalty_formula != "power":  # the number has another meaning then
        unused.add("length_penalty")
    return {
        name: value
        for name, value in options.with_search()
        if value != getattr(defaults, name) and name not in unused
    }
