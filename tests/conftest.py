"""For all tests: Ctrl-C reaches the processes they start, also where a shell runs them in the background.

Locks that are taken out of order are errors (`genius.locks`), in those processes too.
"""

import os
import signal

os.environ["GENIUS_DEBUG_LOCKS"] = "1"
# Some virtual machines announce AMX and then kill what uses it (bfloat16 products): keep torch below it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
signal.signal(signal.SIGINT, signal.default_int_handler)  # such a shell ignores it, and children would, too
