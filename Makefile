# The commands of this repository. `make help` lists them.

# Go is often installed without being on PATH.
export PATH := $(PATH):/usr/local/go/bin:$(HOME)/go/bin

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Switchyard does not use the traces of gRPC. Their pages use text/template, with which the linker keeps the exported methods of all types: 6 MB.
TAGS    := grpcnotrace
# The image's name; its tag is VERSION.
IMAGE   ?= localhost/switchyard
FUZZTIME ?= 20s
# Time for the tests of one package. They are many real connections on what may be a slow machine.
TIMEOUT ?= 30m
# Tests that run at once in a package, and packages that run at once. Most tests wait: for packets, for timers, for processes.
PARALLEL ?= 4
# The modules that check and test look at. Those that build other people's programs have targets of their own.
MODULES := . client
# Those that only check looks at.
CHECKED := test/ui
# Checks protocols and generates their code. It is in a module of its own: its needs are not ours.
BUF     := $(GO) tool -modfile=tools/go.mod buf
# Random histories of make differential.
SEEDS   ?= 20
RESTORES ?= 50
# What make proof, differential, e2e and test-kernel test: nftables, ebpf, ipvs, iptables (proof: also iptables-legacy and iptables-nft) or userspace.
DATAPLANE ?= nftables
# How much happens in make proof: 1 is a thousand kills, and half an hour. How long make soak goes on.
SCALE   ?= 1
# Bursts of foreign commits of make repairs, and the variant of iptables: nft, legacy, or both if it is empty.
SEQUENCES ?= 200
VARIANT ?=
MINUTES ?= 20
# The version of Go's cryptographic module that make test-fips builds with.
FIPS ?= v1.0.0

.DEFAULT_GOAL := help
.PHONY: published apidiff upgrade-grid upgrade-grid-kernel quick release release-inputs verify-release workflows prose page screenshots help build windows proto programs protocols image manifests budgets test-pods cluster-edge demo test suite attacks test-kernel proof-kernel mutants-kernel differential-kernel compare-kernel connections-kernel check vuln unit consumer boards alerts recipes dns man site bench repairs fuzz tools upstream kubernetes feature-gates e2e restores differential compare scale proof proof-edge balance soak histories test-windows differential-windows clean test-arch test-arch-machine test-fips

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/switchyard, the program of a node, and bin/switchyard-lab, which it starts for lab, conformance and bench
	@echo "== build bin/switchyard and bin/switchyard-lab $(VERSION)" >&2
	@mkdir -p bin && CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/switchyard ./cmd/switchyard-lab

windows: ## Build bin/switchyard.exe, for Windows on amd64
	@echo "== build bin/switchyard.exe $(VERSION)" >&2
	@GOOS=windows GOARCH=amd64 CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/switchyard.exe ./cmd/switchyard

proto: ## Generate the code of the protocols from their .proto files
	@echo "== buf generate"
	@$(BUF) lint && $(BUF) generate

programs: ## Compile the eBPF programs (clang-14 and libbpf-dev of Debian 12)
	@echo "== go generate ./internal/ebpf/... ./internal/edge/..."
	@$(GO) generate ./internal/ebpf/... ./internal/edge/...

image: ## Build bin/switchyard-image.tar, an OCI image for amd64 and arm64 (IMAGE=registry/name, VERSION=tag, FLAVOUR=iptables for that mode)
	@case "$(FLAVOUR)" in ""|iptables) ;; *) echo "FLAVOUR=$(FLAVOUR): leave it out, or set it to iptables" >&2; exit 1;; esac
	@set -e; for arch in amd64 arm64; do \
		echo "== build bin/$$arch/switchyard and bin/$$arch/switchyard-lab $(VERSION)"; \
		mkdir -p bin/$$arch && CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/$$arch/ ./cmd/switchyard ./cmd/switchyard-lab; \
	done
	@echo "== write bin/switchyard-image.tar, $(IMAGE):$(VERSION)$(if $(FLAVOUR),-$(FLAVOUR))"
	@cd deploy && SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} $(GO) run ./cmd/image \
		-o ../bin/switchyard-image.tar -name $(IMAGE):$(VERSION)$(if $(FLAVOUR),-$(FLAVOUR) -iptables -cache ../.cache/debian) ../bin/amd64 ../bin/arm64

