"""`python -m tarmac` is the command line."""

from tarmac.cli import main

main()
