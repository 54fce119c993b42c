"""The commands, by topic. Each module imports what it needs when it is called: ``--help`` stays fast."""
