"""The command line, again and again in one process: reads arguments from its input, and answers with exit codes.

What a command prints is left in the files `out` and `err` of the current folder.
"""

import os
import sys

from wmjax import cli

with os.fdopen(os.dup(0), "rb") as calls, os.fdopen(os.dup(1), "wb", buffering=0) as codes:
    for line in calls:
        for handle, name in ((1, "out"), (2, "err")):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, handle)
            os.close(file)
        sys.argv = ["wmjax", *map(os.fsdecode, bytes.fromhex(line.decode("ascii")).split(b"\0"))]
        try:
            cli.main()
        except SystemExit as stop:
            sys.stdout.flush()
            codes.write(b"%d\n" % int(stop.code or 0))
