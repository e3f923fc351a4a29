"""The whole configuration as frozen, typed sections.

A field defines the default of its option, which is written nowhere else; its description goes into
`configs/reference.yaml` and `configs/schema.json`. `config/loader.py` reads YAML and words the
error messages.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.metrics import METRICS
from seq2seq_cli.config.regularization import Consistency, SubwordSampling
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.config.tokenizer import SUBWORDS, Kinds, TokenizerConfig
from seq2seq_cli.config.types import (
    SIDES,
    TOKENIZER_KINDS,
    Activation,
    Ask,
    AttentionScale,
    AutoOrNonNegativeInt,
    AutoOrPositiveInt,
    AutoOrThousand,
    DeviceName,
    Fixed,
    Free,
    ModelPart,
    NonNegativeFloat,
    NormPosition,
    OnResume,
    OptimizerName,
    Positions,
    PositiveFloat,
    PositiveInt,
    Precision,
    PresetName,
    Probability,
    Schedule,
    Section,
    Seed,
    UpToThousand,
    one_for_all,
)
from seq2seq_cli.config.validation import ValidationConfig

MOST_TOKENS = 25_000  # the largest `tokens_per_batch` that `auto` chooses
FEWEST_BATCHES = 50  # per epoch that `tokens_per_batch: auto` leaves at least
MOST_SKIPPED = 10  # consecutive updates with `on_nonfinite: skip`
DEFAULT_WARMUP = 1_000  # updates, or a tenth of a shorter run
DEFAULT_MAX_STEPS = 10_000


class Layers(Section):
    """`layers: 4` is short for `layers: {encoder: 4, decoder: 4}`."""

    on_resume: ClassVar[OnResume] = "fixed"

    encoder: UpToThousand = 4
    """Number of encoder layers."""
    decoder: UpToThousand = 4
    """Number of decoder layers."""


class ModelConfig(Section):
    on_resume: ClassVar[OnResume] = "fixed"

    d_model: Annotated[int, Field(gt=0, le=65_536, multiple_of=2)] = 256
    """Hidden size of the model (embeddings and all layers); must be even."""
    heads: PositiveInt = Field(4, validate_default=True)
    """Number of attention heads; must divide d_model."""
    layers: Annotated[Layers, BeforeValidator(one_for_all("encoder", "decoder"), int | Layers)] = (
        Layers()
    )
    """Number of layers, one value for encoder and decoder or one for each."""
    d_ff: Annotated[int, Field(gt=0, le=1_048_576)] = 1_024
    """Inner size of the position-wise feed-forward network."""
    dropout: Ask[Probability] = 0.1
    """Dropout probability on embeddings and sub-layer outputs."""
    attention_dropout: Ask[Probability] = 0.0
    """Dropout probability on attention weights."""
    activation_dropout: Ask[Probability] = 0.0
    """Dropout probability after the activation of the feed-forward network."""
    activation: Activation = "relu"
    """Activation function of the feed-forward network. silu is also called swish."""
    positions: Positions = "sinusoidal"
    """Positional encoding. sinusoidal: vectors added to the embeddings, as in the 2017 paper;
    rotary: rotations of the queries and keys of self-attention (RoPE), which converges in fewer
    updates, needs an even head size and cannot be exported to Hugging Face."""
    position_base: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    """Base of the wavelengths of the positional encoding, which grow from 2π to position_base x 2π.
    Marian's sinusoids have 10000^(d / (d - 1)), with d = d_model / 2."""
    position_offset: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Number of the first position of sinusoidal encodings."""
    rotary_cross_attention: bool = False
    """Also rotate the queries and keys of cross-attention, which encodes the distance between
    target and source positions: for monotonic tasks, such as letters to phones, it converges in
    fewer updates and makes fewer errors. Needs positions: rotary; cannot be exported."""
    feature_positions: bool = True
    """Give each feature of a source its own position, before the text. false: all features of a
    source share one position, so that their order does not matter and their number does not shift
    the text (Wu et al. 2021); cannot be exported."""
    attention_scale: AttentionScale = "sqrt"
    """Attention scores before the softmax (K: head size). sqrt: q·k/√K, as in the 2017 paper; none:
    q·k; temperature: q·k/√K times a learned factor per head."""
    norm: NormPosition = "pre"
    """LayerNorm before each sub-layer (pre), or after it as in the 2017 paper (post)."""
    norm_epsilon: PositiveFloat = 1e-5
    """Term that every LayerNorm adds to the variance for numerical stability."""
    attention_bias: bool = True
    """Use biases in the attention projections."""
    embedding_scale: bool = True
    """Multiply embeddings by sqrt(d_model) and initialize them smaller by that factor, which trains
    them faster."""
    tie_embeddings: bool = True
    """Tie the output projection to the target embedding and, with a shared vocabulary, also to the
    source embedding."""
    output_bias: bool = False
    """Use a bias in the output projection."""
    source_eos: bool = True
    """Let the encoder see EOS after the source. false, as in models of OpenNMT: nothing attends to
    it."""
    ngrams: Annotated[int, Field(ge=1, le=16)] = 1
    """Longest n-gram of source tokens that has an embedding, which is added to the embedding of its
    last token (Pagnoni et al. 2024); 1: none. With characters as tokens, a model learns parts of
    words. Such a model cannot be exported."""
    ngram_buckets: Annotated[int, Field(ge=2)] = 20_000
    """Number of embeddings of n-grams; n-grams with the same hash share one."""
    ngram_dropout: Ask[Probability] = 0.7
    """Probability of leaving out an n-gram in training."""

    @property
    def has_dropout(self) -> bool:
        of_ngrams = self.ngram_dropout if self.ngrams > 1 else 0.0
        return any((self.dropout, self.attention_dropout, self.activation_dropout, of_ngrams))

    def unknown_option(self, known: Mapping[str, Collection[object] | None]) -> str | None:
        """Return the first option whose value is not among the `known` ones (None: all), if any."""
        for option, value in self:
            values = known.get(option, ())
            if values is not None and value not in values:
                return f"model.{option} is {str(value).lower()}"
        return None

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        d_model, heads = above.get("d_model", 0), above.get("heads", 1)
        match option:
            case "heads" if d_model % value:
                choices = [str(n) for n in range(1, min(d_model, 64) + 1) if d_model % n == 0]
                return (
                    f"{value} heads do not divide d_model {d_model} (valid: {', '.join(choices)})"
                )
            case "positions" if value == "rotary" and d_model // heads % 2:
                return f"rotary needs heads of an even size, not {d_model // heads}"
            case "position_offset" if value and above.get("positions") == "rotary":
                return "rotary encodes distances only, which no offset changes: leave it at 0"
            case "rotary_cross_attention" if value and above.get("positions") == "sinusoidal":
                return "true needs positions: rotary in the same config"
        return None


class TrainingConfig(Section):
    max_epochs: Free[PositiveInt | None] = None
    """Maximum number of passes over the training text; null: no limit."""
    max_steps: Free[PositiveInt | None] = Field(
        default_factory=lambda given: None if given.get("max_epochs") else DEFAULT_MAX_STEPS,
        description=f"Maximum number of optimizer updates; null: no limit. Defaults to "
        f"{DEFAULT_MAX_STEPS:,}, or to no limit if max_epochs is given.",
    )
    max_hours: Free[PositiveFloat | None] = None
    """Maximum training time in hours, validations included, summed over restarts; null: no limit.
    The number of updates that fit is estimated during training, and the learning-rate schedule and
    warm-up are shortened to it."""
    tokens_per_batch: AutoOrPositiveInt = Field(
        4_096,
        description="Batch size in tokens of the longer side, padding included. auto: 90% of what "
        "fits into memory (on CPUs: three quarters of the free memory) when all pairs are as long "
        f"as the longest, but at most {MOST_TOKENS:,}, and small enough for {FEWEST_BATCHES} "
        "batches per epoch; a resumed run keeps the number.",
    )
    pairs_per_batch: Fixed[PositiveInt | None] = None
    """Maximum number of pairs in a batch, over all processes, in addition to tokens_per_batch. For
    batches of a fixed number of pairs, set tokens_per_batch too high to be reached. null: no limit.
    """
    gradient_accumulation: PositiveInt = 1
    """Gradient accumulation: number of batches per optimizer update."""
    optimizer: OptimizerName = "adamw"
    """Optimizer. adamw: Adam with decoupled weight decay; schedule_free_adamw (Defazio et al.
    2024): AdamW with an average of the weights in place of a schedule, which usually needs a higher
    lr; muon (Jordan et al. 2024): Muon for the matrices of layers, AdamW for all other weights."""
    lr: PositiveFloat = 5e-4
    """Peak learning rate, reached after warmup_steps."""
    schedule: Schedule = Field(
        default_factory=lambda given: (
            "constant" if given.get("optimizer") == "schedule_free_adamw" else "inverse_sqrt"
        ),
        description="Learning-rate schedule after warm-up. cosine and linear decay to 0 at the end "
        "of the run; inverse_sqrt decays as 1 / sqrt(step); if warmup_steps is 0, as if after "
        f"{DEFAULT_WARMUP:,} warm-up updates. The default is inverse_sqrt; schedule_free_adamw "
        "allows only constant.",
    )
    warmup_steps: AutoOrNonNegativeInt = Field(
        "auto",
        description="Number of warm-up updates, in which the learning rate rises linearly to lr. "
        f"auto: {DEFAULT_WARMUP:,}, or a tenth of all updates if that is less; a resumed run keeps "
        "the number.",
    )
    adam_beta1: Probability = 0.9
    """Decay rate of Adam's first moment."""
    adam_beta2: Probability = 0.98
    """Decay rate of Adam's second moment."""
    adam_epsilon: PositiveFloat = 1e-9
    """Term that Adam adds to the denominator for numerical stability."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of matrices; biases and norms have none."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm (gradient clipping); null: no clipping."""
    label_smoothing: Probability = 0.1
    """Label smoothing: probability mass spread evenly over the vocabulary."""
    ema_decay: Probability | None = None
    """Decay of an exponential moving average (EMA) of the weights; at each update it is
    min(ema_decay, (1 + step) / (10 + step)). 0.999 suits most runs. Validation then scores the EMA
    weights, and the best model holds them. null: no EMA."""
    subword_sampling: Annotated[
        SubwordSampling,
        BeforeValidator(one_for_all("src", "tgt"), Probability | SubwordSampling | None),
    ] = SubwordSampling()
    """Subword regularization (BPE-dropout, unigram sampling), one value for both sides or one for
    each; for tokenizers of kind bpe and unigram."""
    consistency: Consistency | None = None
    """Consistency training, which doubles time and memory; null: none."""
    seed: Fixed[Seed] = 1
    """Random seed of initialization, data order, subword sampling and dropout."""
    device: Free[DeviceName] = "auto"
    """Device to train on; auto: cuda if available, else cpu."""
    precision: Precision = "auto"
    """Training precision. bf16: mixed precision, with matrix products, the residual stream and the
    probabilities in the gradient of the loss in bf16, and parameters, optimizer state and
    evaluation in fp32. auto: bf16 if the CPU or GPU has fast instructions for it, else fp32."""
    compile: bool = False
    """Compile the model with torch.compile. Meant for GPUs: the first update takes a minute longer,
    and on CPUs all updates are slower. Needs a C++ compiler."""
    processes: Free[AutoOrThousand] = "auto"
    """Number of data-parallel processes, which share each batch. auto: one per CPU core if the
    batch and the text are large enough and the model has at most 20 million weights; otherwise,
    and on a GPU, one. Ignored under torchrun, which sets the number."""
    shard: Free[Literal["none", "full"]] = "none"
    """What data-parallel processes shard. none: only the batch, each process holds the whole model;
    full: also weights, gradients and optimizer state (FSDP2), for models that do not fit on one
    GPU. Has no effect with one process."""
    activation_checkpointing: Free[bool] = False
    """Keep only the inputs of encoder and decoder layers for the backward pass, and recompute the
    rest: less memory, slower updates, equal gradients."""
    on_nonfinite: Free[Literal["stop", "skip"]] = Field(
        "stop",
        description="What to do if the loss or a gradient is NaN or infinite; such an update is "
        "never applied. stop: end training and report where the value first occurred; skip: "
        f"continue with the next update, at most {MOST_SKIPPED} times in a row.",
    )
    log_every: Free[PositiveInt] = 50
    """Number of updates between two log entries."""
    save_every: Free[PositiveInt | None] = 500
    """Number of updates between two checkpoints; null: no periodic checkpoints. Checkpoints are
    also saved before validations, unless saving takes more than 10% of the time, and at the end.
    """
    keep_last: Free[PositiveInt] = 2
    """Number of most recent checkpoints to keep; if the last one is damaged, a run resumes from the
    one before it."""
    keep_every: Free[PositiveInt | None] = None
    """Also keep checkpoints at multiples of this number of updates; null: keep none."""
    average_checkpoints: Free[Annotated[int, Field(ge=2, le=1_000)] | None] = None
    """Checkpoint averaging: number of last checkpoints (of save_every, and the final one) whose
    weights are averaged at the end of a run. The average is scored on the validation text, and used
    as the model if it is better than the best model; without validation text, it is the model. Of
    checkpoints older than keep_last, only the weights are kept. null: no averaging."""
    freeze: Fixed[list[ModelPart]] = Field([])
    """Parts of the model to freeze, for fine-tuning with train --from."""

    @property
    def batch_budget(self) -> int:
        """`tokens_per_batch` as a number."""
        assert self.tokens_per_batch != "auto", "resolved before the first batch"
        return self.tokens_per_batch

    @property
    def passes(self) -> int:
        """Forward passes over each pair in an update."""
        return 1 if self.consistency is None else 2

    @property
    def warmup_updates(self) -> int:
        """`warmup_steps` as a number."""
        assert self.warmup_steps != "auto", "resolved before the first update"
        return self.warmup_steps

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        optimizer, max_steps = above.get("optimizer"), above.get("max_steps")
        averages = optimizer == "schedule_free_adamw"
        match option:
            case "max_steps" if value is None and above.get("max_epochs", 0) is None:
                return "max_steps and max_epochs cannot both be null: a run needs an end"
            case "schedule" if averages and value != "constant":
                return (
                    f"{value} cannot be combined with schedule_free_adamw, which replaces the "
                    "schedule by averaging: leave schedule out, or set it to constant"
                )
            case "ema_decay" if averages and value is not None:
                return (
                    "schedule_free_adamw averages the weights itself: leave ema_decay out, or "
                    "choose another training.optimizer"
                )
            case "warmup_steps" if value != "auto" and max_steps is not None and value > max_steps:
                return (
                    f"{value} warm-up updates exceed max_steps {max_steps}: the learning rate "
                    "would never reach its peak"
                )
            case "shard" if value == "full" and optimizer == "muon":
                return (
                    "muon needs whole matrices, which full sharding does not keep: choose another "
                    "optimizer"
                )
            case "shard" if value == "full" and above.get("tokens_per_batch") == "auto":
                return "full needs a number as training.tokens_per_batch: auto tries a whole model"
            case "shard" if value == "full" and above.get("compile"):
                return "full cannot be compiled: set training.compile to false"
            case "activation_checkpointing" if value and above.get("compile"):
                return "true cannot be combined with training.compile: set one of them to false"
            case "average_checkpoints" if value is not None and above.get("save_every", 0) is None:
                return (
                    "average_checkpoints averages the checkpoints of training.save_every, which is "
                    "null"
                )
        return None


