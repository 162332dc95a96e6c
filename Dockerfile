# The emulator as an image; see docs/how-to/testing.md. Not built by this project: it has had no daemon.
#
#   docker build --tag sfpubsub-emulator .
#   docker run --rm --publish 7011:7011 --publish 7012:7012 sfpubsub-emulator

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY generated generated
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY constraints.txt /tmp/
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)[emulator]" \
    && rm -r /wheels \
    && useradd --create-home emulator \
    && install --directory --owner emulator /data
USER emulator
# What the org holds; mount it to keep it.
VOLUME /data
EXPOSE 7011 7012
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 7012), 2).close()"]
# Clients outside are told 127.0.0.1; beside this container give --advertise and its name.
ENTRYPOINT ["sfpubsub", "emulator", "--host", "0.0.0.0", "--data-dir", "/data"]
