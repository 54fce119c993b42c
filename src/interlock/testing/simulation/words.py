"""What happens to a simulated Interlock, in plain words."""

from __future__ import annotations

from interlock.testing.simulation.scenario import Arrival, Conduct, Deed, DeedKind, Entry, Fault, FaultKind, Job, Plan


def moment(ms: int) -> str:
    """A time since the beginning of a simulation."""
    seconds, rest = divmod(ms, 1000)
    return f"{seconds // 86400}d {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"


def span(ms: int) -> str:
    """A length of time."""
    return f"{ms / 1000:g} s" if ms < 120_000 else f"{ms / 60_000:.4g} min"


def of_fault(fault: Fault) -> str:
    """A fault."""
    long = span(fault.ms)
    return {
        FaultKind.KILL: f"dispatcher {fault.who} is killed, for {long} at least",
        FaultKind.FREEZE: f"dispatcher {fault.who} is stopped (SIGSTOP) for {long}",
        FaultKind.POWER_CUT: f"the power goes for {long}",
        FaultKind.SUSPEND: f"the machine is suspended for {long}",
        FaultKind.CLOCK_STEP: f"the wall clock is set by {fault.step_ms / 1000:+g} s",
        FaultKind.DISK_FULL: f"the disk is nearly full for {long}",
        FaultKind.OUTAGE: f"the database takes no write{' and no read' if fault.seen else ''} for {long}",
        FaultKind.SLOW_DISK: f"the disk is slow for {long}",
        FaultKind.DEAFNESS: f"processes do not hear each other's commits for {long}",
        FaultKind.BROKEN_AGENT: f"agent '{fault.agent}' cannot be started for {long}{' (a look shows it)' * fault.seen}",
        FaultKind.LOW_MEMORY: f"memory is short for {long}",
    }[fault.kind]


def of_deed(deed: Deed, whom: str) -> str:
    """A deed; ``whom``: what it is done to."""
    route = "" if deed.route is None else f"at most {deed.route.max_concurrent} of '{deed.route.workflow_type}'"
    whom += ", once it is at work" * deed.at_work
    return {
        DeedKind.PRIORITY: f"somebody sets the priority of {whom} to {deed.number}",
        DeedKind.PAUSE: "somebody pauses dispatching",
        DeedKind.RESUME: "somebody resumes dispatching",
        DeedKind.ROUTE: f"somebody changes a route: {route}",
        DeedKind.LIMIT: f"somebody sets the limit of all runs to {deed.number} and starts dispatcher {deed.who} again",
        DeedKind.PRUNE: f"somebody deletes runs that ended {span(deed.ms)} ago",
        DeedKind.DRAIN: f"somebody drains dispatcher {deed.who}, and starts it again after {span(deed.ms)}",
        DeedKind.STOP: f"somebody stops dispatcher {deed.who} with its agents, and starts it again after {span(deed.ms)}",
        DeedKind.DETACH: f"somebody detaches dispatcher {deed.who}, and starts it again after {span(deed.ms)}",
    }.get(deed.kind, f"somebody asks to {deed.kind} {whom}")


def of_plan(plan: Plan) -> str:
    """How an agent behaves."""
    long = span(plan.ms)
    does = {
        Conduct.DONE: f"works {long}",
        Conduct.FAIL: f"fails after {long}",
        Conduct.FAIL_FOR_GOOD: f"fails for good after {long}",
        Conduct.DEFER: f"asks for a later time after {long}",
        Conduct.ASK: f"asks a question after {long}",
        Conduct.HANG: "never ends",
        Conduct.VANISH: f"is gone after {long} without exit status",
        Conduct.BABBLE: f"leaves a result that nobody can read after {long}",
    }[plan.conduct]
    beside = [
        f"takes {span(plan.launch_ms)} to start" * bool(plan.launch_ms),
        "an unexpected error comes up as it is started" * (plan.mishap is not None),
        "ignores TERM" * plan.deaf,
        f"cannot be killed {plan.stone} time(s)" * bool(plan.stone),
        f"leaves processes behind for {span(plan.brood_ms)}" * bool(plan.brood_ms),
        "shows no sign of life" * plan.quiet,
        f"nobody can tell {plan.riddle} time(s) whether it lives" * bool(plan.riddle),
    ]
    return ", ".join([does, *filter(None, beside)])


def of_job(job: Job) -> str:
    """A task and its agents."""
    task = job.task
    named = {
        "project": task.project,
        "tracker": task.tracker,
        "role": task.role,
        "type": task.type,
        "agent": task.agent,
        "tags": ", ".join(task.tags) or None,
        "priority": task.priority or None,
        "timeout": None if task.timeout_ms is None else span(task.timeout_ms),
        "needs": ", ".join((*task.needs, *job.after)) or None,
    }
    details = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    agents = "; then it ".join(of_plan(plan) for plan in job.plans)
    return f"{job.name} is submitted{f' ({details})' if details else ''}. Its agent {agents}"


def of_entry(entry: Entry) -> list[str]:
    """Whatever happens, a sentence each."""
    match entry:
        case Arrival():
            return [of_job(job) for job in entry.jobs]
        case Fault():
            return [of_fault(entry)]
        case Deed():
            return [of_deed(entry, entry.job or "")]
