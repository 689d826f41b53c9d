"""Settings of a Django project that uses django-celery-beat, and its Celery application. DATABASE names the SQLite file."""

from __future__ import annotations

import os

from celery import Celery

SECRET_KEY = "tests only"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", ":memory:")}}
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

app = Celery("project", set_as_current=False)
app.conf.update(timezone="Europe/Berlin")
