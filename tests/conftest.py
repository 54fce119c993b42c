"""For every test: signals as a shell would hand them down, whatever started the test run (``nohup`` ignores SIGHUP, and SIGINT is
ignored in what a script starts with ``&``).

While coverage is measured, keepers are measured as well.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from interlock.runtimes import keeper

signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "coverage" in sys.modules:
    import coverage

    if coverage.Coverage.current() is not None:
        packages = Path(coverage.__file__).parent.parent
        keeper._PYTHON += (str(Path(__file__).parent / "measured_keeper_program.py"), str(packages))
        # an idle one has its figures to write before it ends
        keeper._IDLE_END_SECONDS = 10.0
