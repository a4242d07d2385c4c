"""`python -m nanocode.cli`: the `nanocode` command without installing it."""

from nanocode.cli import main

if __name__ == "__main__":
    main()
