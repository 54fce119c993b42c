"""Numbers: counters follow what happens, gauges say how things stand, and the reference knows every one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from interlock.api.meter import METRICS


async def numbers(site: Any) -> dict[tuple[str, str], float]:
    answer = await site.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def until(site: Any, name: str, value: float, labels: str = "") -> dict[tuple[str, str], float]:
    with trio.fail_after(10):
        while (found := await numbers(site)).get((name, labels)) != value:
            await trio.sleep(0.02)
    return found


async def test_what_happens_is_counted(site: Any) -> None:
    run, under = await site.claimed("one", type="build")
    await site.post(f"/{run.number}/release", under)
    claim = await site.post("/claim-next", {"agent_session": "s2"})
    await site.post(f"/{run.number}/complete", {"agent_session": "s2", "fence": claim["fence"]})
    found = await until(site, "interlock_runs_ended_total", 1, "completed")
    assert found["interlock_submits_total", ""] == 1
    assert found["interlock_dispatches_total", ""] == 1
    assert found["interlock_claims_total", ""] == 2
    assert found["interlock_claim_latency_seconds_count", ""] == 2
    assert found["interlock_run_duration_seconds_count", "completed"] == 1


async def test_how_things_stand(site: Any) -> None:
    await site.claimed("one", tags=("gpu",))
    await site.post("", [{"title": "two", "workflow_type": "build"}, {"title": "three", "workflow_type": "build"}])
    found = await numbers(site)
    assert found["interlock_runs", "claimed"] == 1
    assert found["interlock_runs", "queued"] == 2
    assert found["interlock_ready_runs", '{"type":"build"}'] == 2
    assert found["interlock_slots_used", "tag:gpu"] == 1
    assert found["interlock_slots_cap", "global"] == 100
    assert found["interlock_paused", ""] == 0
    await site.service.pause()
    assert (await numbers(site))["interlock_paused", ""] == 1


async def test_every_metric_has_its_row(site: Any) -> None:
    answer = await site.client.get("/metrics")
    served = {family.name for family in text_string_to_metric_families(answer.text)}
    rows = {metric.name.removesuffix("_total") for metric in METRICS}
    assert {name for name in served if name.startswith("interlock_")} == rows


async def test_every_metric_is_in_the_reference(site: Any) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/metrics.md").read_text("utf-8")
    answer = await site.client.get("/metrics")
    served = {
        line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE ") and " process_" not in line
    }
    assert len(served) == len(METRICS)
    for name in served:
        assert f"| `{name}` |" in page, f"{name} is not in docs/reference/metrics.md: python docs/generate.py"
    for metric in METRICS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{metric.name}` |"))
        assert metric.meaning in row
        assert all(f"`{label}`" in row for label in metric.labels)
