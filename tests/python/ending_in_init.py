"""Part of programs for ranks: end_in_init(), for a thread, ends its process by SIGTERM once that is in init()."""

END_IN_INIT = """
import os, signal, sys, threading, time
main = threading.get_ident()
def end_in_init():
    while sys._current_frames()[main].f_code.co_name != "init":
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)
"""
