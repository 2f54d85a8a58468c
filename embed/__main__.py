"""`python -m embed` is `embed`."""

from embed.cli import command

if __name__ == "__main__":
    command()