# The directory of a release, and the keys of its signatures: KEY is the private one, PUBLIC_KEY the public one.
RELEASE = bin/release/$(VERSION)
KEY ?=
PUBLIC_KEY ?=
release: ## Make all artefacts of a release in bin/release, offline and reproducibly (VERSION=v0.1.0, KEY=private key in PEM)
	@mkdir -p bin/release
	@cd release && $(GO) run . -version $(VERSION) -dir ../$(RELEASE) -image $(IMAGE) -cache ../.cache/debian $(if $(KEY),-key $(abspath $(KEY)))

release-inputs: ## Download what make release needs: modules, and Debian's packages of iptables
	@set -e; for module in . client deploy release; do (cd $$module && $(GO) mod download); done
	@$(MAKE) image FLAVOUR=iptables

verify-release: ## Check a release as its users would: signatures, SBOMs, images, packages, provenance (VERSION=v0.1.0, PUBLIC_KEY=key in PEM)
	@cd release && $(GO) run . -verify -version $(VERSION) -dir ../$(RELEASE) -key $(abspath $(PUBLIC_KEY))

# -count=1: a result that is kept does not notice that a manifest has changed, for they are outside of the module.
manifests: ## Check the image, the chart and the manifests in deploy/ with the code of the programs that read them, and the parts of a release (compiles it once)
	@cd deploy && $(GO) vet ./... && $(GO) test -count=1 ./...
	@cd release && $(GO) vet ./... && $(GO) test -count=1 ./...

# containerd, runc and plugins for pods' networks; runc needs a C compiler, pkg-config and libseccomp-dev.
.PHONY: node-programs
node-programs: upstream
	@mkdir -p .cache/containerd && cd deploy/test/containerd && $(GO) build -trimpath -tags seccomp -o $(CURDIR)/.cache/containerd/ tool
	@$(MAKE) image VERSION=test

test-pods: export SWITCHYARD_TEST_NODE_PROGRAMS = $(CURDIR)/.cache/containerd
test-pods: node-programs ## Run the pods of the chart with kubelet, containerd and runc (root; 4 minutes more the first time)
	@cd deploy && $(GO) test -count=1 -v -run TestPods ./test

cluster-edge: export SWITCHYARD_TEST_NODE_PROGRAMS = $(CURDIR)/.cache/containerd
cluster-edge: node-programs ## Run the chart with the edge on a cluster of three nodes, and Kubernetes' own e2e tests (root; curl, netcat-openbsd, wget; 10 minutes)
	@cd test/e2e/upstream && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CURDIR)/.cache/upstream/ tool && \
		CGO_ENABLED=0 $(GO) test -c -trimpath -ldflags '-s -w' -o $(CURDIR)/.cache/upstream/e2e.test ./e2e
	@cd test/dns && CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CURDIR)/.cache/upstream/ ./coredns
	@cd deploy && $(GO) test -count=1 -timeout 20m -v -parallel 8 -run TestClusterEdge ./test

budgets: ## Fill all budgets in a cgroup with the shipped limit of memory, in each mode (root; an hour; MEMORY=1000 is the limit in MiB)
	@cd deploy && SWITCHYARD_TEST_BUDGET_MEMORY=$(or $(MEMORY),1000) $(GO) test -count=1 -timeout 4h -v -run TestBudgetsFitTheMemoryLimit ./test/confine

demo: build ## Run the example application in a throw-away node and connect to all of it (root, or user namespaces)
	@echo "== run the application in examples/ in the lab"
	@bin/switchyard lab --once --source examples/shop

