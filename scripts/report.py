"""The same as ``rlcd-lite report``, under the name that the seed gives it."""

import sys

from rlcd_lite.cli import main

main(["report", *sys.argv[1:]])
