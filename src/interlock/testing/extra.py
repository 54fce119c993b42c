"""Says what to install when the packages that testing needs are not there. Imported before anything else of this package."""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401 - only to see whether it is there
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ModuleNotFoundError(
        "interlock.testing needs Hypothesis, which is not installed: pip install 'interlock[testing]'", name=error.name
    ) from None
