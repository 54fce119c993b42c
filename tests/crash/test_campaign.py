"""Kill it again and again under load, then balance the books.

    INTERLOCK_CRASH_KILLS=40    daemon kills, all modes together
    INTERLOCK_CRASH_SEED=7      the seed of a run that failed (it is printed)

The long one, unattended: ``python tests/crash/crash_campaign.py RESULTS.jsonl --kills 1000``.

Daemons die at random moments, at every named crash point, inside commits and checkpoints, alone, beside another one, and in their
sleep; in some rounds agents die, or their keepers, or whole trees, or the agents from outside that pull; and all
the time clients that submit and operate. A witness of its own samples /proc. After every round, and at the end: what was
acknowledged is there and has ended as its kind does, nothing completed twice, no run lived twice at any moment, no limit
was exceeded, no process, cgroup or folder is left, slots equal a recount, the event log replays to the states that the
table has.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from crash_campaign import Campaign

SEED = int(os.environ.get("INTERLOCK_CRASH_SEED") or Random().randrange(1_000_000))
KILLS = int(os.environ.get("INTERLOCK_CRASH_KILLS", "40"))
SHARES = {"cgroup": 0.4, "plain": 0.4, "pull": 0.2}


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Campaign]:
    """One for each mode, run at the same time."""
    folder = tmp_path_factory.mktemp("campaigns")
    made = {
        mode: Campaign(folder / mode, seed=SEED, kills=max(1, round(KILLS * share)), mode=mode)
        for mode, share in SHARES.items()
    }
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(Campaign.run, made.values()))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("mode", SHARES)
def test_whatever_dies_the_books_balance(campaigns: dict[str, Campaign], mode: str) -> None:
    campaign = campaigns[mode]
    print(f"INTERLOCK_CRASH_SEED={SEED} INTERLOCK_CRASH_KILLS={KILLS} ({mode})")
    if campaign.faults:
        kept = f"INTERLOCK_CRASH_SEED={SEED} repeats it; everything is kept in {campaign.yard.base}"
        raise AssertionError("\n".join([kept, *campaign.faults]))
    result = campaign.result()
    assert result["samples"] > 20
    assert mode == "pull" or result["most_alive"] >= 2
    print({name: value for name, value in result.items() if value})
    shutil.rmtree(campaign.yard.base)
