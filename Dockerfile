# The server as a container, and what installs the adapters for it. deploy/compose.yaml runs both.
#
#   docker build --target server -t managoat .        # from source; or from what is built here:
#   make build image-root && docker build --build-arg FROM=prebuilt --target server -t managoat .
ARG FROM=built

FROM golang:1.26-bookworm AS built
WORKDIR /src
COPY . .
RUN make build image-root

FROM scratch AS prebuilt
COPY dist/image /src/dist/image

FROM ${FROM} AS root

# npm is needed once, to fetch the pinned adapters into the volume that the server reads them from.
FROM node:22-bookworm-slim AS runtimes
COPY --from=root /src/dist/image/root/managoat /usr/local/bin/managoat
COPY --from=root --chown=65532:65532 /src/dist/image/own/runtimes /runtimes
ENV HOME=/tmp MANAGOAT_RUNTIMES_DIR=/runtimes
USER 65532:65532
VOLUME /runtimes
ENTRYPOINT ["managoat"]
CMD ["runtimes", "install", "claude"]

FROM scratch AS server
COPY --from=root /src/dist/image/root /
COPY --from=root --chown=65532:65532 /src/dist/image/own /
ENV HOME=/data TMPDIR=/data MANAGOAT_DATA=/data MANAGOAT_RUNTIMES_DIR=/runtimes MANAGOAT_LISTEN=0.0.0.0:8080 \
    MANAGOAT_SANDBOX_PROVIDERS=docker MANAGOAT_SANDBOX_PROVIDER=docker
USER 65532:65532
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=15s --start-period=60s CMD ["/managoat", "health"]
ENTRYPOINT ["/managoat"]
CMD ["serve"]
