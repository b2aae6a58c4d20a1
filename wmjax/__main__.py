"""`python -m wmjax` is the command line."""

from wmjax.cli import main

main()
