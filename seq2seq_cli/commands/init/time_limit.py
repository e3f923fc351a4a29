"""What `seq2seq init` chooses for a run that is to end after some hours."""

from seq2seq_cli.commands.check.check import time_updates
from seq2seq_cli.commands.dry_run import dry_run
from seq2seq_cli.config.presets import Choice, Choices, as_tree
from seq2seq_cli.config.schema import Config


def within_hours(chosen: Choices, hours: float) -> dict[str, Choice]:
    """Return the options that change for a run of the chosen ones that ends after so many hours.

    Trains for some seconds, to see how long an update takes here. Raises UserError as `train` does.
    """
    pace = dry_run(time_updates, Config.model_validate(as_tree(chosen)))
    share = min(1.0, hours * 3_600 / pace.seconds_to_the_end) if pace else 1.0
    steps = chosen["training.max_steps"].value
    reason = f"time for about {int(share * steps):,} of {steps:,} updates here" if share < 1 else ""
    return {"training.max_hours": Choice(hours, reason), **less_dropout(chosen, share)}


def less_dropout(chosen: Choices, share: float) -> dict[str, Choice]:
    """Return the dropout of a run that makes this share of the preset's updates, if it is less.

    A much shorter run learns more from so few updates with less of it
    (benchmarks/time_to_quality.md).
    """
    if share >= 1 / 2:
        return {}
    dropout = chosen["model.dropout"].value
    reason = f"half of the preset's {dropout:g}: so few updates are better with less of it"
    return {"model.dropout": Choice(dropout / 2, reason)}
