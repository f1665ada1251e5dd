# Managoat. `make help` explains every target.

GO      ?= go
DATA    ?= $(CURDIR)/.data
LISTEN  ?= 127.0.0.1:8080
IMAGE   ?= managoat-machine:latest
BIN     ?= bin/managoat
ROOT    ?= dist/image
GUEST   := cmd/managoat/guest/managoat-guest
# What sqlc reads and writes. Building it takes minutes, so that it was run is checked by sums.
SQLC    := $(sort sqlc.yaml tools.mod $(wildcard db/migrations/*.sql queries/*.sql queries/*.go))
RELEASE := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# What is built is the same wherever it is built: no path of this machine and no C library is in it. What else compiles does so
# in the same way, so that nothing is compiled twice. Tests with the race detector alone need C.
export CGO_ENABLED := 0
export GOFLAGS     += -trimpath
compile := $(GO) build -ldflags '-s -w'
server  := $(subst -s -w,-s -w -X main.version=$(VERSION),$(compile))

.DEFAULT_GOAL := help
.PHONY: help deps test-deps generate build release image-root run down test contained vet lint generated unit image bench doctor clean

help: ## explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what running needs, where it is missing (Debian and Ubuntu, as root)
	@.ci/install run

test-deps: ## install what tests need, where it is missing
	@.ci/install test

generate: ## regenerate the code of templ and sqlc
	$(GO) tool templ generate
	$(GO) tool -modfile=tools.mod sqlc generate
	sha256sum $(SQLC) >queries/generated.sum

build: ## build bin/managoat with the guest inside
	GOOS=linux $(compile) -o $(GUEST) ./cmd/managoat-guest
	$(server) -o $(BIN) ./cmd/managoat

release: ## build dist/ for every system (macOS: with the docker provider alone), each with the guest of its processor, and checksums
	rm -rf dist
	for to in $(RELEASE); do \
	  export GOARCH=$${to#*-}; \
	  GOOS=linux $(compile) -o $(GUEST) ./cmd/managoat-guest && GOOS=$${to%-*} $(server) -o dist/managoat-$$to ./cmd/managoat || exit; \
	done
	rm $(GUEST)
	cd dist && { sha256sum managoat-* || shasum -a 256 managoat-*; } >SHA256SUMS

image-root: ## lay out what the server's container image holds (make build came before) in ROOT (Dockerfile)
	rm -rf $(ROOT)
	mkdir -p $(ROOT)/root/etc/ssl/certs $(ROOT)/own/data $(ROOT)/own/runtimes
	cp $(BIN) $(ROOT)/root/managoat
	cp /etc/ssl/certs/ca-certificates.crt $(ROOT)/root/etc/ssl/certs/
	echo 'managoat:x:65532:65532::/data:/managoat' >$(ROOT)/root/etc/passwd
	echo 'managoat:x:65532:' >$(ROOT)/root/etc/group

run: deps build ## bring everything up on one machine and print one URL (DATA=dir LISTEN=addr)
	@$(BIN) runtimes install node
	@$(BIN) runtimes install claude
	@exec $(BIN) serve --data $(DATA) --listen $(LISTEN)

down: ## park every machine of DATA, stop its egress, server and PostgreSQL
	@$(BIN) down --data $(DATA)

test: test-deps build ## everything CI checks: vet, lint, generated code, race detector, real services, real machines
	@.ci/test

contained: test-deps build ## the tests of what stands on machines, all of them, with machines of a Docker Engine
	@.ci/contained

vet: ## go vet
	$(GO) vet ./...

lint: ## gofmt and staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'not gofmt-clean'; exit 1; }
	$(GO) tool -modfile=tools.mod staticcheck ./...

generated: ## fail when generated code is not up to date
	@$(GO) tool templ generate >/dev/null && git diff --exit-code --stat -- '*_templ.go'
	@sha256sum $(SQLC) | diff queries/generated.sum - || { echo 'queries are not as sqlc left them: make generate'; exit 1; }

unit: ## tests of one package: make unit PKG=./internal/workspace
	$(GO) test $(PKG)

image: ## build the image of the docker provider's machines (BASE=debian:bookworm-slim)
	docker build --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) sandbox/docker/image

bench: build ## benchmarks, as ratios within one run (docs/benchmarks.md)
	@.ci/bench

doctor: build ## say what is missing on this host and how to get it
	@$(BIN) doctor

clean: ## remove what build made
	rm -rf bin dist $(GUEST)
