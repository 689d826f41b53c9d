"""Crontabs for the tests: files as Debian packages install them, and a generated crontab with every feature."""

# ruff: noqa: E501 (lines as packages install them)

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ETC_CRONTAB = """\
# System-wide tasks. Unlike other crontabs, this file names a user in each line.

SHELL=/bin/sh
# The default of cron is used if PATH is not set.
#PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin

# m h dom mon dow user  command
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
47 6\t* * 7\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.weekly; }
52 6\t1 * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.monthly; }
#
"""

CRON_D: Mapping[str, str] = MappingProxyType(
    {
        "e2scrub_all": """\
30 3 * * 0 root test -e /run/systemd/system || SERVICE_MODE=1 /usr/lib/e2fsprogs/e2scrub_all_cron
10 3 * * * root test -e /run/systemd/system || SERVICE_MODE=1 /sbin/e2scrub_all -A -r
""",
        "php": """\
# Purges old session files, unless systemd does it.
09,39 *     * * *     root   [ -x /usr/lib/php/sessionclean ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/sessionclean; fi
""",
        "anacron": """\
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin
30 7-23 * * *   root\t[ -x /etc/init.d/anacron ] && if [ ! -d /run/systemd/system ]; then /usr/sbin/invoke-rc.d anacron start >/dev/null; fi
""",
        "sysstat": """\
PATH=/usr/lib/sysstat:/usr/sbin:/usr/bin:/sbin:/bin
# Activity reports every 10 minutes
5-55/10 * * * * root command -v debian-sa1 > /dev/null && debian-sa1 1 1
# Additional run at 23:59
59 23 * * * root command -v debian-sa1 > /dev/null && debian-sa1 60 2
""",
        "mdadm": """\
# The first Sunday of the month: the day is tested by the command.
57 0 * * 0 root if [ -x /usr/share/mdadm/checkarray ] && [ $(date +\\%d) -le 7 ]; then /usr/share/mdadm/checkarray --cron --all --idle --quiet; fi
""",
        "certbot": """\
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin
0 */12 * * * root test -x /usr/bin/certbot -a \\! -d /run/systemd/system && perl -e 'sleep int(rand(43200))' && certbot -q renew
""",
        "mailman": """\
MAILTO=listmaster@example.org
@reboot list /usr/lib/mailman/start
@daily  list  /usr/lib/mailman/digests --periodic
0 8 */2 * 1-5 list mail -s "held %" owner%Dear owner,%there are held messages: 100\\%%
""",
    }
)  # fmt: skip


class Line(NamedTuple):
    """A job of the generated crontab, as an oracle sees it. `zone` is that of CRON_TZ at the line."""

    expression: str
    zone: str
    command: str


NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
# Hours without DST changes, because the oracle works on local times.
_MINUTES = ("0", "*", "*/5", "*/7", "0,30", "5-55/10", "17", "59", "0-10", "1,2,3-9/2,*/20")
_HOURS = ("5", "6-22", "6-22/4", "12", "9,17", "8-18/2,21", "23")
_DAYS = ("*", "1", "*/2", "1-7", "13", "31", "28-31", "1,15", "1-31/5", "*/10,30")
_MONTHS = ("*", "jan", "1-6", "*/3", "JAN,apr,Jul,OCT", "2", "12", "5-9/2")
_WEEKDAYS = ("*", "mon", "1-5", "0", "7", "5-7", "*/2", "*/3", "sun,WED", "1-7/2", "Mon-Fri/2", "fri")


def generated_crontab(lines: int = 200, seed: int = 20_261_119) -> tuple[str, list[Line]]:
    """Return a crontab with this number of lines that are jobs, and what an oracle needs to know about each."""
    chosen = random.Random(seed)
    text = ["# generated", "", 'MAILTO=""', "PATH = /opt/bin:/usr/bin:/bin", "  # an indented comment", "GREETING='  hello  '"]
    expected = []
    zone = "UTC"
    for number in range(lines):
        if number % 40 == 39:
            zone = ZONES[(number // 40) % len(ZONES)]
            text += ["", f"CRON_TZ={zone}"]
        if number % 50 == 49:
            text.append(f'"QUOTED_{number}" = "value {number}"')
        if number % 12 == 11:
            nickname = sorted(NICKNAMES)[number // 12 % len(NICKNAMES)]
            expression, times = NICKNAMES[nickname], nickname
        else:
            fields = [chosen.choice(each) for each in (_MINUTES, _HOURS, _DAYS, _MONTHS, _WEEKDAYS)]
            if fields[2] == "31" and fields[3] == "2" and not fields[4].startswith("*"):
                fields[3] = "*"
            if fields[2] in ("31", "28-31") and fields[3] == "2":
                fields[2] = "28"
            expression = " ".join(fields)
            times = chosen.choice([" ", "\t", "   "]).join(fields)
        command = f"job-{number} --rate 5\\% 'a b' # not a comment"
        blank = "  " if number % 9 == 0 else ""
        quiet = "-" if number % 30 == 7 and not times.startswith("@") else ""
        text.append(f"{blank}{quiet}{times} {command}")
        expected.append(Line(expression, zone, f"job-{number} --rate 5% 'a b' # not a comment"))
    return "\n".join([*text, ""]), expected
