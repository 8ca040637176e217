"""The commands of the command line, one dataclass each: its fields are the flags, `run` does the work."""
