"""How many updates a run has: those that its limits allow, and that there is time for.

With `training.max_hours` the learning rate follows the time: the run is planned again whenever an
eighth of the rest is done. The plan depends only on numbers of the state, so that all processes
make the same one, and a resumed run continues with its own.
"""

import itertools
import logging
import math

from seq2seq_cli.config.schema import DEFAULT_WARMUP, TrainingConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.training.optimizers.schedules import Plan
from seq2seq_cli.training.run import Run

logger = logging.getLogger(__name__)

_FIRST_PLAN = 5  # updates before the first plan
_FEWEST_UPDATES = 10  # between two later plans
_PARTS_LEFT = 8  # an update of the plan for each such part of the rest
_SHARE_OF_TIME = 0.98  # to plan for, as later updates may be slightly slower
_HOUR = 3_600
_MOST = 2**31 - 1  # updates that a checkpoint can count


def plan_run(run: Run) -> None:
    """Plan a run that starts or resumes; it keeps its plan unless limits or warm-up changed.

    Resolves `training.warmup_steps: auto`. Raises UserError if the run ends before its warm-up.
    """
    state, old, training = run.state, run.state.plan, run.config.training
    most, hours = total_updates(run), training.max_hours
    warmup = training.warmup_steps
    asked = min(DEFAULT_WARMUP, most // 10) if warmup == "auto" else warmup  # auto: at most `most`
    # A time limit has shortened the warm-up, and it is over: the run may end before `asked`.
    is_cut = old.asked == asked > most and old.warmup <= min(most, state.step)
    if is_cut and training.max_steps is not None and training.max_steps < asked:
        asked = old.warmup  # a config with more is refused
    elif asked > most and not is_cut:
        limit = "max_steps" if most == training.max_steps else "max_epochs"
        raise UserError(
            f"training.warmup_steps {asked:,}: training.{limit} {getattr(training, limit):,} ends "
            f"the run after {most:,} updates, before the peak rate is reached; raise {limit}, "
            "lower warmup_steps, or leave it out in a new run; a run that has started keeps its "
            "own (--allow-changed training.warmup_steps)"
        )
    run.config = run.config.updated(training={"warmup_steps": asked})
    is_same_warmup = old.asked in (None, asked)
    if hours is not None and (old.most, old.hours) == (most, hours) and is_same_warmup:
        state.plan = old._replace(asked=asked)
        return
    has_plan = old.hours is not None or old.asked is not None
    is_warmed_up = has_plan and is_same_warmup and old.warmup <= state.step
    warmup = old.warmup if is_warmed_up else asked
    state.plan = Plan(
        most, warmup, step=old.step, pace=old.pace, most=most, hours=hours, asked=asked
    )
    if hours is not None:
        state.plan = _fitted(run, state.plan)


def plan_again(run: Run) -> None:
    """With a time limit, adapt the plan from time to time; the decay continues from where it is."""
    state, old = run.state, run.state.plan
    interval = _updates_to_next(old) if old.pace else _FIRST_PLAN
    if old.hours is None or state.step >= old.total or state.step < old.step + interval:
        return
    # A pause, of a laptop for instance, is over when the next plan is made.
    new = _fitted(run, old, fewest=(state.step + old.total) // 2 if old.pace else 0)
    if new.total != old.total:
        new = new._replace(start=state.step, progress=old.decay(state.step))
    state.plan = new
    if not old.pace and new.total < new.most:
        warmup, shorter = run.config.training.warmup_updates, ""
        if new.warmup < warmup:
            shorter = f", and warm-up after {new.warmup:,} in place of {warmup:,}"
        logger.info(
            f"training.max_hours {new.hours:g} leaves time for about {new.total:,} of "
            f"{new.most:,} updates; the schedule ends with them{shorter}"
        )


def _updates_to_next(plan: Plan) -> int:
    """Return after how many updates the next plan is made: earlier during warm-up.

    Slow first updates have perhaps shortened it too much.
    """
    part, fewest = (plan.total - plan.step) // _PARTS_LEFT, _FEWEST_UPDATES
    if (left := plan.warmup - plan.step) > 0:
        part, fewest = min(part, left // _PARTS_LEFT), min(fewest, max(1, left - 1))
    return max(fewest, part)


def _fitted(run: Run, plan: Plan, fewest: int = 0) -> Plan:
    """Return the plan with as many updates as there is time for at the speed since the last plan.

    They are at least the `fewest`. During warm-up, warm-up is shortened with the run, but not to
    less than a tenth. Restarts the measurement of the speed.
    """
    state, warmup = run.state, run.config.training.warmup_updates
    pace, num_timed, total = plan.pace, state.step - max(plan.step, 1), plan.most
    enough = min(_FEWEST_UPDATES, _updates_to_next(plan)) if pace else 1
    if state.updating and num_timed >= enough:
        pace = state.updating / num_timed
    state.updating = 0.0
    plan = plan._replace(step=state.step, pace=pace)
    if pace:
        left = (plan.hours or 0.0) * _HOUR - state.seconds
        left = _SHARE_OF_TIME * left - state.validation_seconds * _final_validations(run)
        with_validations = pace + state.validation_seconds / validation_interval(run)
        total = int(min(plan.most, state.step + max(0.0, left / with_validations)))
        total = max(total, fewest)
    if plan.warmup > state.step:
        plan = plan._replace(warmup=min(warmup, max(total // 10, warmup * total // plan.most)))
    return plan._replace(total=total)


def hours_to_finish(run: Run) -> float:
    """Return a `training.max_hours` with which a run that was cut off has time for its plan."""
    state, plan = run.state, run.state.plan
    pace = plan.pace or state.seconds / max(1, state.step)
    pace += state.validation_seconds / validation_interval(run)
    left = (plan.total - state.step) * pace + state.validation_seconds * _final_validations(run)
    hours = (state.seconds + left / _SHARE_OF_TIME) / _HOUR
    unit = 10.0 ** (math.floor(math.log10(hours)) - 1)  # of the second digit
    return math.ceil(hours / unit) * unit


def validation_interval(run: Run) -> float:
    """Return the number of updates between two validations."""
    validation = run.config.validation
    if run.config.data.valid is None:
        return math.inf
    return validation.interval * (1 if validation.unit == "steps" else run.updates_per_epoch)


def _final_validations(run: Run) -> int:
    """Return how many validations the end of a run has: of the last model, and of candidates."""
    training = run.config.training
    averages = (training.ema_decay is not None) + (training.average_checkpoints is not None)
    averages += run.config.validation.keep_best > 1
    return 3 + averages if averages else 1


def total_updates(run: Run) -> int:
    """Return the updates done plus those left until `max_steps` or the end of `max_epochs`."""
    training, state, sampler = run.config.training, run.state, run.data.batches
    if training.max_epochs is None:
        assert training.max_steps is not None, "one of the two is a number"
        return training.max_steps
    most = _MOST if training.max_steps is None else training.max_steps
    total = state.step
    if state.epoch <= training.max_epochs:
        left = sampler.num_left(state.epoch, state.earlier_parts) - state.position
        later = sampler.num_batches(range(state.epoch + 1, training.max_epochs + 1))
        for batches, epochs in itertools.chain([(left, 1)], later):
            total += -(-batches // training.gradient_accumulation) * epochs
            if total >= most:  # epochs that are planned one by one take time
                break
    return min(most, total)


def limit_of_updates(config: TrainingConfig, plan: Plan) -> str:
    """Return the option that limits a run to the updates of its plan."""
    if plan.total < plan.most:
        return "max_hours"
    return "max_steps" if plan.total == config.max_steps else "max_epochs"
