"""For all tests: Ctrl-C reaches the processes they start, also where a shell runs them in the background."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # such a shell ignores it, and children would, too
