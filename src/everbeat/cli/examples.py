"""The examples at the end of the help of each command. A test checks that every command has some."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Return the text for `epilog`. Click neither wraps nor joins the lines after \\b."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
