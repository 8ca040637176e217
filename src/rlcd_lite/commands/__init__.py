"""One file a subcommand: a frozen dataclass whose fields are its flags and whose ``run`` does the work."""
