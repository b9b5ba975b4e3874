"""``python -m rueda.horovod train.py``: runs a script with ``import horovod`` aliased to Rueda.

``python -m rueda.horovod -m package.module`` runs a module. ``rueda run --horovod`` does the same for a job.
"""

from __future__ import annotations

import os
import runpy
import sys

from rueda.horovod.alias import FOLDER, install

USAGE = "usage: python -m rueda.horovod (SCRIPT | -m MODULE) [ARGUMENT...]"


def main(arguments: list[str]) -> None:
    """Runs the script or module on the command line as Python itself would."""
    if not arguments or arguments == ["-m"]:
        sys.exit(USAGE)
    if arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    install()
    # For the processes that the script starts, such as a data loader's.
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
