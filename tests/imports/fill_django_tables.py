"""Creates the tables of django-celery-beat and one row of each kind. Run as a script, because Django's settings are global."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django_celery_beat.models import (  # noqa: E402
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)

call_command("migrate", verbosity=0)
every = IntervalSchedule.objects.create(every=15, period="minutes")
nine = CrontabSchedule.objects.create(minute="0", hour="9", day_of_week="1-5", timezone="America/New_York")
once = ClockedSchedule.objects.create(clocked_time=datetime(2035, 1, 2, 3, 4, 5, tzinfo=UTC))
sunset = SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4)
PeriodicTask.objects.create(
    name="poll", task="shop.poll", interval=every, args="[1]", kwargs='{"x": 2}', queue="slow", expire_seconds=30, priority=4
)
PeriodicTask.objects.create(
    name="morning",
    task="shop.morning",
    crontab=nine,
    enabled=False,
    description="the list of the day",
    headers=json.dumps({"team": "blue"}),
    start_time=datetime(2030, 1, 1, tzinfo=UTC),
    expires=datetime(2031, 1, 1, tzinfo=UTC),
)
PeriodicTask.objects.create(name="once", task="shop.once", clocked=once, one_off=True)
PeriodicTask.objects.create(name="lights", task="shop.lights", solar=sunset)
PeriodicTask.objects.create(name="single", task="shop.single", interval=every, one_off=True)
