"""Optuna's part: the values of the next trial, and whether a trial is worth going on with.

Its study is made from the record whenever it is needed, so that an interrupted search chooses as
one without interruptions does.
"""

import math

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.tune.space import Option
from seq2seq_cli.extras.tune.study import Study, Trial

_ATTEMPTS = 100  # to find values that can be combined and were not tried
_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distribution(option: Option) -> BaseDistribution:
    if option.choices:
        return CategoricalDistribution(option.choices)
    if option.is_whole:
        return IntDistribution(int(option.low), int(option.high), log=option.is_log)
    return FloatDistribution(option.low, option.high, log=option.is_log)


def as_optuna(study: Study) -> optuna.Study:
    """Return the trials that have ended as a study of Optuna, which minimizes their cost."""
    made = optuna.create_study()
    for trial in study.trials:
        if trial.state not in _STATES:
            continue
        values = {o: o.value_of(trial.values.get(o.name, "")) for o in study.options}
        known = {o: value for o, value in values.items() if value is not None}
        costs = [cost for cost in study.costs_of(trial).values() if math.isfinite(cost)]
        made.add_trial(
            create_trial(
                state=_STATES[trial.state],
                value=study.cost_of(trial)[0] if trial.state == "finished" else None,
                params={option.name: value for option, value in known.items()},
                distributions={option.name: distribution(option) for option in known},
                intermediate_values={0: min(costs)} if costs else {},  # by which pruned ones rank
            )
        )
    return made


def propose(study: Study) -> Trial | None:
    """Return the next trial, by Optuna's TPE (Bergstra et al. 2011); None if it finds no new one.

    The values are random until ten trials have ended.
    """
    made, number = as_optuna(study), len(study.trials) + 1
    space = {option.name: distribution(option) for option in study.options}
    tried = [trial.values for trial in study.trials]
    for attempt in range(_ATTEMPTS):
        made.sampler = optuna.samplers.TPESampler(seed=_ATTEMPTS * number + attempt)
        chosen = made.ask(space).params
        trial = Trial(number, {o.name: o.text_of(chosen[o.name]) for o in study.options})
        if trial.values in tried:
            continue
        try:
            study.config_of(trial)
        except UserError:
            continue
        return trial
    return None