# The unit tests are compiled as check compiles, so that a fresh clone finds its packages in the build cache. go vet vets them.
quick: ## Formatting, go vet, and the unit tests without network namespaces and race detector: the loop to work in (a minute)
	@echo "== gofmt"
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted (fix with: gofmt -w .):"; echo "$$out"; exit 1; fi
	@set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; \
		echo "== go vet and go test -short in $$module"; \
		$(GO) vet ./...; \
		$(GO) test -short -vet=off -p $(PARALLEL) ./...; \
	done

test: check unit ## Check and test everything
	@$(MAKE) --jobs=3 --output-sync consumer boards alerts dns page manifests

suite: build ## Run the conformance suite through the program that has one dataplane only (DATAPLANE=nftables, ebpf, ipvs, iptables or userspace; SUITE='--run load'; root)
	@CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/switchyard-$(DATAPLANE)
	@sh scripts/suite.sh $(DATAPLANE) $(SUITE)

suite-edge: ## Run the whole conformance suite with the edge in front of modes nftables and ebpf (root; 3 minutes)
	@$(GO) test -count=1 -vet=off -timeout $(TIMEOUT) -run '^TestNodesConformance$$' ./internal/edge -whole

proof-kernel: ## Inject faults in that machine, and count the outcome of connections (DATAPLANE=ipvs)
	@RUN=proof DATAPLANE=$(if $(filter nftables,$(DATAPLANE)),ipvs,$(DATAPLANE)) bash scripts/kernel-test.sh

upgrade-grid-kernel: ## Upgrade there from the last release to this version and downgrade, under that load (DATAPLANE=ipvs)
	@RUN=upgrade DATAPLANE=$(if $(filter nftables,$(DATAPLANE)),ipvs,$(DATAPLANE)) bash scripts/kernel-test.sh

mutants-kernel: ## Run programs with injected bugs there, which that must notice (DATAPLANE=ipvs)
	@RUN=mutants DATAPLANE=$(if $(filter nftables,$(DATAPLANE)),ipvs,$(DATAPLANE)) bash scripts/kernel-test.sh

differential-kernel: upstream ## Compare the fate of packets with upstream kube-proxy's mode ipvs in that machine (SEEDS=2)
	@RUN=differential DATAPLANE=ipvs bash scripts/kernel-test.sh

compare-kernel: upstream ## Measure Switchyard and upstream kube-proxy in mode ipvs in that machine
	@RUN=compare DATAPLANE=ipvs bash scripts/kernel-test.sh

connections-kernel: ## Open 10,000 connections through mode userspace and HAProxy there: memory, where the limit of open files is too low here
	@RUN=connections DATAPLANE=userspace bash scripts/kernel-test.sh

test-kernel: ## Run the conformance suite in an emulated machine with Debian's Linux 6.1, which has SCTP (root on Debian; DATAPLANE=nftables)
	@DATAPLANE=$(DATAPLANE) bash scripts/kernel-test.sh

test-arch: ## Run the unit tests for other architectures under QEMU: s390x (big-endian), arm64 and arm (ARCH=ppc64le for one)
	@bash scripts/arch-test.sh $(ARCH)

test-arch-machine: ## Run the conformance suite in an emulated machine of ARCH=s390x or arm64 (DATAPLANE=nftables; RUN=units for the tests that need the kernel)
	@ARCH=$(or $(ARCH),s390x) RUN=$(or $(RUN),conformance) DATAPLANE=$(DATAPLANE) bash scripts/kernel-test.sh

# The packages that use TLS, and the stories of the command line. A client of old TLS cannot be made in FIPS mode.
FIPS_PACKAGES := ./server ./source/kube ./internal/apifollower ./internal/source/relay ./internal/clusterserver
test-fips: export GOFIPS140 = $(FIPS)
test-fips: export CGO_ENABLED = 0
test-fips: ## Build bin/fips/switchyard with Go's certified module (FIPS=v1.0.0), and test that it serves with nothing but approved algorithms
	@mkdir -p bin/fips && $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/fips/ ./cmd/switchyard ./cmd/switchyard-lab
	@bin/fips/switchyard version | tee /dev/stderr | grep -q ' FIPS 140-3 module $(FIPS)'
	@GODEBUG=fips140=only $(GO) test -short -vet=off -skip TestCertificatesDecide/old_TLS $(FIPS_PACKAGES)
	@cd client && GODEBUG=fips140=only $(GO) test -short -vet=off ./...
	@GODEBUG=fips140=only $(GO) test -vet=off -run TestAPIStories/tls ./cmd/switchyard

