"""How many updates fit into some hours on this machine, for `seq2seq init`."""

from seq2seq_cli.config.presets import Choice, as_tree
from seq2seq_cli.config.schema import Config
from seq2seq_cli.tools.dry_run import dry_run
from seq2seq_cli.tools.new_run import in_order
from seq2seq_cli.tools.preflight import time_updates

_USED_FOR_UPDATES = 0.9  # share of the time; the rest is for validations and checkpoints


def fit_into_hours(chosen: dict[str, Choice], hours: float) -> dict[str, Choice]:
    """Return the options with as many updates as fit into the hours, or those of the preset.

    Trains for some seconds, to see how long an update takes here. Raises UserError as `train` does.
    """
    config = Config.model_validate(as_tree(chosen))
    pace = dry_run(time_updates, config)
    seconds = pace.seconds_per_update if pace else 0.0
    limited = {**chosen, "training.max_hours": Choice(hours)}
    if seconds:
        fitting = max(1, int(_USED_FOR_UPDATES * hours * 3_600 / seconds))
        reason = f"{hours:g} hours at {seconds:.2g} s per update here, less a tenth for validations"
        limited = with_fewer_updates(limited, Choice(fitting, reason))
    return in_order(limited)


def with_fewer_updates(chosen: dict[str, Choice], max_steps: Choice) -> dict[str, Choice]:
    """Return the options with this number of updates, if the preset has more.

    A much shorter run gets less dropout, with which it learns more from so few updates
    (benchmarks/time_to_quality.md).
    """
    wanted, dropout = chosen["training.max_steps"].value, chosen["model.dropout"].value
    if max_steps.value >= wanted:
        return chosen
    warmup = min(chosen["training.warmup_steps"].value, max_steps.value // 10)
    changed = {
        "training.max_steps": max_steps,
        "training.warmup_steps": Choice(warmup, "at most a tenth of the updates"),
    }
    if max_steps.value < wanted / 2:
        reason = f"half of the preset's {dropout:g}: so few updates are better with less of it"
        changed["model.dropout"] = Choice(dropout / 2, reason)
    return {**chosen, **changed}
