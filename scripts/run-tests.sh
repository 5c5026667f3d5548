#!/bin/bash
# SPDX-License-Identifier: MIT
#
# run-tests.sh short|long|aarch64: installs what the tests need, builds, runs them, and ends with a line
# "N passed, N failed, N skipped" over everything. Exit status 0 only when nothing failed.
#
# short: Check build with warnings as errors, ASan+UBSan, TSan of what has threads, end-to-end
#        tests, the tests of the scripts, the check of the includes.
# long:  libFuzzer on every target, the tests that do more under MTPLX_LONG=1 (random histories of
#        the bank and the engine, kills of the cold tier's writer, power cuts), golden hashes under
#        ASan+UBSan, and what follows.
# aarch64: the cross build for 64-bit ARM, its tests under qemu-user.
#
# A step that cannot run (a build that fails, an empty folder) is a failure, and the others run.
set -u
cd "$(dirname -- "$0")/.." || exit 2

mode=${1:-short}
jobs=$(nproc)
python=/usr/bin/python3 # Debian's: its packages are the ones that were installed
out=build-check/reports
passed=0 failed=0 skipped=0
summary=()

# Whatever a test starts carries this mark in its environment, so that what it leaves can be found.
export MTPLX_TEST_RUN="$$-$(date +%s)-$RANDOM"

record() { # name passed failed skipped
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    summary+=("$(printf '%-34s %5d passed %3d failed %3d skipped  %4d s' "$1" "$2" "$3" "$4" \
        "$((SECONDS - step_start))")")
    printf '== %s\n' "${summary[-1]}"
}

begin() { step_start=$SECONDS; printf '\n== %s\n' "$1"; }

count() { # name report...: counts what the reports say; a missing one is a failure
    local name=$1 numbers
    shift
    if numbers=$("$python" scripts/count-tests.py "$@"); then
        # shellcheck disable=SC2086
        record "$name" $numbers
    else
        record "$name" 0 1 0
    fi
}

build() { # name folder cmake-arguments...
    local name=$1 dir=$2 log=$2/build.log
    shift 2
    begin "build: $name"
    mkdir -p "$dir"
    if { [ -f "$dir/build.ninja" ] || cmake -S . -B "$dir" -G Ninja "$@"; } >"$log" 2>&1 &&
        ninja -C "$dir" ${target:-} >>"$log" 2>&1
    then
        printf '== built in %d s\n' "$((SECONDS - step_start))"
        return 0
    fi
    grep -E -A5 'error|FAILED' "$log" | head -n 40 || tail -n 40 "$log"
    record "build: $name" 0 1 0
    return 1
}

