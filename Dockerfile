# The image of Everbeat: `docker build -t everbeat .`
# It has the base installation; `--build-arg EXTRAS=kafka,s3` adds extras of pyproject.toml.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ARG EXTRAS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/everbeat
# The locked dependencies come first: this layer changes only with the lock file.
COPY requirements.lock ./
RUN /opt/everbeat/bin/pip install --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/everbeat/bin/pip install ".${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON_VERSION}-slim-bookworm
RUN groupadd --system --gid 10001 everbeat \
    && useradd --system --uid 10001 --gid everbeat --home-dir /var/lib/everbeat --create-home everbeat
COPY --from=build /opt/everbeat /opt/everbeat
ENV PATH=/opt/everbeat/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    EVERBEAT_HOST=0.0.0.0 \
    EVERBEAT_AUTH=keys
WORKDIR /var/lib/everbeat
USER 10001:10001
EXPOSE 8080
# SIGTERM stops a node cleanly, and a worker after its running tasks; `docker stop` has to wait for the worker's --grace-seconds.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('EVERBEAT_PORT', '8080') + '/healthz', timeout=2)"]
ENTRYPOINT ["everbeat"]
CMD ["serve"]
