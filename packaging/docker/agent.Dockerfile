# The agent's image. From the root of the repository:
#   docker build -f packaging/docker/agent.Dockerfile -t flotilla-agent .
# One image serves every x86-64 CPU with AVX2 and every 64-bit ARM CPU: the agent contains its kernels and
# tests them at startup. It reads models from /models, runs as user 65532, and writes nothing
# (--read-only) except to /cache: the results of FLOTILLA_TUNE, and models that FLOTILLA_MODEL names by hf:
# or a URL. Mount a volume there to keep them.
# Every flag of 'flotilla-agent serve' has a variable: FLOTILLA_MODEL, FLOTILLA_JOIN, ...

FROM rust:1.95-slim-bookworm AS build
# Needed to compile llama.cpp. The versions are those of the image's Debian.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends cmake g++ libclang-dev make && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package flotilla-agent && \
    install -D target/dist/flotilla-agent /out/flotilla-agent && \
    mkdir -p /out/cache

FROM gcr.io/distroless/cc-debian12:nonroot
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flotilla-agent" \
      org.opencontainers.image.description="Serves a GGUF model on CPUs, alone or as a node of a fleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/flotilla-agent /usr/bin/flotilla-agent
COPY --from=build --chown=65532:65532 /out/cache /cache
ENV FLOTILLA_LISTEN=0.0.0.0:8080 \
    FLOTILLA_CACHE_DIR=/cache
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
# Healthy once the model is loaded, which may take minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["/usr/bin/flotilla-agent", "health"]
ENTRYPOINT ["/usr/bin/flotilla-agent"]
CMD ["serve"]
