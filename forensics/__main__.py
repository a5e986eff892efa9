"""`python -m forensics`: the command `forensics`, where its script is not on the path."""

from forensics.cli import main

if __name__ == "__main__":  # a spawned child imports this file under another name
    main()
