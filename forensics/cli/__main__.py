"""`python -m forensics.cli`, the same as `forensics`."""

from forensics.cli import main

main()
