"""A process with an anchor, for tests: `python anchored_process.py HOW`.

Tells the anchor's port, and the process id of its child or 0.

HOW: idle; hold (native code holds Python up for a minute); child (its forked child sleeps on).
"""

import ctypes
import os
import sys
import time

from hanayo_megatron.runtime.lifeline import Anchor

if __name__ == "__main__":
    anchor = Anchor("127.0.0.1")
    child = 0
    if sys.argv[1] == "child":
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    sys.stdout.write(f"{anchor.address.port} {child}\n")
    sys.stdout.flush()
    if sys.argv[1] == "hold":
        ctypes.PyDLL(None).sleep(60)
    time.sleep(60)
