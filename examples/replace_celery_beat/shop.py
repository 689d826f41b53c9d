"""A Celery application with a beat_schedule. Everbeat replaces Celery Beat; the tasks and the workers stay as they are."""

import os
import time

from celery import Celery
from celery.schedules import crontab

import everbeat.contrib.celery

app = Celery("shop", broker=os.environ.get("SHOP_BROKER_URL", "redis://127.0.0.1:6379/0"))
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "stock": {"task": "shop.check_stock", "schedule": 5.0, "kwargs": {"shelf": "A"}},
    "report": {"task": "shop.send_report", "schedule": crontab(hour=7, minute=0, day_of_week="mon-fri")},
    "inventory": {"task": "shop.count", "schedule": crontab(0, 6, day_of_month="1-7", day_of_week="sat"), "args": (3,)},
}
reporter = everbeat.contrib.celery.install(app)


@app.task(name="shop.check_stock")
def check_stock(shelf: str) -> str:
    print(f"shelf {shelf} is full")
    return f"shelf {shelf}"


@app.task(name="shop.send_report", autoretry_for=(OSError,), retry_backoff=True, max_retries=3)
def send_report() -> None:
    print("the report is sent")


@app.task(name="shop.count")
def count(rows: int) -> int:
    for row in range(rows):
        reporter.progress(row / rows, f"row {row + 1} of {rows}")
        time.sleep(0.2)
    return rows
