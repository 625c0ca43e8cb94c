"""``python -m mcover`` is the same as ``mcover``."""

from mcover.cli import main

if __name__ == "__main__":
    main()
