"""The one door through which anything changes."""

from interlock.service.service import Service

__all__ = ["Service"]
