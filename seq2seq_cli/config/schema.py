"""The whole configuration as frozen, typed sections.

A field defines the default of its option, which is written nowhere else; its description goes into
`configs/reference.yaml` and `configs/schema.json`. `config/loader.py` reads YAML and words the
error messages.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.regularization import Consistency, SubwordSampling
from seq2seq_cli.config.text import SUBWORDS, DataConfig, ParallelText, TokenizerConfig
from seq2seq_cli.config.types import (
    ASK_ON_RESUME,
    FIXED_ON_RESUME,
    FREE_ON_RESUME,
    Activation,
    AttentionScale,
    AutoOrNonNegativeInt,
    AutoOrPositiveInt,
    AutoOrThousand,
    DeviceName,
    ModelPart,
    NonNegativeFloat,
    NormPosition,
    OnNonfinite,
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
    Shard,
    UpToThousand,
)
from seq2seq_cli.config.validation import ValidationConfig

MOST_TOKENS = 25_000  # the largest `tokens_per_batch` that `auto` chooses
FEWEST_BATCHES = 50  # per epoch that `tokens_per_batch: auto` leaves at least
MOST_SKIPPED = 10  # consecutive updates with `on_nonfinite: skip`
DEFAULT_WARMUP = 1_000  # updates, or a tenth of a shorter run
DEFAULT_MAX_STEPS = 10_000


def _same_depth_for_both(value: Any) -> Any:
    return value if isinstance(value, dict | Layers) else {"encoder": value, "decoder": value}


def _same_sampling_for_both(value: Any) -> Any:
    is_section = isinstance(value, dict | SubwordSampling)
    return value if is_section else {"src": value, "tgt": value}


class Layers(Section):
    """`layers: 4` is short for `layers: {encoder: 4, decoder: 4}`."""

    on_resume: ClassVar[OnResume] = "fixed"

    encoder: UpToThousand = Field(4, description="Number of encoder layers.")
    decoder: UpToThousand = Field(4, description="Number of decoder layers.")


class ModelConfig(Section):
    on_resume: ClassVar[OnResume] = "fixed"

    d_model: Annotated[int, Field(gt=0, le=65_536, multiple_of=2)] = Field(
        256, description="Hidden size of the model (embeddings and all layers); must be even."
    )
    heads: PositiveInt = Field(
        4, validate_default=True, description="Number of attention heads; must divide d_model."
    )
    layers: Annotated[Layers, BeforeValidator(_same_depth_for_both, int | Layers)] = Field(
        Layers(), description="Number of layers, one for both sides or one for each."
    )
    d_ff: Annotated[int, Field(gt=0, le=1_048_576)] = Field(
        1_024, description="Inner size of the position-wise feed-forward network."
    )
    dropout: Probability = Field(
        0.1,
        description="Dropout probability on embeddings and sub-layer outputs.",
        json_schema_extra=ASK_ON_RESUME,
    )
    attention_dropout: Probability = Field(
        0.0,
        description="Dropout probability on attention weights.",
        json_schema_extra=ASK_ON_RESUME,
    )
    activation_dropout: Probability = Field(
        0.0,
        description="Dropout probability after the activation of the feed-forward network.",
        json_schema_extra=ASK_ON_RESUME,
    )
    activation: Activation = Field(
        "relu", description="Activation function of the feed-forward network."
    )
    positions: Positions = Field(
        "sinusoidal",
        description="How the positions of tokens enter the model. sinusoidal: as vectors added to "
        "the embeddings, as in the 2017 paper; rotary: as rotations of the queries and keys of "
        "self-attention (RoPE), with which models learn in fewer updates. rotary needs heads of an "
        "even size and has no export to Hugging Face.",
    )
    rotary_cross_attention: bool = Field(
        False,
        description="Rotate the queries and keys of cross-attention, too, so that it knows how far "
        "the next position of the target is from each of the source: models of strings whose "
        "symbols correspond in order, as letters and phones do, learn in fewer updates and make "
        "fewer mistakes. Needs rotary positions and has no export.",
    )
    feature_positions: bool = Field(
        True,
        description="Give features of the source positions of their own, before those of the text. "
        "false: all features of a source share one position, so that their order says nothing and "
        "their number does not move the text (Wu et al. 2021). false has no export.",
    )
    attention_scale: AttentionScale = Field(
        "sqrt",
        description="Scale of the attention scores, which are q·k (K: size of a head). sqrt: "
        "q·k/√K, as in the 2017 paper; none: q·k; temperature: q·k/√K times a learned number for "
        "each head.",
    )
    norm: NormPosition = Field(
        "pre",
        description="Position of LayerNorm: before each sub-layer (pre), or after it as in the "
        "2017 paper (post).",
    )
    attention_bias: bool = Field(True, description="Use biases in the attention projections.")
    embedding_scale: bool = Field(
        True,
        description="Multiply embeddings by sqrt(d_model) and initialize them smaller by that "
        "factor; without it they learn more slowly.",
    )
    tie_embeddings: bool = Field(
        True,
        description="Tie the output projection to the target embedding and, with a shared "
        "vocabulary, to the source embedding too.",
    )

    @property
    def has_dropout(self) -> bool:
        return any((self.dropout, self.attention_dropout, self.activation_dropout))

    @field_validator("heads")
    @classmethod
    def _heads_divide_d_model(cls, heads: int, info: ValidationInfo) -> int:
        d_model = info.data.get("d_model", 0)
        if d_model % heads:
            choices = [n for n in range(1, min(d_model, 64) + 1) if d_model % n == 0]
            raise ValueError(
                f"{heads} heads do not divide d_model {d_model} "
                f"(valid: {', '.join(map(str, choices))})"
            )
        return heads

    @field_validator("positions")
    @classmethod
    def _heads_are_even(cls, positions: Positions, info: ValidationInfo) -> Positions:
        if positions == "rotary" and "heads" in info.data and "d_model" in info.data:
            size = info.data["d_model"] // info.data["heads"]
            if size % 2:
                raise ValueError(f"rotary needs heads of an even size, not {size}")
        return positions

    @field_validator("rotary_cross_attention")
    @classmethod
    def _self_attention_is_rotary(cls, is_rotary: bool, info: ValidationInfo) -> bool:
        if is_rotary and info.data.get("positions") == "sinusoidal":
            raise ValueError("true needs positions: rotary")
        return is_rotary


class TrainingConfig(Section):
    max_epochs: PositiveInt | None = Field(
        None,
        description="Maximum number of passes over the training text; null: no limit.",
        json_schema_extra=FREE_ON_RESUME,
    )
    max_steps: PositiveInt | None = Field(
        default_factory=lambda given: None if given.get("max_epochs") else DEFAULT_MAX_STEPS,
        description=f"Maximum number of optimizer updates; null: no limit. Defaults to "
        f"{DEFAULT_MAX_STEPS:,}, or to no limit if max_epochs is given.",
        json_schema_extra=FREE_ON_RESUME,
    )
    max_hours: PositiveFloat | None = Field(
        None,
        description="Maximum training time in hours, validations included, summed over restarts; "
        "null: no limit. The learning-rate schedule ends when the time does: again and again the "
        "run is planned for as many of its updates as fit. Warm-up is shortened with it.",
        json_schema_extra=FREE_ON_RESUME,
    )
    tokens_per_batch: AutoOrPositiveInt = Field(
        4_096,
        description="Batch size in tokens of the longer side, padding included. auto: as many as "
        "fit into memory if all pairs were as long as the longest, less a tenth, but at most "
        f"{MOST_TOKENS:,} and few enough for {FEWEST_BATCHES} batches per epoch; a run keeps the "
        "number it has found.",
    )
    pairs_per_batch: PositiveInt | None = Field(
        None,
        description="Maximum number of pairs in a batch, of all processes together, beside "
        "tokens_per_batch; for batches of a fixed number of pairs, also set tokens_per_batch so "
        "high that no batch reaches it. null: no limit.",
        json_schema_extra=FIXED_ON_RESUME,
    )
    gradient_accumulation: PositiveInt = Field(
        1, description="Gradient accumulation: number of batches per optimizer update."
    )
    optimizer: OptimizerName = Field(
        "adamw",
        description="Optimizer. adamw is Adam with decoupled weight decay; schedule_free_adamw "
        "(Defazio et al. 2024) replaces the schedule by an average of the weights along their "
        "path, which is the model, and usually needs a larger lr; muon (Jordan et al. 2024) trains "
        "the matrices of layers, with AdamW for everything else.",
    )
    lr: PositiveFloat = Field(5e-4, description="Peak learning rate, reached after warmup_steps.")
    schedule: Schedule = Field(
        default_factory=lambda given: (
            "constant" if given.get("optimizer") == "schedule_free_adamw" else "inverse_sqrt"
        ),
        description="Learning-rate schedule after warm-up. cosine and linear fall to 0 at the end "
        "of the run; inverse_sqrt falls as 1 / sqrt(step), and with warmup_steps: 0 as it would "
        f"after {DEFAULT_WARMUP:,} updates of warm-up. Defaults to inverse_sqrt; with "
        "schedule_free_adamw to constant, the only one that it can have.",
    )
    warmup_steps: AutoOrNonNegativeInt = Field(
        "auto",
        description="Number of warm-up updates, in which the learning rate rises linearly to lr. "
        f"auto: {DEFAULT_WARMUP:,}, or a tenth of the run's updates if that is less; a run keeps "
        "the number it began with.",
    )
    adam_beta1: Probability = Field(0.9, description="Decay rate of Adam's first moment.")
    adam_beta2: Probability = Field(0.98, description="Decay rate of Adam's second moment.")
    adam_epsilon: PositiveFloat = Field(
        1e-9, description="Term that Adam adds to the denominator for numerical stability."
    )
    weight_decay: NonNegativeFloat = Field(
        0.0, description="Weight decay of matrices; biases and norms are not decayed."
    )
    max_grad_norm: PositiveFloat | None = Field(
        1.0, description="Maximum gradient norm (gradient clipping); null: no clipping."
    )
    label_smoothing: Probability = Field(
        0.1, description="Label smoothing: probability mass spread evenly over the vocabulary."
    )
    ema_decay: Probability | None = Field(
        None,
        description="Decay of an exponential moving average (EMA) of the weights, updated with "
        "every update: min(ema_decay, (1 + step) / (10 + step)); 0.999 suits most runs. Validation "
        "then scores the EMA, and the best model is one. null: no EMA.",
    )
    subword_sampling: Annotated[
        SubwordSampling,
        BeforeValidator(_same_sampling_for_both, Probability | SubwordSampling | None),
    ] = Field(
        SubwordSampling(),
        description="Subword sampling (subword regularization), one value for both sides or one "
        "for each; for tokenizers of kind bpe and unigram.",
    )
    consistency: Consistency | None = Field(
        None,
        description="Consistency training, which takes twice the time and memory; null: none.",
    )
    seed: Seed = Field(
        1,
        description="Random seed of initialization, data order, subword sampling and dropout.",
        json_schema_extra=FIXED_ON_RESUME,
    )
    device: DeviceName = Field(
        "auto",
        description="Device to train on; auto: cuda if available, else cpu.",
        json_schema_extra=FREE_ON_RESUME,
    )
    precision: Precision = Field(
        "auto",
        description="Training precision. bf16 is mixed precision: matrix products, the residual "
        "stream and the probabilities in the loss's gradient are bf16; parameters, optimizer state "
        "and evaluation stay fp32. auto: bf16 if the CPU or GPU has fast instructions for it, else "
        "fp32.",
    )
    compile: bool = Field(
        False,
        description="Compile the model with torch.compile. Meant for GPUs: the first update takes "
        "a minute longer, and on CPUs every update is slower. Needs a C++ compiler.",
    )
    processes: AutoOrThousand = Field(
        "auto",
        description="Number of data-parallel processes, which share each batch. auto: one per CPU "
        "core if batch and text are large enough and the model has at most 20 million weights, "
        "else one; one on a GPU. torchrun determines the number when it starts the processes.",
        json_schema_extra=FREE_ON_RESUME,
    )
    shard: Shard = Field(
        "none",
        description="What the data-parallel processes divide among themselves beside the batch. "
        "none: nothing, so that each holds the whole model; full: weights, gradients and optimizer "
        "state too (FSDP2), for models that do not fit one GPU. One process alone holds all of it "
        "either way.",
        json_schema_extra=FREE_ON_RESUME,
    )
    activation_checkpointing: bool = Field(
        False,
        description="Keep only the inputs of encoder and decoder layers for the backward pass, "
        "which runs each layer once more: less memory, slower updates, equal gradients.",
        json_schema_extra=FREE_ON_RESUME,
    )
    on_nonfinite: OnNonfinite = Field(
        "stop",
        description="What to do when loss or gradients are NaN or infinite; such an update is "
        "never applied. stop: end training and report where the value first occurred; skip: "
        f"continue with the next update, at most {MOST_SKIPPED} times in a row.",
        json_schema_extra=FREE_ON_RESUME,
    )
    log_every: PositiveInt = Field(
        50,
        description="Number of updates between two log entries.",
        json_schema_extra=FREE_ON_RESUME,
    )
    save_every: PositiveInt | None = Field(
        500,
        description="Number of updates between two checkpoints; null: no periodic ones. "
        "Validations (as long as saving takes at most a tenth of the time) and the end of a run "
        "save checkpoints too.",
        json_schema_extra=FREE_ON_RESUME,
    )
    keep_last: PositiveInt = Field(
        2,
        description="Number of latest checkpoints to keep; if the last is damaged, a run resumes "
        "from the one before.",
        json_schema_extra=FREE_ON_RESUME,
    )
    keep_every: PositiveInt | None = Field(
        None,
        description="Also keep the checkpoints at multiples of this number of updates; null: none.",
        json_schema_extra=FREE_ON_RESUME,
    )
    average_checkpoints: Annotated[int, Field(ge=2, le=1_000)] | None = Field(
        None,
        description="Checkpoint averaging: at the end of a run the mean of the weights of this "
        "many last checkpoints (those of save_every, and the last of all) is scored on the "
        "validation text beside the best model, which it replaces if it is better. Older "
        "checkpoints than keep_last keep only their weights for it. null: none.",
        json_schema_extra=FREE_ON_RESUME,
    )
    freeze: list[ModelPart] = Field(
        [],
        description="Parts of the model to freeze, for fine-tuning with train --from.",
        json_schema_extra=FIXED_ON_RESUME,
    )

    @property
    def batch_budget(self) -> int:
        """`tokens_per_batch` as a number."""
        assert self.tokens_per_batch != "auto", "resolved before the first batch"
        return self.tokens_per_batch

    @property
    def warmup_updates(self) -> int:
        """`warmup_steps` as a number."""
        assert self.warmup_steps != "auto", "resolved before the first update"
        return self.warmup_steps

    @field_validator("max_steps")
    @classmethod
    def _has_an_end(cls, max_steps: int | None, info: ValidationInfo) -> int | None:
        if max_steps is None and info.data.get("max_epochs", 0) is None:
            raise ValueError("max_steps and max_epochs cannot both be null: a run needs an end")
        return max_steps

    @field_validator("schedule", "ema_decay")
    @classmethod
    def _suits_schedule_free(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("optimizer") != "schedule_free_adamw" or value in (None, "constant"):
            return value
        if info.field_name == "schedule":
            raise ValueError(
                f"{value} cannot be the schedule of schedule_free_adamw, whose averaging takes "
                "the place of one: leave schedule out, or set it to constant"
            )
        raise ValueError(
            "schedule_free_adamw averages the weights itself: leave ema_decay out, or choose "
            "another training.optimizer"
        )

    @field_validator("shard")
    @classmethod
    def _can_be_sharded(cls, shard: Shard, info: ValidationInfo) -> Shard:
        if shard == "full" and info.data.get("optimizer") == "muon":
            raise ValueError(
                "muon needs whole matrices, which full sharding does not keep: choose another "
                "optimizer"
            )
        if shard == "full" and info.data.get("tokens_per_batch") == "auto":
            raise ValueError(
                "full needs a number as training.tokens_per_batch: auto tries a whole model"
            )
        if shard == "full" and info.data.get("compile"):
            raise ValueError("full cannot be compiled: set training.compile to false")
        return shard

    @field_validator("activation_checkpointing")
    @classmethod
    def _is_not_compiled(cls, checkpoints: bool, info: ValidationInfo) -> bool:
        if checkpoints and info.data.get("compile"):
            raise ValueError("true does not go with training.compile: set one of them to false")
        return checkpoints

    @field_validator("average_checkpoints")
    @classmethod
    def _has_checkpoints(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count is not None and info.data.get("save_every", 0) is None:
            raise ValueError(
                "average_checkpoints averages the checkpoints of training.save_every, which is null"
            )
        return count

    @field_validator("warmup_steps")
    @classmethod
    def _warm_up_ends(
        cls, warmup_steps: int | Literal["auto"], info: ValidationInfo
    ) -> int | Literal["auto"]:
        max_steps = info.data.get("max_steps")
        if warmup_steps != "auto" and max_steps is not None and warmup_steps > max_steps:
            raise ValueError(
                f"{warmup_steps} warm-up updates exceed max_steps {max_steps}: the learning rate "
                "would never reach its peak"
            )
        return warmup_steps


class Config(Section):
    """Every option of a run."""

    preset: PresetName = Field(
        "auto",
        description="Where the options of sections model, training and validation that a config "
        "leaves out get their values from: a preset (configs/small.yaml, medium.yaml, large.yaml) "
        "or, with none, the defaults below. auto: the preset for the number of training pairs if "
        "the config says nothing of the model's size (d_model, heads, layers, d_ff), else none; a "
        "run keeps the preset it began with.",
        json_schema_extra=FIXED_ON_RESUME,
    )
    data: DataConfig = Field(description="The text to train and validate on.")
    tokenizer: TokenizerConfig = Field(
        TokenizerConfig(), description="The tokenizer and its vocabulary."
    )
    model: ModelConfig = Field(ModelConfig(), description="The Transformer.")
    training: TrainingConfig = Field(
        TrainingConfig(), description="Optimization, checkpoints and logging."
    )
    validation: ValidationConfig = Field(
        ValidationConfig(), description="Scores during training, model selection, early stopping."
    )
    decoding: DecodingConfig = Field(
        DecodingConfig(), description="The search for translations; also used by validation."
    )

    @field_validator("training")
    @classmethod
    def _fits_tokenizer_and_model(
        cls, training: TrainingConfig, info: ValidationInfo
    ) -> TrainingConfig:
        tokenizer: TokenizerConfig | None = info.data.get("tokenizer")
        sampling = training.subword_sampling
        if tokenizer is not None and tokenizer.reuse is None:
            kinds = tokenizer.kind
            for strength, kind in ((sampling.src, kinds.src), (sampling.tgt, kinds.tgt)):
                if strength is not None and kind not in SUBWORDS:
                    raise ValueError(
                        f"subword_sampling: kind {kind} has no subwords: choose bpe or unigram"
                    )
        model: ModelConfig | None = info.data.get("model")
        is_r_drop = training.consistency is not None and training.consistency.kind == "r_drop"
        if is_r_drop and model is not None and not model.has_dropout:
            raise ValueError(
                "consistency: the two passes of r_drop differ in their dropout alone: set "
                "model.dropout, or choose simcut"
            )
        return training

    @field_validator("model")
    @classmethod
    def _features_share_a_position_if_there_are_any(
        cls, model: ModelConfig, info: ValidationInfo
    ) -> ModelConfig:
        data: DataConfig | None = info.data.get("data")
        if data is None or model.feature_positions:
            return model
        if not ParallelText(data.train, data.direction).has_features:
            raise ValueError("feature_positions: false needs features in data.train")
        return model

    @field_validator("tokenizer")
    @classmethod
    def _both_directions_share(
        cls, tokenizer: TokenizerConfig, info: ValidationInfo
    ) -> TokenizerConfig:
        if "data" in info.data and info.data["data"].direction == "both" and not tokenizer.shared:
            raise ValueError(
                "data.direction both needs tokenizer.shared: true, and the same kind and "
                "vocab_size for both sides"
            )
        return tokenizer

    @property
    def train_text(self) -> ParallelText:
        return ParallelText(self.data.train, self.data.direction)

    @property
    def valid_text(self) -> ParallelText | None:
        """The held-out text; `decoding.tag` is that of corpora without one."""
        if self.data.valid is None:
            return None
        return ParallelText(self.data.valid, self.data.direction).with_tag(self.decoding.tag)
