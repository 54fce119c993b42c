"""For every test: signals as a shell would hand them down, whatever started the test run (``nohup`` ignores SIGHUP)."""

from __future__ import annotations

import signal

signal.signal(signal.SIGHUP, signal.SIG_DFL)
