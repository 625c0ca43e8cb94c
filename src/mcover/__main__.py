"""``python -m mcover`` is the command line."""

from mcover.cli import main

if __name__ == "__main__":
    main()
