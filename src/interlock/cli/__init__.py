"""The command line. What a command needs beside the service comes in as a :class:`interlock.cli.host.Host`."""
