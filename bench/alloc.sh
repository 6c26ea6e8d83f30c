# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034  # read by scripts/bench
BENCH_TITLE='bemalloc beside jemalloc, mimalloc, tcmalloc and glibc: speed, memory, instructions'
BENCH_PACKAGES=(libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 valgrind)
BENCH_TARGETS=(sluice-bench-alloc)

bench_run() {
  local json=$1 quick=$2
  local arguments=("$SLUICE_BIN/bench/alloc/sluice-bench-alloc")
  [[ -z $json ]] || arguments+=(--json "$json")
  [[ $quick == no ]] || arguments+=(--quick)
  # RPMALLOC: a build of rpmalloc's preload library, which Debian does not package. PLOT: where to draw. PAGE: where to
  # write the tables between the marks.
  [[ -z ${RPMALLOC:-} ]] || arguments+=(--rpmalloc "$RPMALLOC")
  [[ -z ${PLOT:-} ]] || arguments+=(--plot "$PLOT")
  [[ -z ${PAGE:-} ]] || arguments+=(--page "$PAGE")
  python3 "$SLUICE_ROOT/bench/alloc.py" "${arguments[@]}"
}
