"""``python -m nlgraft``."""

from nlgraft.cli import main

if __name__ == "__main__":
    main()
