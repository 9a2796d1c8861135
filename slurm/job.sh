# What the batch scripts of this folder share, and the place for the cluster's
# modules.
# shellcheck shell=bash
# shellcheck disable=SC2154

# What a job needs before `train` runs on its nodes. Which modules that is, the
# cluster's documentation says; a bundle (docs/cluster.md) needs no more than
# the MPI.
load_modules() {
  # module purge
  # module load gcc openmpi cuda nccl hdf5
  :
}

# The folder of the programs: LOCKSTEP_BUILD, or that of a build here, or that of
# the installation this is a part of.
find_build() {
  local folder
  for folder in ${LOCKSTEP_BUILD:-build/release build/cpu ../../bin}; do
    if [ -x "$folder/train" ]; then
      (cd "$folder" && pwd)
      return
    fi
  done
  echo "error: no program 'train' in ${LOCKSTEP_BUILD:-build/release," \
    "build/cpu or ../../bin}; build it first, or name its folder in LOCKSTEP_BUILD" >&2
  return 2
}

# The job's number, for arrays that of the array.
job_number() { echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"; }

# The name under which scontrol knows this job; the task alone in arrays.
job_name() {
  echo "$(job_number)${SLURM_ARRAY_JOB_ID:+_$SLURM_ARRAY_TASK_ID}"
}

# Writes to the file $1 what the job ran on and with. Of the environment only
# what steers the programs: the rest may hold secrets.
record_environment() {
  {
    echo "date: $(date -u +%FT%TZ)"
    echo "job: $(job_name), start $((${SLURM_RESTART_COUNT:-0} + 1)), on" \
      "$SLURM_JOB_NODELIST"
    echo "revision: $(git describe --always --dirty 2>/dev/null || echo none)"
    echo "system: $(uname -srm); $(
      . /etc/os-release 2>/dev/null && echo "$PRETTY_NAME"
    )"
    "$build/train" --version
    mpirun --version 2>/dev/null | head -n 1
    nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id \
      --format=csv,noheader 2>/dev/null
    echo "modules: ${LOADEDMODULES:-none}"
    ldd "$build/train"
    env | grep -E '^(SLURM|OMP|OMPI|PMIX|PRTE|NCCL|UCX|CUDA|OPENBLAS)_' | sort
  } >"$1" 2>&1 || true
}

# launch RANKS PROGRAM...: the program on so many ranks of the allocation, each
# with --cpus-per-task cores of its own. Ranks are placed in blocks, so that
# the first ranks of a node have its first cores and, in train, its first GPUs,
# which are near each other on most machines; `train --print-world` shows it.
# LOCKSTEP_LAUNCHER=srun|mpirun chooses between the two.
launch() {
  local ranks=$1 cores=${SLURM_CPUS_PER_TASK:-1}
  shift
  export OMP_NUM_THREADS=$cores
  case ${LOCKSTEP_LAUNCHER:=$(choose_launcher)} in
    srun)
      # Slurm does not hand --cpus-per-task on to srun by itself.
      exec srun --mpi=pmix --ntasks="$ranks" --cpus-per-task="$cores" \
        --distribution=block:block --cpu-bind=cores --kill-on-bad-exit=1 "$@"
      ;;
    mpirun)
      exec mpirun -np "$ranks" --map-by "slot:PE=$cores" --bind-to core "$@"
      ;;
    *)
      echo "error: LOCKSTEP_LAUNCHER '$LOCKSTEP_LAUNCHER' is neither srun nor mpirun" >&2
      exit 2
      ;;
  esac
}

# srun where Slurm can start ranks of Open MPI, mpirun elsewhere.
choose_launcher() {
  if srun --mpi=list 2>&1 | grep -qw pmix; then echo srun; else echo mpirun; fi
}

# run_and_requeue RECORD RANKS PROGRAM...: launches it, to write that record, and
# ends the job with its exit code. Signals make the program save and end with
# 75. After SIGUSR1, which Slurm sends before the time is up (--signal), the job
# goes back to the queue; after SIGTERM, which comes with a cancellation, it
# does not.
run_and_requeue() {
  local record=$1 child code goes_on=false
  shift
  touch "$record.began"
  launch "$@" --output "$record" &
  child=$!
  trap 'goes_on=true; kill -USR1 "$child" 2>/dev/null' USR1
  trap 'kill -USR1 "$child" 2>/dev/null' TERM
  # A signal ends `wait`, not the program.
  while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  trap '' USR1 TERM
  # Some versions of srun return 0 where they could not start the tasks.
  if [ "$code" -eq 0 ] && [ ! "$record" -nt "$record.began" ]; then
    echo "error: the program did not run; see above" >&2
    code=1
  fi
  rm -f "$record.began"
  if [ "$code" -eq 75 ] && "$goes_on"; then
    echo "stopped in good time; back to the queue"
    scontrol requeue "$(job_name)" ||
      echo "error: it could not be requeued; submit it again with" \
        "LOCKSTEP_RUN=$run in the environment" >&2
  fi
  exit "$code"
}

# open_run NAME: makes the folder `run` of this job, runs/NAME-NUMBER or
# LOCKSTEP_RUN, and loads modules and finds programs for what follows.
open_run() {
  load_modules
  build=$(find_build)
  run=${LOCKSTEP_RUN:-runs/$1-$(job_number)}
  mkdir -p "$run"
}

# log_to NAME: from here on output goes to NAME.log in the folder of the run,
# after that of earlier starts, and NAME.environment.txt says where it ran.
log_to() {
  echo "log: $run/$1.log"
  exec >>"$run/$1.log" 2>&1
  echo "== job $(job_name), start $((${SLURM_RESTART_COUNT:-0} + 1))," \
    "$(date -u +%FT%TZ)"
  record_environment "$run/$1.environment.txt"
}

# train_job OPTIONS...: the whole of a job that trains one model.
train_job() {
  open_run "$SLURM_JOB_NAME"
  log_to run
  run_and_requeue "$run/run.h5" $((SLURM_NNODES * SLURM_NTASKS_PER_NODE)) \
    "$build/train" "$@" --checkpoint "$run/checkpoints" --resume auto
}

# sweep_job SWEEP.toml INDEX: the whole of a job that is one point of a sweep.
sweep_job() {
  local words most=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
  # Name, ranks and options, one a line.
  words=$(scripts/sweep.py --point "$2" "$1")
  mapfile -t words <<<"$words"
  local name=${words[0]} ranks=${words[1]}
  open_run "$(basename "$1" .toml)"
  log_to "$name"
  if [ "$ranks" -gt "$most" ]; then
    echo "error: point $2 wants $ranks ranks, the job has $most tasks; raise" \
      "--ntasks-per-node" >&2
    exit 2
  fi
  run_and_requeue "$run/$name.h5" "$ranks" "$build/train" "${words[@]:2}" \
    --checkpoint "$run/$name.checkpoints" --resume auto
}
