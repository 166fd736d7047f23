# make help lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOLCHAIN := testdata/toolchain
ORACLE := schema/podtemplate/oracle
LINT := go tool -modfile=$(TOOLCHAIN)/go.mod

COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null)
build_info = $(foreach name,version=$(VERSION) commit=$(COMMIT) date=$(DATE),-X github.com/cmwa-project/cmwa/cmd/cli.$(name))
go_build = CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w $(build_info)"

# Packages whose tests need a Docker engine or a Kubernetes cluster. The tests of all others need neither.
ENGINE = $(addprefix github.com/cmwa-project/cmwa/,cmd/cmwa cmd/workflow-runner runtime/docker runtime/kube runtime/kube/kubetest)
UNIT = $(filter-out $(ENGINE),$(shell go list ./...))

# Packages whose tests run without the race detector. The packages of this list start no goroutine: the race detector
# would find nothing, and make the tests many times slower. The tests of cmd/cmwa build the programs that they run with
# the race detector. Those of cmd/cmwa-cloud mostly wait for other programs, and the service that they start is tested
# with the race detector in cloud/server. For the same reason the property test of reconcile.Diff, the tests of large
# texts and of 5,000 Pods, and the tests of the service that make thousands of calls one after the other run without it.
PLAIN = $(addprefix github.com/cmwa-project/cmwa/,cmd/cmwa cmd/cmwa-cloud schema schema/effective schema/podtemplate \
	schema/jsonschema schema/position schema/printable schema/report cmd/cmwa/configure cmd/cmwa/input cmd/cmwa/pods \
	cmd/cli/command cloud/server/keys cloud/server/state runtime/kube/patch runtime/selfcheck)
sequential = ^Test(ServerHostile|UpdateProperty|StoreBatchProperty|Prune)

# The tests of cmd/cmwa run from the beginning to the end, beside two packages with the race detector and one without.
# More at a time take longer: agents and clusters that wait for the processor poll in the meantime. Of the packages with
# the race detector, those that run longest are tested first.
PROGRAM = github.com/cmwa-project/cmwa/cmd/cmwa
LONGEST = $(addprefix github.com/cmwa-project/cmwa/runtime/,kube runner docker)
RACE = $(LONGEST) $(filter-out $(PLAIN) $(LONGEST),$(shell go list ./...))

# The race detector ignores SQLite, which is C code translated to Go: its checks would make the tests of the service
# three times as slow. A package with generic functions cannot be ignored, because other packages share their code.
race = -race -gcflags=modernc.org/sqlite/lib=-race=false

# By default, a program with the race detector waits for a second before it exits.
export GORACE = atexit_sleep_ms=0

# The flags of the programs that are built for the tests, so that Go compiles their packages only once.
plain_test = CGO_ENABLED=0 go test -trimpath -count=1

# Compiles tests before they run. Beside the compilers, the operations of a test would take longer than their limits.
compile = go list -export -test -deps -f ''

# A variable, because make runs a line with $(MAKE) even with --dry-run, which a test uses.
oracle = cd $(ORACLE) && $(plain_test) -timeout 20m ./...

# The flags with which the toolchain builds pulumi, so that Go compiles its packages only once.
journal_flags = -trimpath -gcflags=all=-dwarf=false
journal = (cd testdata/journal && CGO_ENABLED=0 go test $(journal_flags) -count=1 -timeout 5m ./... -rapid.checks 2000)

release_test = (cd $(TOOLCHAIN)/release && CGO_ENABLED=0 go test -trimpath -count=1 -timeout 10m ./...)

SCRIPTS = .ci/run $(shell grep -l -r -e '^\#!/usr/bin/env bash' -e '^\#!/bin/sh' examples $(TOOLCHAIN))

.PHONY: help build runners image release release-version install uninstall test check oracle demo bench compatibility soak \
	reference vet lint fmt cover toolchain clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: runners ## Build cmwa, cmwa-cloud, workflow-runner (also for Linux) and THIRD_PARTY_NOTICES into bin.
	$(go_build) -o bin/ ./cmd/cmwa ./cmd/cmwa-cloud ./cmd/workflow-runner

# What the working directory of an agent and its image both contain.
runners:
	GOOS=linux GOARCH=amd64 $(go_build) -o bin/workflow-runner-linux-amd64 ./cmd/workflow-runner
	GOOS=linux GOARCH=arm64 $(go_build) -o bin/workflow-runner-linux-arm64 ./cmd/workflow-runner
	GOOS= GOARCH= go build -C $(TOOLCHAIN) -o $(CURDIR)/bin/notices ./notices
	bin/notices -o bin/THIRD_PARTY_NOTICES $(notices_flags)./cmd/cmwa ./cmd/cmwa-cloud ./cmd/workflow-runner
	rm bin/notices

