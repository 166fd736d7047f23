# What there is to do: make help.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLCHAIN := testdata/toolchain
ORACLE := schema/podtemplate/oracle
LINT := go tool -modfile=$(TOOLCHAIN)/go.mod

go_build = CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X github.com/cmwa-project/cmwa/cmd/cli.version=$(VERSION)"

# Packages whose tests need a Docker engine or a Kubernetes cluster. All others need nothing but Go.
ENGINE = $(addprefix github.com/cmwa-project/cmwa/,cmd/cmwa cmd/workflow-runner runtime/docker runtime/kube runtime/kube/kubetest)
UNIT = $(filter-out $(ENGINE),$(shell go list ./...))

SCRIPTS = .ci/run $(shell grep -l -r '^\#!/usr/bin/env bash' examples $(TOOLCHAIN))

.PHONY: help build image test check oracle demo bench reference vet lint fmt cover toolchain clean

help: ## Tell what there is to do.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Put cmwa, cmwa-cloud, workflow-runner (also for Linux) and the licences of what they contain into bin.
	$(go_build) -o bin/ ./cmd/cmwa ./cmd/cmwa-cloud ./cmd/workflow-runner
	GOOS=linux GOARCH=amd64 $(go_build) -o bin/workflow-runner-linux-amd64 ./cmd/workflow-runner
	GOOS=linux GOARCH=arm64 $(go_build) -o bin/workflow-runner-linux-arm64 ./cmd/workflow-runner
	GOOS= GOARCH= go build -C $(TOOLCHAIN) -o $(CURDIR)/bin/notices ./notices
	bin/notices -o bin/THIRD_PARTY_NOTICES ./cmd/cmwa ./cmd/cmwa-cloud ./cmd/workflow-runner
	rm bin/notices

image: build ## Write the container image of the agent to bin, as an archive for docker load and as an OCI layout.
	GOOS=linux GOARCH=amd64 $(go_build) -o bin/cmwa-linux-amd64 ./cmd/cmwa
	GOOS=linux GOARCH=arm64 $(go_build) -o bin/cmwa-linux-arm64 ./cmd/cmwa
	install -m 644 LICENSE bin/
	install -d -m 755 bin/state # an empty folder for examples/image/Dockerfile, which cannot make one without a shell
	GOOS= GOARCH= go run -C $(TOOLCHAIN) ./image -version "$(VERSION)" -folder $(CURDIR)/bin

test: toolchain ## Set up what the tests need and run all of them, without Go's cache of results, with the race detector.
	@echo "== running all tests with the race detector"
	@eval "$$($(TOOLCHAIN)/environment)"; time go test -count=1 -race -timeout 40m ./...
	@echo "== holding the check of Pod templates against the API server's own"
	@cd $(ORACLE) && time go test -count=1 -timeout 20m ./...

check: build vet lint ## Build, vet, lint, and run the tests that need no engine and no cluster.
	go test -timeout 5m $(UNIT)

oracle: ## Hold the check of Pod templates against the API server's own.
	cd $(ORACLE) && go test -count=1 -timeout 20m ./...

reference: ## Write what is generated from the schema anew.
	go generate ./schema/...

demo: ## Run a real deployment on this machine; KEEP=1 leaves everything up, TARGET=kubernetes runs it in a cluster.
	@examples/demo/run

bench: toolchain ## Compare jobs with docker run and with Pods by hand, and cmwa vet with cue vet; time reloads; run 5,000 jobs at a time; load ten thousand times.
	@eval "$$($(TOOLCHAIN)/environment)"; go test -run '^$$' -v -bench . -benchtime 1x -timeout 20m ./cmd/cmwa
	go test -run '^$$' -v -bench ManyJobs -benchtime 1x ./runtime/kube
	go test -run '^$$' -bench TenThousand -benchtime 1x ./schema
	go test -run '^$$' -bench HundredPools -benchtime 1x ./reconcile

vet: ## Let the compiler's friend look.
	go vet ./...

lint: ## Report what gofmt, staticcheck and their like find.
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "gofmt would change:" $$files; exit 1; }
	@cd $(ORACLE) && go list -mod=readonly -test -deps ./... >/dev/null # its go.mod follows that of the project
	$(LINT) staticcheck ./...
	$(LINT) go-errorlint ./...
	$(LINT) sloglint -no-global=all -msg-style=lowercased ./...
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); else echo "shellcheck is not installed: the scripts are not looked at"; fi

fmt: ## Format every Go file.
	gofmt -w .

cover: ## Tell how much of each package the tests without an engine or a cluster reach.
	@mkdir -p bin
	go test -coverprofile=bin/cover.out -coverpkg=./... $(UNIT)
	@go tool cover -func=bin/cover.out | tail -n 1

toolchain: ## Set up what the tests need: Docker, job images, pulumi, Kubernetes, helm.
	@$(TOOLCHAIN)/up

clean: ## Remove bin; what toolchain made stays in the cache.
	rm -rf bin
