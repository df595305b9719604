"""`python -m attnspec`: the same as the command `attnspec`."""

from .cli import main

if __name__ == "__main__":
    main()
