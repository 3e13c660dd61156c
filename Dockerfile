# syntax=docker/dockerfile:1
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md ./
COPY src ./src
# What the gateway needs, at the locked versions, without what only development needs.
RUN python -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check --constraint requirements.lock '.[fast,ed25519]' \
    && /opt/holdfast/bin/pip uninstall --yes pip setuptools

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="A sidecar that delivers outbound webhooks and never loses one silently"
RUN groupadd --gid 10801 holdfast \
    && useradd --uid 10801 --gid 10801 --no-create-home --shell /usr/sbin/nologin holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /var/lib/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOLDFAST_STORE__PATH=/var/lib/holdfast
USER 10801:10801
VOLUME /var/lib/holdfast
EXPOSE 8800 8801
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s CMD ["holdfast", "health"]
ENTRYPOINT ["holdfast"]
CMD ["run"]
