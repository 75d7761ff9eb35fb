"""The `hostless` command: one file a command; what a command needs beyond itself is in a folder beside it."""
