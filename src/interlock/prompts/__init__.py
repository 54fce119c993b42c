"""What an agent is told."""

from interlock.prompts.assembly import build_prompt
from interlock.prompts.roles import role_text

__all__ = ["build_prompt", "role_text"]
