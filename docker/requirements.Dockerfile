# The trainer image with the packages of a sweep's `requirements`. The arguments are those of the Dockerfile.
#
#   IMAGE   the trainer image
ARG IMAGE=shardyard-trainer
FROM ${IMAGE}

ARG PIP_INDEX_URL=
ARG PIP_NO_INDEX=
USER root
COPY requirements.txt /opt/shardyard/requirements-of-sweep.txt
# The image's own packages keep their versions: a requirement that contradicts them fails the build.
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=wheels,target=/wheels \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /opt/venv/bin/pip install -q --retries 2 --find-links /wheels \
        --constraint /opt/shardyard/requirements.txt -r /opt/shardyard/requirements-of-sweep.txt
USER shardyard
