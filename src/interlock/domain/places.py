"""Names of files and folders that people meet: fixed, and known to several rooms."""

from __future__ import annotations

CONFIG_FILE = "interlock.yaml"
"""The configuration, in the working folder or beside the data folder."""
DATA_FOLDER = ".interlock"
"""Everything that Interlock keeps."""
DATABASE = "interlock.db"
"""The database, in the data folder."""
API_SOCKET = "api.sock"
"""Where a daemon serves HTTP to its own machine, in the data folder."""
