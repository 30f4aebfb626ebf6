# The gateway's image. From the root of the repository:
#   docker build -f packaging/docker/gateway.Dockerfile -t flotilla-gateway .
# It needs /etc/flotilla/gateway.yaml, runs as user 65532, and writes nothing (--read-only).

FROM rust:1.95-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends make && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package flotilla-gateway && \
    install -D target/dist/flotilla-gateway /out/flotilla-gateway

FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flotilla-gateway" \
      org.opencontainers.image.description="One OpenAI-compatible endpoint in front of many CPU inference nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/flotilla-gateway /usr/bin/flotilla-gateway
USER 65532:65532
# 8080: clients and nodes. 8081: admin listener.
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
# Healthy while it runs: without nodes it is not ready, but a restart would not bring nodes back.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/bin/flotilla-gateway", "health", "--live", "--config", "/etc/flotilla/gateway.yaml"]
ENTRYPOINT ["/usr/bin/flotilla-gateway"]
CMD ["run", "--config", "/etc/flotilla/gateway.yaml"]