# What is kept of the last release.
KEPT = test/upgrade/testdata/$(shell awk '/^v/ { last = $$1 } END { print last }' test/upgrade/releases.txt)
protocols: ## Check the protocols: style, no breaking change since the last release, generated code up to date
	@echo "== buf lint, breaking, generate"
	@$(BUF) lint
	@$(BUF) breaking client/proto --against $(KEPT)/localnet.binpb
	@$(BUF) breaking internal/proto --against $(KEPT)/cluster.binpb
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && $(BUF) generate -o "$$tmp" && cd "$$tmp" && find . -name '*.go' | \
		while read -r f; do cmp "$$f" "$(CURDIR)/$$f" || { echo "fix with: make proto" >&2; exit 1; }; done

published: ## Write test/upgrade/testdata of the last release in test/upgrade/releases.txt (needs its commit in this clone)
	@$(GO) run ./test/cmd/upgrade record

apidiff: ## Look for incompatible changes of Go packages with a promise since the last release (needs its commit in this clone)
	@echo "== apidiff"
	@$(GO) run ./test/cmd/upgrade apidiff

upgrade-grid: ## Upgrade from the last release to this version and downgrade, in each mode except ipvs, under load (4 minutes; root, or user namespaces)
	@$(GO) run ./test/cmd/upgrade grid

# What is checked is compiled as the program is, so that packages are compiled once for all of this, and for the programs that tests build.
check check-windows quick boards alerts consumer dns page manifests: export CGO_ENABLED := 0
check check-windows quick boards alerts consumer dns page manifests: export GOFLAGS := -trimpath -tags=$(TAGS)

check: protocols prose workflows ## Protocols, English, formatting, vet, staticcheck and go fix
	@echo "== gofmt"
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted (fix with: gofmt -w .):"; echo "$$out"; exit 1; fi
	@$(GO) build -modfile=tools/go.mod -o bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	@set -e; for module in $(MODULES) $(CHECKED); do cd $(CURDIR)/$$module; \
		echo "== go vet, staticcheck and go fix in $$module"; \
		$(GO) vet ./...; \
		$(CURDIR)/bin/staticcheck ./...; \
		if ! out=$$($(GO) fix -diff ./... 2>&1) || [ -n "$$out" ]; then echo "$$out"; echo "fix with: go fix ./... in $$module"; exit 1; fi; \
	done

# Everything builds for Windows, tests too. What is not used there is mostly the pure half of what only Linux has, so that is looked for in a few packages.
check: check-windows
.PHONY: check-windows
check-windows: ## Vet and staticcheck of all that is built for Windows
	@$(GO) build -modfile=tools/go.mod -o bin/staticcheck honnef.co/go/tools/cmd/staticcheck
	@set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; \
		echo "== go vet and staticcheck for Windows in $$module"; \
		GOOS=windows GOARCH=amd64 $(GO) vet ./...; \
		GOOS=windows GOARCH=amd64 $(CURDIR)/bin/staticcheck -checks=inherit,-U1000 ./...; \
	done
	@GOOS=windows bin/staticcheck ./internal/winkernel/... ./backend/userspace/... ./node ./server ./test/windows