class Config(Section):
    """Every option of a run."""

    preset: Fixed[PresetName] = "auto"
    """Preset with the values of options in sections model, training and validation that a config
    leaves out: see configs/small.yaml, medium.yaml and large.yaml; none: the defaults below. auto:
    chosen by the number of training pairs, or none if the config sets the model's size (d_model,
    heads, layers or d_ff); a resumed run keeps its preset. fine_tuning, chosen by auto with train
    --from: the model of the other run, a low learning rate, five epochs, early stopping."""
    data: DataConfig
    """The text to train and validate on."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer and its vocabulary."""
    model: ModelConfig = ModelConfig()
    """The Transformer."""
    training: TrainingConfig = TrainingConfig()
    """Optimization, checkpoints and logging."""
    validation: ValidationConfig = ValidationConfig()
    """Validation during training, model selection, early stopping."""
    decoding: DecodingConfig = DecodingConfig()
    """Decoding options, also used by validation."""

    @classmethod
    def mistake(cls, option: str, value: Any, above: Mapping[str, Any]) -> str | None:
        data: DataConfig | None = above.get("data")
        tokenizer: TokenizerConfig | None = above.get("tokenizer")
        model: ModelConfig | None = above.get("model")
        match option:
            case "tokenizer" if data and data.direction == "both" and not value.shared:
                return (
                    "data.direction both needs tokenizer.shared: true, and the same kind and "
                    "vocab_size for both sides"
                )
            case "model" if data and not value.feature_positions:
                if not ParallelText(data.train).has_features:
                    return "feature_positions: false needs features in data.train"
            case "training":
                learned = tokenizer.kind if tokenizer and tokenizer.reuse is None else Kinds()
                for side in SIDES:
                    kind = learned.of(side)
                    if getattr(value.subword_sampling, side) is not None and kind not in SUBWORDS:
                        return (
                            f"subword_sampling: kind {kind} has no subwords: choose bpe or unigram"
                        )
                is_r_drop = value.consistency is not None and value.consistency.kind == "r_drop"
                if is_r_drop and model is not None and not model.has_dropout:
                    return (
                        "consistency: the two passes of r_drop differ only in dropout: set "
                        "model.dropout, or choose simcut"
                    )
        return None

    def updated(self, **sections: Mapping[str, Any]) -> Self:
        """Return the config with other values in its sections."""
        new = {n: getattr(self, n).model_copy(update=v) for n, v in sections.items()}
        return self.model_copy(update=new)

    @property
    def is_of_strings(self) -> bool:
        """True if targets are characters or symbols that are right or wrong, not sentences."""
        metric = METRICS.get(self.validation.metric)  # none for auto
        is_of_words = TOKENIZER_KINDS[self.tokenizer.kind.tgt].units == "words"
        return metric is not None and metric.is_of_strings and not is_of_words

    @property
    def train_text(self) -> ParallelText:
        return ParallelText(self.data.train, self.data.direction)

    @property
    def held_out(self) -> dict[str, ParallelText]:
        """The held-out texts, valid and general; corpora without a tag get `decoding.tag`."""
        texts = {"valid": self.data.valid, "general": self.data.general}
        return {
            name: ParallelText(corpora, self.data.direction).with_tag(self.decoding.tag)
            for name, corpora in texts.items()
            if corpora is not None
        }

    @property
    def texts(self) -> dict[str, ParallelText]:
        """All texts by their options in section data: train, and what is held out."""
        return {"train": self.train_text, **self.held_out}

    @property
    def valid_text(self) -> ParallelText | None:
        return self.held_out.get("valid")
