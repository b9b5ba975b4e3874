"""`python -m rueda.launcher` is the same as `rueda`."""

from .cli import main

if __name__ == "__main__":
    main()
