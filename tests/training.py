"""Training for tests that ask whether something is learnt: the run's own engine, without files."""

import numpy as np

from muesli.runners.engines import AnakinEngine
from muesli.runners.parts import build


def train(config, until=None, calls=1):
    """Trains ``config`` to its end, or until ``calls`` in a row return more than ``until``.

    Answers what the run is made of, its last state and its last metrics.
    """
    parts = build(config)
    engine = AnakinEngine(parts, [config.seed])
    engine.start(None)
    metrics, good = {}, 0
    for _ in range(parts.schedule.calls):
        progress = engine.advance()
        engine.end_call()
        metrics = {name: float(x) for name, x in progress.metrics[0].items()}
        returns = [episode["return"] for episode in progress.episodes[0]]
        good = good + 1 if until is not None and np.mean(returns) > until else 0
        if good == calls:
            break
    return parts, engine.state, metrics
