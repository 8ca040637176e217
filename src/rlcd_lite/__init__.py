"""rlcd-lite."""
