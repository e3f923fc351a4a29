"""The whole configuration as frozen, typed sections.

A field's default stands here and nowhere else; its description is its documentation and goes into
`configs/reference.yaml` and `configs/schema.json`. Reading YAML and wording the messages for
mistakes is the business of `config/loader.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.text import DataConfig, TokenizerConfig
from seq2seq_cli.config.types import (
    Activation,
    AutoOrNonNegativeInt,
    AutoOrPositiveInt,
    AutoOrThousand,
    DeviceName,
    ModelPart,
    NonNegativeFloat,
    NormPosition,
    OnNonfinite,
    OptimizerName,
    PositiveFloat,
    PositiveInt,
    Precision,
    Schedule,
    Section,
    Seed,
    Share,
    UpToThousand,
)
from seq2seq_cli.config.validation import ValidationConfig

MOST_TOKENS = 25_000  # of a batch that `tokens_per_batch: auto` makes
FEWEST_BATCHES = 50  # of an epoch that it leaves
MOST_SKIPPED = 10  # updates in a row with `on_nonfinite: skip`
DEFAULT_WARMUP = 1_000  # updates, or a tenth of a shorter run
DEFAULT_MAX_STEPS = 10_000


def _one_depth_for_both(value: Any) -> Any:
    return value if isinstance(value, dict | Layers) else {"encoder": value, "decoder": value}


class Layers(Section):
    """`layers: 4` is short for `layers: {encoder: 4, decoder: 4}`."""

    encoder: UpToThousand = Field(4, description="layers of the encoder")
    decoder: UpToThousand = Field(4, description="layers of the decoder")


class ModelConfig(Section):
    d_model: Annotated[int, Field(gt=0, le=65_536, multiple_of=2)] = Field(
        256, description="size of a token's vector, everywhere in the model; even"
    )
    heads: PositiveInt = Field(
        4, validate_default=True, description="attention heads; they divide d_model"
    )
    layers: Annotated[Layers, BeforeValidator(_one_depth_for_both, int | Layers)] = Field(
        Layers(), description="one number, or one for the encoder and one for the decoder"
    )
    d_ff: Annotated[int, Field(gt=0, le=1_048_576)] = Field(
        1_024, description="inner size of the position-wise feed-forward"
    )
    dropout: Share = Field(
        0.1, description="dropout probability of embeddings and sub-layer outputs"
    )
    attention_dropout: Share = Field(0.0, description="dropout of attention weights")
    activation_dropout: Share = Field(0.0, description="dropout inside the feed-forward")
    activation: Activation = Field("relu", description="function inside the feed-forward")
    norm: NormPosition = Field(
        "pre", description="LayerNorm before each sub-layer, or after it as in the 2017 paper"
    )
    attention_bias: bool = Field(True, description="biases in the attention projections")
    embedding_scale: bool = Field(
        True,
        description="embeddings times sqrt(d_model), and begin smaller by that; false: they learn "
        "more slowly",
    )
    tie_embeddings: bool = Field(
        True,
        description="the output projection is the target embedding, and with a shared vocabulary "
        "the source embedding too",
    )

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


class TrainingConfig(Section):
    max_epochs: PositiveInt | None = Field(
        None, description="passes over the training text at most; null: no limit"
    )
    max_steps: PositiveInt | None = Field(
        default_factory=lambda given: None if given.get("max_epochs") else DEFAULT_MAX_STEPS,
        description=f"optimizer updates at most; left out: {DEFAULT_MAX_STEPS:,}, or no limit if "
        "max_epochs is given; null: no limit",
    )
    max_hours: PositiveFloat | None = Field(
        None,
        description="hours of training at most, validations included and added up over restarts, "
        "after which the run ends early; the learning rate is planned by max_steps and max_epochs "
        "all the same; null: no limit",
    )
    tokens_per_batch: AutoOrPositiveInt = Field(
        4_096,
        description="tokens of a batch's longer side, padding included; auto: as many as memory "
        "holds when all pairs are as long as the longest, with a tenth to spare, but at most "
        f"{MOST_TOKENS:,} and at least {FEWEST_BATCHES} batches an epoch; a run keeps its number",
    )
    gradient_accumulation: PositiveInt = Field(
        1, description="batches whose gradients make one update"
    )
    optimizer: OptimizerName = Field("adamw", description="adamw decouples the weight decay")
    lr: PositiveFloat = Field(5e-4, description="peak learning rate, reached after warmup_steps")
    schedule: Schedule = Field(
        "inverse_sqrt",
        description="the learning rate after warm-up; cosine and linear fall to 0 at the end; "
        "inverse_sqrt falls as 1 / sqrt(step), and without warm-up as it would after "
        f"{DEFAULT_WARMUP:,} updates of it",
    )
    warmup_steps: AutoOrNonNegativeInt = Field(
        "auto",
        description=f"updates of linear increase to lr; auto: {DEFAULT_WARMUP:,}, or a tenth of "
        "the updates that max_steps or max_epochs leaves, if that is less; a run keeps its number",
    )
    adam_beta1: Share = Field(0.9, description="decay of the running mean of the gradient")
    adam_beta2: Share = Field(0.98, description="decay of the running mean of its square")
    adam_epsilon: PositiveFloat = Field(1e-9, description="keeps the division finite")
    weight_decay: NonNegativeFloat = Field(
        0.0, description="weight decay of matrices; biases and norms do not decay"
    )
    max_grad_norm: PositiveFloat | None = Field(
        1.0, description="gradients are scaled down to this norm; null: never"
    )
    label_smoothing: Share = Field(
        0.1, description="probability mass spread evenly over the vocabulary"
    )
    seed: Seed = Field(1, description="random seed of initialisation, data order and dropout")
    device: DeviceName = Field("auto", description="auto: cuda where there is one, else cpu")
    precision: Precision = Field(
        "auto",
        description="mixed precision: the type of matrix products, of the residual stream, and of "
        "the probabilities that gradients are made of; parameters, optimizer and evaluation are "
        "fp32; auto: bf16 where the processor or GPU has fast instructions for it, else fp32",
    )
    compile: bool = Field(
        False,
        description="torch.compile the model, meant for GPUs: the first update takes a minute "
        "longer, and on a CPU all are slower; needs a C++ compiler",
    )
    processes: AutoOrThousand = Field(
        "auto",
        description="processes that share each batch; auto: one for each CPU core where batch and "
        "text are large enough for it and the model is not too large (20 million weights), one on "
        "a GPU; under torchrun as many as it starts",
    )
    on_nonfinite: OnNonfinite = Field(
        "stop",
        description="an update whose loss or gradient is not finite is never made: stop there and "
        f"say where it began, or skip it, at most {MOST_SKIPPED} in a row",
    )
    log_every: PositiveInt = Field(50, description="updates between two logged points")
    save_every: PositiveInt | None = Field(
        500,
        description="updates between checkpoints; validations make them too, as far as a tenth of "
        "the time allows, and so does the end; null: only those",
    )
    keep_last: PositiveInt = Field(
        2, description="checkpoints kept, the newest ones: if one is damaged, the one before serves"
    )
    keep_every: PositiveInt | None = Field(
        None, description="checkpoints at multiples of so many updates are kept too; null: none"
    )
    freeze: list[ModelPart] = Field(
        [], description="parts of the model that do not learn, for fine-tuning with train --from"
    )

    @property
    def batch_budget(self) -> int:
        """`tokens_per_batch` as the number that a run has."""
        assert self.tokens_per_batch != "auto", "found before the first batch is made"
        return self.tokens_per_batch

    @property
    def warmup_updates(self) -> int:
        """`warmup_steps` as the number that a run has."""
        assert self.warmup_steps != "auto", "found before the first update"
        return self.warmup_steps

    @field_validator("max_steps")
    @classmethod
    def _has_an_end(cls, max_steps: int | None, info: ValidationInfo) -> int | None:
        if max_steps is None and info.data.get("max_epochs", 0) is None:
            raise ValueError("max_steps and max_epochs cannot both be null: a run needs an end")
        return max_steps

    @field_validator("warmup_steps")
    @classmethod
    def _warm_up_ends(
        cls, warmup_steps: int | Literal["auto"], info: ValidationInfo
    ) -> int | Literal["auto"]:
        max_steps = info.data.get("max_steps")
        if warmup_steps != "auto" and max_steps is not None and warmup_steps > max_steps:
            raise ValueError(
                f"{warmup_steps} updates of warm-up are more than max_steps {max_steps}: the peak "
                "rate would never be reached"
            )
        return warmup_steps


class Config(Section):
    """Everything a run depends on."""

    data: DataConfig = Field(description="text to train on")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="text to ids")
    model: ModelConfig = Field(ModelConfig(), description="the Transformer")
    training: TrainingConfig = Field(TrainingConfig(), description="the optimisation")
    validation: ValidationConfig = Field(ValidationConfig(), description="scores while training")
    decoding: DecodingConfig = Field(DecodingConfig(), description="from source to translation")