# Vale parses comments with a parser in C.
prose: ## Check the English of Markdown, proto files and Go comments (needs a C compiler)
	@echo "== prose"
	@if command -v $$($(GO) env CC) >/dev/null; then \
		(cd tools/prose && CGO_ENABLED=1 GOFLAGS= $(GO) build -o ../../bin/vale github.com/vale-cli/vale/v3/cmd/vale) && \
		git ls-files '*.go' '*.md' '*.proto' | grep -vE '\.pb\.go$$|_bpfe[bl]|testdata/' | xargs bin/vale --config tools/prose/.vale.ini --output line --minAlertLevel warning; \
	else echo "== without prose: Vale needs a C compiler, such as gcc"; fi

# Without shellcheck, so that the result does not depend on the machine.
workflows: ## Check .github/workflows with actionlint
	@echo "== actionlint"
	@$(GO) build -modfile=tools/go.mod -o bin/actionlint github.com/rhysd/actionlint/cmd/actionlint
	@bin/actionlint -shellcheck= -pyflakes=

vuln: ## Look for known vulnerabilities in what is called (needs a network; VULNDB=file:///path for a copy of the database)
	@$(GO) build -modfile=tools/go.mod -o bin/govulncheck golang.org/x/vuln/cmd/govulncheck
	@VULNDB=$(VULNDB) sh scripts/vuln.sh $(CURDIR)/bin/govulncheck $(MODULES)

# The packages whose tests take longest. They begin first, so that the others run while they wait.
SLOW := $(addprefix github.com/switchyard-net/switchyard/,backend/nftables cmd/switchyard backend/iptables conformance internal/edge backend/ebpf test/bench \
	backend/userspace node test/loadcheck test/chaos examples/nft-dataplane internal/apifollower backend examples server source/kube internal/source/relay)

# Packages that start no goroutine, and neither do their tests: test/laws, TestPurePackages. The race detector would only slow them down.
PURE := $(addprefix github.com/switchyard-net/switchyard/,brain model state backend/nftables/internal/ruleset backend/nftables/internal/least \
	backend/nftables/internal/ejection internal/ebpf/plan internal/edge/plan backend/iptables/internal/rules backend/ipvs/internal/plan backend/userspace/internal/plan \
	backend/userspace/internal/balance internal/winkernel/internal/plan)

# The laws read the tree, and have programs compiled.
LAWS := github.com/switchyard-net/switchyard/test/laws

# Packages that also have tests with the build tag !race, and these tests: their comments have the reasons.
UNRACED := $(addprefix github.com/switchyard-net/switchyard/internal/,edge protoconv)
UNRACED_TESTS = ^Test(Nodes|Largest)

# Without the race detector, tests are compiled as check compiles, so that packages are compiled once for both.
UNRACED_GO = CGO_ENABLED=0 GOFLAGS='-trimpath -tags=$(TAGS)' $(GO)

# -trimpath: clones and worktrees share what is compiled. The lines of both appear as they come.
unit: tools ## All tests, with the race detector where there are goroutines and a C compiler
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line raced unraced

.PHONY: raced unraced
raced:
	@race=-race; if ! command -v $$($(GO) env CC) >/dev/null || [ "$$($(GO) env CGO_ENABLED)" != 1 ]; then \
		race=; echo "== without -race: it needs a C compiler, such as gcc"; \
	fi; \
	set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; \
		packages=$$($(GO) list ./... | grep -vxF $(addprefix -e ,$(PURE) $(LAWS))); \
		slow=$$(printf '%s\n' $(SLOW) | grep -xF "$$packages" || true); \
		echo "== go test $$race in $$module"; \
		$(GO) test $$race -trimpath -vet=off -p $(PARALLEL) -parallel $(PARALLEL) -timeout $(TIMEOUT) -exec $(CURDIR)/scripts/test-exec.sh $$slow $$packages; \
	done

unraced:
	@echo "== go test without the race detector"
	@$(UNRACED_GO) test -vet=off -timeout $(TIMEOUT) -run '$(UNRACED_TESTS)' $(UNRACED)
	@$(UNRACED_GO) test -vet=off -p $(PARALLEL) -timeout $(TIMEOUT) $(PURE) $(LAWS)