# Of each test that failed what was wrong and the end of what it said, without the parts that passed.
show_failed() { # ctest's log
    awk -v most=40 '
        function show(i) {
            for (i = 0; i < n; i++)
                if (i >= n - most || line[i] ~ /^\[ +(ERROR|LINE) +\]|WARNING: ThreadSanitizer|runtime error:/) print line[i]
            n = is_in = 0
        }
        BEGIN { n = is_in = 0 }
        /^ *(Start +[0-9]+:|[0-9]+\/[0-9]+ Test +#)|% tests passed,/ { show() }
        /\*\*\*(Failed|Exception|Timeout)|\(Not Run\)/ { print; is_in = 1; next }
        is_in && !/^\[ (RUN      |      OK )\]/ { line[n++] = $0 }
        END { show() }' "$1"
}

run_ctest() { # name folder ctest-arguments...
    local name=$1 dir=$2 report=$PWD/$out/ctest-${2#build-}.xml
    shift 2
    begin "$name"
    mkdir -p "$out"
    rm -f "$report"
    # Without address randomisation: TSan of this compiler refuses some layouts of newer kernels.
    setarch -R ctest --test-dir "$dir" -j "$jobs" --timeout 900 --output-junit "$report" \
        --test-output-size-passed 4000000 --test-output-size-failed 4000000 --output-on-failure \
        "$@" >"$dir/ctest.log" 2>&1 ||
        show_failed "$dir/ctest.log" | head -n 200
    count "$name" "$report"
}

run_pytest() { # name folder seconds
    local report=$PWD/$out/pytest-$(basename "$2").xml status=0
    begin "$1"
    mkdir -p "$out"
    rm -f "$report"
    if ! compgen -G "$2/test_*.py" >/dev/null && ! compgen -G "$2/*_test.py" >/dev/null; then
        echo "$2 has no tests: that cannot be a pass"
        record "$1" 0 1 0
        return
    fi
    timeout -k 20 "$3" "$python" -m pytest -q -p no:cacheprovider --junitxml="$report" "$2" \
        >"$out/pytest-$(basename "$2").log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || tail -n 80 "$out/pytest-$(basename "$2").log"
    if [ "$status" -gt 1 ]; then # interrupted, timed out, not collected: whatever the report says
        echo "pytest ended with status $status"
        record "$1 (did not finish)" 0 1 0
        [ -f "$report" ] || return
    fi
    count "$1" "$report"
}

run_fuzz() { # seconds for all targets together
    local name seconds bin log work
    local targets=(build-fuzz/tests/fuzz_*)
    local list=()
    for bin in "${targets[@]}"; do [ -x "$bin" ] && [ -f "$bin" ] && list+=("$bin"); done
    begin "fuzzing"
    if [ ${#list[@]} -eq 0 ]; then
        echo "no fuzz targets were built"
        record fuzzing 0 1 0
        return
    fi
    seconds=$(($1 * jobs / ${#list[@]}))
    [ "$seconds" -le 240 ] || seconds=240
    export seconds
    fuzz_one() {
        local bin=$1 name work
        name=$(basename "$bin")
        work=$(mktemp -d)
        mkdir "$work/corpus"
        local seeds=("$work/corpus")
        [ -d "tests/fuzz/corpus/$name" ] && seeds+=("tests/fuzz/corpus/$name")
        if "$bin" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=25 -print_final_stats=1 \
            -artifact_prefix="build-fuzz/$name-" "${seeds[@]}" >"build-fuzz/$name.log" 2>&1
        then
            echo "  $name: $(grep -o 'number_of_executed_units: *[0-9]*' "build-fuzz/$name.log")"
            touch "build-fuzz/$name.passed"
        else
            echo "  $name failed:"
            grep -A12 'ERROR\|runtime error\|SUMMARY' "build-fuzz/$name.log" | head -n 40
        fi
        rm -rf "$work"
    }
    export -f fuzz_one
    rm -f build-fuzz/*.passed
    printf '%s\n' "${list[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one {}'
    local n=0
    for bin in "${list[@]}"; do [ -f "build-fuzz/$(basename "$bin").passed" ] && n=$((n + 1)); done
    record "fuzzing ($seconds s a target)" "$n" "$((${#list[@]} - n))" 0
}

build_asan() {
    build "ASan+UBSan" build-asan -DCMAKE_BUILD_TYPE=Check -DMTPLX_SANITIZE=address,undefined
}

# The whole tree for aarch64, and the tests of what computes and keeps numbers, which compare with the
# same golden hashes as on x86-64. Without cross compiler or libraries (no network, not Debian) this
# is a skip that can be seen, and a failure in CI.
run_aarch64() {
    begin "aarch64: packages"
    if ! scripts/install-deps.sh aarch64 || ! scripts/aarch64-sysroot.sh build-aarch64/sysroot; then
        echo "no cross compiler, emulator or arm64 libraries: nothing is known about aarch64"
        if [ -n "${CI:-}" ]; then # where the package archive can be reached
            record "aarch64 (cannot be built here)" 0 1 0
        else
            record "aarch64 (cannot be built here)" 0 0 1
        fi
        return
    fi
    # The fidelity test would compute thousands of tokens; the reference test runs a host's Python
    # and compares with a tolerance, where the golden hashes leave none; loops of injected faults, kills
    # and damage take minutes and have nothing to do with the CPU, nor have how work grows and
    # which prefix is found; processes that start themselves anew would need the emulator, too.
    build "aarch64" build-aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake \
        -DCMAKE_BUILD_TYPE=Check -DMTPLX_WERROR=ON &&
        run_ctest "aarch64 (qemu-user)" build-aarch64 \
            -L '^(base|gguf|kernels|kv|bank|cold|model|exactness|golden)$' \
            -E '/test_(fidelity|reference_tiny|tokenizer_(vectors|growth)|cold_(faults|crash|damage|power|processes).*|exact_history|model_mutated)$'
}

# What tests started must have ended. This also ends what has not, by id.
check_leftovers() {
    local pid name n=0
    begin "processes left behind"
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        [ "$pid" != "$$" ] && [ "$pid" != "$BASHPID" ] || continue
        # The list was made before this loop started anything, and this script and what called it
        # do not carry the mark: it was exported after they had begun.
        tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" |
            grep -qx "MTPLX_TEST_RUN=$MTPLX_TEST_RUN" || continue
        name=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")
        echo "left behind: $pid $name"
        kill "$pid" 2>/dev/null
        n=$((n + 1))
    done
    record "no process left behind" "$((n == 0))" "$((n > 0))" 0
}

finish() {
    printf '\n'
    printf '%s\n' "${summary[@]}"
    printf '%-34s %d s\n' total "$SECONDS"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}

prepare() {
    begin "packages and model"
    if ! scripts/install-deps.sh build model test; then
        record "packages" 0 1 0
        finish
        exit 1
    fi
    # Without the model its tests skip, which must not look like a pass.
    scripts/fetch-model.sh && record "default model" 1 0 0 || record "default model" 0 1 0
}

# A request for too much memory gives NULL, as it does without a sanitizer.
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1

case $mode in
    short)
        prepare
        build "Check" build-check -DCMAKE_BUILD_TYPE=Check -DMTPLX_WERROR=ON &&
            run_ctest "unit tests (Check)" build-check
        begin "includes"
        mkdir -p "$out"
        "$python" scripts/check-includes.py >"$out/includes.log"
        status=$?
        [ "$status" -eq 0 ] || cat "$out/includes.log"
        numbers=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$out/includes.log")
        # shellcheck disable=SC2086
        record "includes" ${numbers:-0 1} 0
        target=mtplx build "Release" build -DCMAKE_BUILD_TYPE=Release -DMTPLX_TESTS=OFF
        run_pytest "end to end" tests/e2e 1200
        run_pytest "scripts" tests/scripts 300
        # The fidelity test computes thousands of tokens of the real model, thirty times slower,
        # along the paths that golden/test_golden_logits takes, too; that one is in the long suite.
        # How work grows is no business of a sanitizer.
        build_asan &&
            run_ctest "unit tests (ASan+UBSan)" build-asan \
                -E '^(golden/test_(fidelity|golden_logits)|model/test_tokenizer_growth)$'
        # Only what has threads: instrumented kernels alone take the compiler minutes.
        threaded=$(printf '%s\n' tests/{base,sched,cold,http,api}/test_*.c | sed 's|.*/||; s|\.c$||')
        target=$threaded build "TSan" build-tsan -DCMAKE_BUILD_TYPE=Check \
            -DMTPLX_SANITIZE=thread &&
            run_ctest "threads (TSan)" build-tsan -L '^(base|sched|cold|http|api)$'
        ;;
    long)
        export MTPLX_LONG=1 MTPLX_TEST_KILLS=${MTPLX_TEST_KILLS:-1000}
        prepare
        fuzz_names=$(cd tests/fuzz && printf '%s\n' fuzz_*.c | sed 's/\.c$//')
        CC=clang target=$fuzz_names build "fuzz targets" build-fuzz -DCMAKE_BUILD_TYPE=Check \
            -DMTPLX_FUZZ=ON &&
            run_fuzz "${MTPLX_FUZZ_SECONDS:-480}"
        build "Check" build-check -DCMAKE_BUILD_TYPE=Check -DMTPLX_WERROR=ON &&
            run_ctest "long tests (Check)" build-check -L '^(bank|cold|exactness)$'
        unset MTPLX_LONG MTPLX_TEST_KILLS
        target=test_golden_logits build_asan &&
            run_ctest "golden hashes (ASan+UBSan)" build-asan -R '^golden/test_golden_logits$'
        run_aarch64
        ;;
    aarch64)
        prepare
        run_aarch64
        ;;
    *)
        echo "usage: run-tests.sh short|long|aarch64" >&2
        exit 2
        ;;
esac
check_leftovers
finish
