# SPDX-License-Identifier: MIT
#
# The commands people type. The build itself is CMake and Ninja; this file calls it, after it has
# seen to it that what it needs is there. All works on a machine that has make and bash alone.

.PHONY: help start build deps model test test-long clean
.DEFAULT_GOAL := build

ARGS ?=
# A model that is named needs no default one, and neither does a request for help.
names_model := $(filter --model --model=% -m --help -h,$(ARGS))

help:
	@echo 'make start      install what is missing, build, fetch the default model, serve'
	@echo 'make start ARGS="--port 8001 --model FILE.gguf"   the same with options of `mtplx start`'
	@echo 'make build      the program, at build/mtplx'
	@echo 'make test       all tests that take less than 15 minutes together'
	@echo 'make test-long  long fuzzing, a thousand kills, ARM in an emulator: 30 to 40 minutes'
	@echo 'make clean      removes the build folders (not models, not caches)'

start: build $(if $(names_model),,model)
	@exec build/mtplx start $(ARGS)

deps:
	@scripts/install-deps.sh build

build: deps
	@test -f build/build.ninja || \
	    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMTPLX_TESTS=OFF
	@ninja -C build mtplx

model:
	@scripts/fetch-model.sh

test:
	@scripts/run-tests.sh short

test-long:
	@scripts/run-tests.sh long

clean:
	rm -rf build build-check build-asan build-tsan build-fuzz build-aarch64