# -count=1: what it reads is outside of its module.
boards: ## Check the dashboards and alerts with Prometheus' parser ('go run .' in test/boards writes the dashboards and copies the alerts)
	@echo "== dashboards and alerts"
	@cd test/boards && $(GO) vet ./... && $(GO) test -count=1 ./...

recipes: ## Check docs/recipes with the types of the tools that read them (compiles Talos' once)
	@cd test/recipes && $(GO) vet ./... && $(GO) test -count=1 ./...

# -count=1: the program and the alerts are outside of its module.
alerts: tools ## Fire each alert by a real fault, and none in an hour of changes (40 seconds; REAL=1 waits for that hour)
	@echo "== alerts"
	@cd test/alerts && $(GO) vet ./... && \
		$(GO) test -count=1 $(if $(REAL),-timeout 80m -parallel 3 -run NormalChurn -v) . $(if $(REAL),-real)

# -count=1: what it packs is outside of its module.
consumer: ## Build programs that import the modules, packed as a module proxy has them
	@echo "== programs that import the modules"
	@cd test/consumer && $(GO) vet ./... && $(GO) test -count=1 ./...

dns: ## Compare the answers of examples/dns with those of CoreDNS on the same objects (compiles it once)
	@echo "== examples/dns and CoreDNS"
	@cd test/dns && $(GO) vet ./... && $(GO) test -count=1 ./...

page: tools ## Test the page in headless Chromium
	@echo "== the page in Chromium"
	@cd test/ui && $(GO) vet ./... && $(GO) test -count=1 -timeout $(TIMEOUT) ./...

