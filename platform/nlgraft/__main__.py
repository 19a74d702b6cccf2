"""``python -m nlgraft``."""

from nlgraft.commands.main import main

if __name__ == "__main__":
    main()
