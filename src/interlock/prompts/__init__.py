"""What an agent is told."""

from interlock.prompts.assembly import build_prompt

__all__ = ["build_prompt"]
