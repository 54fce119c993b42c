"""Whether agents share the working tree of a git repository. Looks at files only: no git is needed, or run."""

from __future__ import annotations

from pathlib import Path


def work_tree(folder: Path) -> Path | None:
    """The root of the git working tree that ``folder`` lies in, if it does.

    ``.git`` is a folder in a clone, and a file in a linked worktree or a submodule: each of those is a tree of its own.
    """
    for candidate in (folder, *folder.parents):
        mark = candidate / ".git"
        try:
            if mark.is_file() or (mark / "HEAD").exists():
                return candidate
        except OSError:
            # Not ours to look into, so nothing that the user works with.
            continue
    return None


def clash_warning(folder: Path, at_once: int) -> str | None:
    """What may go wrong when ``at_once`` agents work in ``folder`` together; None when they do not share a git tree."""
    tree = work_tree(folder) if at_once > 1 else None
    if tree is None:
        return None
    return (
        f"up to {at_once} agents at once work in one git working tree ({tree}). "
        "They may clash: `git add` and `git commit` fail while another one holds .git/index.lock, a checkout moves the files "
        "under all of them, two may edit the same file. "
        "If they change files there: --concurrency 1, or agents that each make a worktree of their own (`git worktree add`)."
    )