screenshots: tools ## Take pictures of the page and of the lab's live table, in bin/screenshots
	@mkdir -p bin/screenshots && rm -f bin/screenshots/*
	@$(GO) test -count=1 -run 'TestPictures$$' ./lab -pictures $(CURDIR)/bin/screenshots
	@cd test/ui && $(GO) test -count=1 -timeout $(TIMEOUT) -run 'TestPage$$|TestTraffic$$|TestLarge$$|TestServerAway$$|TestRelay$$|TestLab$$|TestTerminals$$' . \
		-screenshots $(CURDIR)/bin/screenshots -terminals $(CURDIR)/bin/screenshots
	@rm -f bin/screenshots/*.ansi

tools: ## Install or name what the tests check the kernel with
	@sh scripts/tools.sh

man: build ## Write man pages, shell completions and a page of all commands into bin/man
	@bin/switchyard manual bin/man

site: man ## Make a site of docs/ in bin/site, with search; links that lead nowhere fail (npm)
	@bash tools/site/build.sh

bench: ## Measure; figures on stdout, as JSON lines or as benchstat reads them, and tables on stderr (the last part, edge, needs root)
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/bench ./test/cmd/bench
	@echo "== every part of Switchyard, on $$(nproc) CPUs, Linux $$(uname -r)" >&2
	@set -e; for part in brain store nftables balance tenants memory page api churn relay scaling edge; do bin/bench $$part; done

repairs: ## Have other programs take rules away in SEQUENCES=200 random bursts of commits, in mode iptables, and measure until they are back (VARIANT=nft or legacy)
	@VARIANT=$(VARIANT) $(GO) test ./backend/iptables -run '^$$' -bench ForeignCommits -benchtime $(SEQUENCES)x -timeout $(TIMEOUT)

attacks: build ## Attack Switchyard as a tenant may, and measure what others notice (DATAPLANE=nftables; an idle machine)
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/bench ./test/cmd/bench
	@bin/bench attacks --dataplane $(DATAPLANE)

fuzz: ## Fuzz every target for a short time (FUZZTIME=20s each)
	@set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done; done

# Another release of Kubernetes for upstream and e2e, such as 1.36.3. Default: the release in test/e2e/upstream/go.mod.
KUBERNETES ?=
upstream: ## Build etcd, Kubernetes' control plane, kubelet and kube-proxy for the targets that need them (8 minutes, once; KUBERNETES=1.36.3)
	@GO=$(GO) KUBERNETES=$(KUBERNETES) sh test/e2e/upstream/build.sh

kubernetes: ## Compare with another release of Kubernetes from now on: its modules and its feature gates (KUBERNETES=1.37.2)
	@GO=$(GO) sh scripts/kubernetes.sh $(KUBERNETES)
	@$(MAKE) feature-gates KUBERNETES=

feature-gates: upstream ## Write the feature gates of that release into config/featuregates.txt
	@.cache/upstream/upstream feature-gates >config/featuregates.new && mv config/featuregates.new config/featuregates.txt

# The feature gates are those of the default release.
e2e: export SWITCHYARD_UPSTREAM := $(if $(KUBERNETES),$(CURDIR)/.cache/upstream/upstream-v$(KUBERNETES),$(SWITCHYARD_UPSTREAM))
e2e: upstream ## Let a real API server drive Switchyard, through every story of the conformance suite too (KUBERNETES=1.36.3; root, or user namespaces)
	@echo "== Switchyard and a real API server$(if $(KUBERNETES), of Kubernetes $(KUBERNETES))"
	@cd test/e2e && $(GO) vet ./... && $(GO) test -timeout $(TIMEOUT) -skip 'Differential$(if $(KUBERNETES),|FeatureGates)' ./... && \
		if [ "$(DATAPLANE)" != nftables ]; then $(GO) test -timeout $(TIMEOUT) -run TestStories . -dataplane $(DATAPLANE); fi

restores: upstream ## Restore a real etcd RESTORES times (50): what is served is what the API server has then (root, or user namespaces)
	@echo "== $(RESTORES) restores of etcd"
	@cd test/e2e && $(GO) test -timeout 60m -run TestRestores -count 1 . -restores $(RESTORES)

differential: upstream ## Compare the fate of packets with upstream kube-proxy, in SEEDS=20 random histories (DATAPLANE=nftables)
	@echo "== Switchyard and upstream kube-proxy, $(SEEDS) histories"
	@cd test/e2e && $(GO) test -timeout 60m -run Differential . -seeds $(SEEDS) -dataplane $(DATAPLANE)

histories: export SWITCHYARD_TEST_HISTORIES = many
histories: ## Play many random histories, of which make test plays a few (half an hour; root, or user namespaces)
	@$(GO) test -count=1 -p 1 -timeout 4h -v -run 'Histor|Agree|FieldsDecoded|TestEvents$$' ./backend/nftables ./internal/winkernel ./internal/source/relay ./source/kube ./store ./test/oracle

# The packages that have something to do on Windows, and whose tests ask for nothing of Linux. Of the client's, some need the go command.
WINDOWS = ./state ./model ./brain ./store ./config/... ./kubeconv ./backend ./internal/winkernel/... ./internal/source/relay ./internal/ops/healthz ./internal/ops/metrics \
	./backend/userspace/internal/hostrelay $(addprefix ./internal/,apifollower apirules clusterserver configfile connlimit explain httpserver loglimit objectlog protoconv revlog)

test-windows: ## Run tests and the program, built for Windows, in wine 10 (downloaded once; root, or user namespaces)
	@echo "== build the program for Windows"
	@mkdir -p bin/windows && rm -f bin/windows/*.exe
	@overlay=$$(scripts/wine.sh --overlay) && GOOS=windows CGO_ENABLED=0 $(GO) build -overlay "$$overlay" -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/windows/ ./cmd/switchyard
	@cd client && GOOS=windows CGO_ENABLED=0 $(GO) build -trimpath -o ../bin/windows/ ./example
	@echo "== the program in wine"
	@overlay=$$(scripts/wine.sh --overlay) && GOOS=windows $(GO) test -overlay "$$overlay" -count=1 -timeout 10m -exec "$(CURDIR)/scripts/wine.sh" ./test/windows \
		-switchyard $(CURDIR)/bin/windows/switchyard.exe -example $(CURDIR)/bin/windows/example.exe
	@echo "== tests of packages in wine"
	@overlay=$$(scripts/wine.sh --overlay) && GOOS=windows $(GO) test -overlay "$$overlay" -count=1 -timeout 10m -exec "$(CURDIR)/scripts/wine.sh" $(WINDOWS)
	@GOOS=windows $(GO) test -count=1 -timeout 10m -exec "$(CURDIR)/scripts/wine.sh" -run NamedPipe ./server
	@cd client && GOOS=windows $(GO) test -count=1 -timeout 10m -exec "$(CURDIR)/scripts/wine.sh" \
		-skip 'TestTheExampleProgramRuns|TestTheModuleStandsAlone|TestNothingElseIsLinked' ./...

differential-windows: ## Compare load balancers with those of upstream's proxier for Windows, in 200 histories and the cases of its own tests, which run before (in wine; builds it once)
	@echo "== upstream's tests of its proxier for Windows, in wine"
	@cd test/windows/upstream && GOOS=windows $(GO) test -count=1 -exec "$(CURDIR)/scripts/wine.sh" k8s.io/kubernetes/pkg/proxy/winkernel
	@echo "== Switchyard and upstream's proxier for Windows"
	@mkdir -p bin/windows && cd test/windows/upstream && GOOS=windows CGO_ENABLED=0 $(GO) build -trimpath -o ../../../bin/windows/ ./record
	@scripts/wine.sh bin/windows/record.exe >bin/windows/upstream.json 2>bin/windows/upstream.log || { tail bin/windows/upstream.log >&2; exit 1; }
	@$(GO) test -count=1 -v -run TestDifferential ./internal/winkernel -upstream $(CURDIR)/bin/windows/upstream.json

compare: build upstream ## Measure beside upstream kube-proxy, at 10,000 services; writes docs/benchmarks/
	@cd test/e2e && $(GO) run ./compare -switchyard ../../bin/switchyard -out ../../docs/benchmarks

scale: build upstream ## Measure network programming latency of many proxies on one API server (10 minutes; FULL=1 for an hour, which writes docs/benchmarks/scale.md)
	@cd test/e2e && $(GO) run ./scale -switchyard ../../bin/switchyard $(if $(FULL),-full)

# That of nftables has kube-proxy beside it, if it was built.
PROOF_PAGE = docs/proof$(if $(filter-out nftables,$(DATAPLANE)),-$(DATAPLANE)).md

proof: ## Inject faults into Switchyard under load; writes docs/proof.md (SCALE=1, half an hour; DATAPLANE=nftables)
	@mkdir -p .cache && rm -f .cache/proof-upstream.json
	@if [ $(DATAPLANE) = nftables ] && [ -x .cache/upstream/upstream ]; then echo "== upstream kube-proxy"; \
		(cd test/e2e && $(GO) run ./proof -out ../../.cache/proof-upstream.json); fi
	@echo "== Switchyard, $(DATAPLANE)"
	@$(GO) run ./test/cmd/proof -dataplane $(DATAPLANE) -scale $(SCALE) -out $(PROOF_PAGE) \
		$$(if [ -e .cache/proof-upstream.json ]; then echo -beside .cache/proof-upstream.json; fi)

proof-edge: ## Inject faults into a cluster with the edge under 1,000 open connections; writes docs/proof-edge.md (9 minutes; SCALE=1; an idle machine)
	@$(GO) run ./test/cmd/proof -edge -scale $(SCALE) -out docs/proof-edge.md

balance: ## Compare where 20,000 connections go in each mode with weights, refused shares and hashes, and time clients of silent endpoints (3 minutes; MODES=nftables,ebpf; root, or user namespaces)
	@$(GO) run ./test/cmd/balance -modes "$(MODES)"

soak: ## Change a cluster at random for MINUTES=20 under load, and look at memory, open files and the end state
	@$(GO) run ./test/cmd/proof -soak $(MINUTES)m

clean: ## Remove what was built
	@echo "== remove bin/"
	@rm -rf bin
