"""`python -m everbeat` is the command line."""

from everbeat.cli.main import main

if __name__ == "__main__":
    main()