image: runners ## Build the container images of cmwa and cmwa-cloud into bin, as archives for docker load and as OCI layouts.
	GOOS=linux GOARCH=amd64 $(go_build) -o bin/cmwa-linux-amd64 ./cmd/cmwa
	GOOS=linux GOARCH=arm64 $(go_build) -o bin/cmwa-linux-arm64 ./cmd/cmwa
	GOOS=linux GOARCH=amd64 $(go_build) -o bin/cmwa-cloud-linux-amd64 ./cmd/cmwa-cloud
	GOOS=linux GOARCH=arm64 $(go_build) -o bin/cmwa-cloud-linux-arm64 ./cmd/cmwa-cloud
	install -m 644 LICENSE bin/
	install -d -m 755 bin/state # an empty directory for examples/image/Dockerfile, which has no shell to create one
	install -d -m 755 bin/names # a directory, because Docker would follow a link
	ln -sfn cmwa bin/names/customer-managed-workflow-agent
	GOOS= GOARCH= go run -C $(TOOLCHAIN) ./image -version "$(VERSION)" -directory $(CURDIR)/bin

# The programs for macOS link other modules.
release: notices_flags = -platform darwin/arm64 # a space ends the flag
PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

release: $(if $(filter file,$(origin VERSION)),release-version) build image ## Build a release into bin/release: archives, deb, rpm, images, chart, SBOM, checksums. Needs VERSION=v1.2.3.
	for architecture in amd64 arm64; do for program in cmwa cmwa-cloud workflow-runner; do \
		GOOS=darwin GOARCH=$$architecture $(go_build) -o bin/$$program-darwin-$$architecture ./cmd/$$program; done; done
	rm -rf bin/root
	DESTDIR=$(CURDIR)/bin/root PREFIX=/usr BIN=bin examples/systemd/install >/dev/null
	GOOS= GOARCH= go run -C $(TOOLCHAIN)/release . -version "$(VERSION)" -date "$(DATE)" -platforms "$(PLATFORMS)" \
		-directory $(CURDIR)/bin -sources $(CURDIR)

release-version:
	@echo "run make release VERSION=v1.2.3"; exit 1

# DESTDIR is the root directory of a package that is built.
PREFIX ?= /usr/local
export DESTDIR PREFIX BIN

install: ## Install what make build has built below PREFIX (/usr/local): programs, unit, completions, pages for man.
	@examples/systemd/install

uninstall: ## Remove what make install has installed. The configuration and the state directory stay.
	@examples/systemd/install --remove

test: toolchain ## Set up the toolchain and run all tests, without cached results and mostly with the race detector.
	@echo "== compiling the tests"
	@$(compile) $(race) $(RACE) >/dev/null && CGO_ENABLED=0 $(compile) -trimpath $(PLAIN) >/dev/null && \
		(cd testdata/journal && CGO_ENABLED=0 $(compile) $(journal_flags) ./... >/dev/null) && \
		(cd $(TOOLCHAIN)/release && CGO_ENABLED=0 $(compile) -trimpath ./... >/dev/null) && \
		cd $(ORACLE) && CGO_ENABLED=0 $(compile) -trimpath ./... >/dev/null
	@echo "== running all tests, and comparing: Pod templates with the API server, journals with pulumi's library"
	@eval "$$($(TOOLCHAIN)/environment)"; time { \
		go test -count=1 $(race) -p 2 -parallel 2 -timeout 44m -skip '$(sequential)' $(RACE) & race=$$!; \
		{ code=0; $(plain_test) -run '$(sequential)' ./cloud/server || code=1; \
			$(plain_test) -run 'DiffProperty|DefinitionMemory|ContentsLimit|ExecutorManyPods' \
				./reconcile ./cloud ./runtime/runner ./runtime/kube || code=1; \
			$(plain_test) -p 1 -timeout 44m $(filter-out $(PROGRAM),$(PLAIN)) || code=1; \
			$(journal) || code=1; $(release_test) || code=1; ($(oracle)) || code=1; exit $$code; } & rest=$$!; \
		code=0; $(plain_test) -parallel 4 -timeout 44m $(PROGRAM) || code=1; \
		wait $$race || code=1; wait $$rest || code=1; exit $$code; }

check: build vet lint ## Build, vet, lint, run the tests that need no engine and no cluster, and compare journals with pulumi's library.
	go test -timeout 5m $(UNIT)
	$(journal)

oracle: ## Compare the check of Pod templates with the API server's validation.
	$(oracle)

reference: ## Generate the files that depend on the schema.
	go generate ./schema/...

