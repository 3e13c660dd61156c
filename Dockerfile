# Two stages: what builds the wheel and installs it stays in the first. tests/deploy/test_image_steps.py reads this file
# and carries out the same steps.
FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
WORKDIR /build
COPY requirements.lock requirements-build.lock pyproject.toml README.md ./
COPY src ./src
# The locks name everything with its hash: what builds the wheel, and what the wheel needs. Nothing else is built here, as
# what would build it has no hash. --python: the environment itself gets no pip.
RUN pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes -r requirements-build.lock \
    && pip wheel --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist . \
    && python -m venv --without-pip /opt/holdfast \
    && pip --python /opt/holdfast install --no-cache-dir --disable-pip-version-check --only-binary :all: \
        --require-hashes -r requirements.lock \
    && pip --python /opt/holdfast install --no-cache-dir --disable-pip-version-check --no-index --no-deps dist/holdfast-*.whl

FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="A sidecar that delivers outbound webhooks and never loses one silently" \
      org.opencontainers.image.version="0.1.0"
RUN pip uninstall --yes --root-user-action=ignore setuptools wheel pip \
    && rm -rf /usr/local/lib/python3.11/ensurepip \
    && groupadd --gid 10801 holdfast \
    && useradd --uid 10801 --gid 10801 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin holdfast \
    && install --directory --owner=holdfast --group=holdfast --mode=0700 /var/lib/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
# STATE_DIRECTORY is the default of store.path, so that a config file still has the last word.
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    STATE_DIRECTORY=/var/lib/holdfast
USER 10801:10801
VOLUME /var/lib/holdfast
EXPOSE 8800 8802
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 CMD ["holdfast", "health"]
ENTRYPOINT ["holdfast"]
CMD ["run"]
