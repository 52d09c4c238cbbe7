# Start here: make demo, make test. Both first install what they need (on Debian or Ubuntu, as root).

PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build
BENCH ?= hook
APT := build-essential busybox-static clang-14 cmake containerd containernetworking-plugins crun dbus \
       debian-archive-keyring debootstrap gcc-aarch64-linux-gnu iproute2 libc-bin libc6-dev-arm64-cross \
       libclang-rt-14-dev musl-tools openssl podman python3 python3-venv runc systemd-container util-linux
export VGPU_BUILD := $(abspath $(BUILD))

.PHONY: setup packages build clients clients-long demo test test-quick test-long test-gpu lint bench deb clean

setup: packages $(VENV)/.stamp build

packages:
	@missing=$$(dpkg-query -W -f '$${Package} $${db:Status-Status}\n' $(APT) 2>/dev/null | awk '$$2 == "installed" {print $$1}' \
	  | sort > /tmp/vgpu-have.$$$$; printf '%s\n' $(APT) | sort | comm -23 - /tmp/vgpu-have.$$$$; rm -f /tmp/vgpu-have.$$$$); \
	if [ -n "$$missing" ]; then \
	  echo "installing $$(echo $$missing)"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -q && apt-get install -y -q --no-install-recommends $$missing; \
	fi

$(VENV)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

build:
	@cmake -S . -B $(BUILD) > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@mv $(BUILD)-configure.log $(BUILD)/configure.log
	@cmake --build $(BUILD) --parallel 2 > $(BUILD)/build.log 2>&1 || { cat $(BUILD)/build.log; exit 1; }

# Installs programs from the package index that run on the simulated driver. clients-long takes minutes.
$(BUILD)/clients/.stamp: tests/beds/make_clients.sh
	@$< $(PYTHON) $(BUILD)/clients $(BUILD)
	@touch $@

$(BUILD)/clients/.stamp-long: tests/beds/make_clients.sh $(BUILD)/clients/.stamp
	@$< $(PYTHON) $(BUILD)/clients $(BUILD) long
	@touch $@

clients: setup $(BUILD)/clients/.stamp

clients-long: clients $(BUILD)/clients/.stamp-long

# The demonstration: two containers share one card.
demo: setup
	@$(BIN)/python tests/demo/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All tests. pytest counts the tests that cannot run on this machine; an unexpected skip is a failure.
test: lint clients
	$(BIN)/pytest -q --strict-skips -m 'not gpu and not long'

# For the edit-test loop: unit tests, which start no process. Their files lie in memory where that is possible.
test-quick:
	@TMPDIR=$$([ -w /dev/shm ] && echo /dev/shm || echo /tmp) $(BIN)/pytest -q tests/unit

test-long: lint clients-long
	$(BIN)/pytest -q --strict-skips -m 'not gpu' --long

test-gpu: setup
	$(BIN)/pytest -q tests/gpu -m gpu

# Builds build/vgpu_<version>_<arch>.deb.
deb: setup
	@PYTHON=$(BIN)/python packaging/deb/build

bench: setup
	@$(BIN)/python tests/bench/run.py $(BENCH)

clean:
	rm -rf $(BUILD) $(VENV)