demo: ## Run a real deployment on this machine. INSTALL=1 installs missing packages, KEEP=1 leaves everything up, TARGET=kubernetes uses a cluster.
	@examples/demo/run

bench: toolchain ## Run the benchmarks: jobs, cmwa vet, reloads, 5,000 jobs, 10,000 loads, 1,000 pools, records, 10,000 secrets, traces, updates, the web page.
	@eval "$$($(TOOLCHAIN)/environment)"; go test -run '^$$' -v -bench . -benchtime 1x -timeout 20m ./cmd/cmwa
	@eval "$$($(TOOLCHAIN)/environment)"; go test -run '^$$' -v -bench . -benchtime 1x -timeout 20m ./cmd/cmwa-cloud
	go test -run '^$$' -v -bench ManyJobs -benchtime 1x ./runtime/kube
	CMWA_TEST_IDLE=1 go test -count=1 -run TestExecutorIdleRequests -v ./runtime/kube
	go test -run '^$$' -bench LoadMemory -benchtime 1x ./schema
	go test -run '^$$' -bench HundredPools -benchtime 1x ./reconcile
	go test -run '^$$' -bench Journal -benchtime 500x ./runtime/journal
	go test -run '^$$' -bench RedactorMany ./runtime/runner
	go test -run '^$$' -bench Tracing ./cmd/cmwa/tracing
	go test -run '^$$' -bench 'ServerLarge|Pages' -benchtime 20x ./cloud/server
	go test -run '^$$' -bench . ./cloud/server/state

KUBERNETES ?= oldest newest

compatibility: ## As root, run the tests of the agent on KUBERNETES (oldest newest), and install it with pulumi.
	@trap '$(TOOLCHAIN)/kube-down' EXIT; export CI=true; code=0; for version in $(KUBERNETES); do \
		export KUBERNETES=$$version; $(TOOLCHAIN)/up; eval "$$($(TOOLCHAIN)/environment)"; \
		[ $$version != oldest ] || export CMWA_TEST_HELM=$$CMWA_TEST_HELM3; \
		provider=$$($(TOOLCHAIN)/pulumi-kubernetes/build); \
		export CMWA_TEST_PROVIDER=$$provider/pulumi-resource-kubernetes; \
		$(compile) $(race) ./runtime/kube/... >/dev/null; \
		CGO_ENABLED=0 $(compile) -trimpath -tags compatibility $(PROGRAM) >/dev/null; \
		go test -count=1 $(race) -timeout 30m ./runtime/kube/... || code=1; \
		$(plain_test) -tags compatibility -parallel 4 -timeout 44m $(PROGRAM) || code=1; done; exit $$code

SOAK ?= 30m

soak: toolchain ## Test crashes with each target. Run 500 jobs, then jobs for SOAK (30m), while agents and calls fail.
	@eval "$$($(TOOLCHAIN)/environment)"; CMWA_SOAK=$(SOAK) go test -count=1 -v -timeout 0 \
		-run 'TestSoak|TestFaults|TestKillPoints|TestRunCrash|TestCancelPulumi|TestRunLogOf50MB' ./cmd/cmwa

vet: ## Run go vet.
	go vet ./...
	go vet -tags compatibility ./cmd/cmwa

lint: ## Run gofmt, staticcheck, revive, wordlint (texts, names of tests), sqllint (MySQL), and other linters.
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "gofmt would change:" $$files; exit 1; }
	@cd $(ORACLE) && go list -mod=readonly -test -deps ./... >/dev/null # fails if its go.mod does not match that of the project
	$(LINT) staticcheck ./...
	$(LINT) revive -config $(TOOLCHAIN)/revive.toml -set_exit_status ./...
	$(LINT) go-errorlint ./...
	$(LINT) sloglint -no-global=all -msg-style=lowercased ./...
	$(LINT) actionlint .github/workflows/*.yml
	@cd $(TOOLCHAIN) && GOOS= GOARCH= go run ./wordlint -root $(CURDIR)
	@GOOS= GOARCH= go build -C $(TOOLCHAIN) -o $(CURDIR)/bin/sqllint ./sqllint
	go vet -vettool=bin/sqllint ./cloud/server/store
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); else echo "shellcheck is not installed: the scripts are not checked"; fi

fmt: ## Format every Go file.
	gofmt -w .

cover: ## Print the coverage of the tests that need no engine and no cluster.
	@mkdir -p bin
	go test -coverprofile=bin/cover.out -coverpkg=./... $(UNIT)
	@go tool cover -func=bin/cover.out | tail -n 1

toolchain: ## Set up the toolchain of the tests: Docker, job images, pulumi, Kubernetes, helm, promtool.
	@$(TOOLCHAIN)/up

clean: ## Remove bin. The toolchain stays in its cache.
	rm -rf bin
