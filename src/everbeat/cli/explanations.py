"""Prints the answers of why: the explanation, its facts, and where to look next."""

from __future__ import annotations

from typing import Any

import click

from everbeat.cli.output import Printer, shown, styled


def print_explanation(printer: Printer, found: dict[str, Any]) -> None:
    if not printer.is_table:
        printer.data(found)
        return
    click.echo(f"{styled(shown(found.get('verdict') or found.get('state')))}: {shown(found['explanation'])}")
    facts = found["facts"]
    width = max((len(fact["fact"]) for fact in facts), default=0)
    for fact in facts:
        link = f"  ({fact['link']})" if fact.get("link") else ""
        click.echo(f"  {fact['fact'].replace('_', ' '):{width}}  {shown(fact['value'])}{shown(link) if link else ''}")
