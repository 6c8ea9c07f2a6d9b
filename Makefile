# make quickstart   set up, build, train the two-agent team, show its report
# make test         set up, build, run every test
# make help         the rest
SHELL := /bin/bash
.DEFAULT_GOAL := build

SITE      := build/site
VERSION   := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
CMAKE     := cmake -G Ninja -S . -B build/cmake -DTORCH_SITE=$(CURDIR)/$(SITE)
# gotch is C++ behind cgo: its flags, and nothing else's, come from this script. Every go command goes
# through it, so that the build cache sees the same flags always.
GO        := eval "$$(bindings/torch/gotchx/env.sh $(SITE))" && go
# The program finds its libraries beside itself, wherever the folder is moved.
RPATH     := -Wl,-rpath,$$ORIGIN/../build/lib,-rpath,$$ORIGIN/../$(SITE)/torch/lib
LDFLAGS    = -X main.version=$(VERSION) -extldflags "$(RPATH)"
# Packages that may run with the race detector: all but those that link gotch.
RACE      := ./trainer/store/... ./trainer/agent/... ./trainer/rollout/... ./trainer/config/... ./trainer/metrics/...

.PHONY: help setup site native build test quickstart bench lint fmt env clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## system packages, LibTorch, Go modules
	@.ci/setup.sh
	@bindings/torch/libtorch.sh $(SITE)
	@go mod download

site:
	@bindings/torch/libtorch.sh $(SITE)

native: setup
	@test -f build/cmake/build.ninja || $(CMAKE) >/dev/null
	@ninja -C build/cmake --quiet

build: native ## bin/mgrpo (CUDA=1: bin/mgrpo-cuda too)
	@mkdir -p bin
	@$(GO) build -ldflags '$(LDFLAGS)' -o bin/mgrpo ./cmd/mgrpo

test: build ## every test
	build/test/kernels_test --gtest_brief=1
	$(GO) test ./...
	$(GO) test -race $(RACE)

quickstart: build ## train the built-in team and show the report
	bin/mgrpo train -c examples/quickstart/team.yaml

fmt: ## format Go and C++
	gofmt -w $(shell git ls-files '*.go')

lint: build ## vet, gofmt, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...

env: ## what a go command outside make needs
	@bindings/torch/gotchx/env.sh $(SITE)

clean: ## everything that was built (LibTorch stays)
	rm -rf bin build/cmake build/lib build/test
