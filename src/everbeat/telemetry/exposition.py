"""The Prometheus text format. A scrape blocks the event loop, so this is several times faster than the client library.

The series `_created`, which Prometheus does not need, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

_TYPES = {"unknown": "untyped"}


def rendered(families: Iterable[Metric]) -> bytes:
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped(family.documentation)}\n# TYPE {name} {_TYPES.get(family.type, family.type)}\n")
        created = f"{family.name}_created"
        for sample in family.samples:
            if sample.name == created:
                continue
            labels = ""
            if sample.labels:
                pairs = [f'{label}="{_quoted(value)}"' for label, value in sample.labels.items()]
                labels = f"{{{','.join(pairs)}}}"
            lines.append(f"{sample.name}{labels} {_number(sample.value)}\n")
    return "".join(lines).encode()


def _number(value: float) -> str:
    # Most values are small integers.
    if 0 <= value < 1e6 and value == value // 1:
        return f"{int(value)}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"') if "\\" in text or '"' in text or "\n" in text else text
