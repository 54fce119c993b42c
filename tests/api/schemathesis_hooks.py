"""For schemathesis: what is drawn meets nothing that is there, so every second time it is led to a run and a claim of it.

Of the runs 1 to 8 the first four are claimed by the session ``s`` under fence 1.
"""

from __future__ import annotations

from random import Random
from typing import Any

import schemathesis

LONGEST_WAIT = 0.01


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Before a request is sent."""
    # To JSON Schema 1.0 is a whole number; here whole numbers are written without a fraction.
    body = case.body = _whole(case.body)
    for place in (case.query, body):
        # Only what is in bounds: what is not, has to be refused as it is.
        if isinstance(place, dict) and _waits_long(place.get("wait")):
            place["wait"] = LONGEST_WAIT
    if not isinstance(case.path_parameters, dict) or "ref" not in case.path_parameters:
        return
    drawn = Random(repr((case.path_parameters, body)))
    if drawn.random() < 0.5 and case.meta is not None and case.meta.generation.mode.is_positive:
        case.path_parameters["ref"] = str(drawn.randint(1, 8))
        if isinstance(body, dict) and "fence" in body:
            body |= {"agent_session": "s", "fence": 1}


def _waits_long(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        return LONGEST_WAIT < float(value) <= 60
    except ValueError:
        return False


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value
