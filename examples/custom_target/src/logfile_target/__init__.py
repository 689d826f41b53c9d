"""A kind of target for Everbeat: appends each task as a line of JSON to a file of a folder that the operator has chosen."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everbeat.core.deliveries import DeliveryResponse, DeliveryTask, message_headers
from everbeat.core.targets import CustomTarget
from everbeat.delivery.base import (
    Delivered,
    DeliveryOutcome,
    Refused,
    RetryDelivery,
    SettingMissing,
    Target,
    TargetContext,
    option,
)

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class LogFile(Target):
    kind = "logfile"
    max_concurrent = 4
    timeout_seconds = 10.0

    def __init__(self, context: TargetContext) -> None:
        self._folders = {name: Path(option(broker, "folder", str)) for name, broker in context.brokers.items()}
        for name, folder in self._folders.items():
            if not folder.is_dir():
                raise SettingMissing.of(context.brokers[name], f"folder: there is no folder {folder}")

    def check(self, options: Mapping[str, Any]) -> list[str]:
        """Called when a schedule or a task names this kind: return what is wrong with its options."""
        errors = [f"{name} is unknown" for name in sorted(options.keys() - {"file"})]
        file = options.get("file")
        if not isinstance(file, str) or not NAME.fullmatch(file) or file.startswith("."):
            errors.append("file must be a file name of letters, digits, dots, dashes and underscores")
        return errors

    async def deliver(self, task: DeliveryTask) -> DeliveryOutcome:
        target = task.target
        assert isinstance(target, CustomTarget)
        folder = self._folders.get(target.broker or "")
        if folder is None:
            return Refused(f"this node has no folder named {target.broker}")
        line = json.dumps({"id": task.message_id, "headers": message_headers(task), "payload": json.loads(task.payload)})
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            # A target must not block the event loop of the server.
            size = await asyncio.to_thread(append, folder / str(target.options["file"]), line + "\n")
        except OSError as error:
            return RetryDelivery(None, f"{target.broker}: {error.strerror}", "file")
        duration_ms = (loop.time() - started) * 1000
        return Delivered(response=DeliveryResponse(duration_ms=duration_ms, message_id=task.message_id, size=size))


def append(path: Path, line: str) -> int:
    """Append a line and write it to disk: only then is the task delivered."""
    data = line.encode()
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return len(data)


def make_target(context: TargetContext) -> Target:
    """The entry point. Called once per node, with the connections of this kind: [brokers.NAME] with kind = "logfile"."""
    return LogFile(context)
