"""The service beside a model of it: any interleaving of commands, and what always holds checked after each."""

from __future__ import annotations
