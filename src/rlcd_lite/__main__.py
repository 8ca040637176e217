"""``python -m rlcd_lite`` is ``rlcd-lite``."""

from rlcd_lite.cli import main

main()
