# Sourced by the scripts of this repository: finds Python and prepares its environment.
#
#   source launch/environment.sh
#   prepare_environment          # what training needs
#   prepare_environment test     # what the tests need besides
#
# Afterwards PYTHON is the environment's interpreter and PYTHONPATH names this checkout.
# An environment that has the packages is used as it is.
#
#   HANAYO_VENV     the environment's folder (default: .venv in the checkout)
#   HANAYO_PYTHON   the Python to make it with (default: the first one from 3.12 on that is found)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

prepare_environment() {
    local extra=${1:-} environment=${HANAYO_VENV:-$ROOT/.venv}
    PYTHON=$environment/bin/python
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
    if [[ ! -x $PYTHON ]]; then
        local base
        base=$(find_python) || return
        note "Making the environment $environment with $base"
        "$base" -m venv "$environment" || fail "$base could not make it, see above." \
            "Debian and Ubuntu keep that apart: apt-get install python3-venv"
    fi
    local missing
    missing=$(missing_modules "$extra") || fail "$PYTHON does not run." \
        "Remove $environment, or set HANAYO_VENV to another folder."
    [[ -z $missing ]] && return
    note "Installing into $environment, which lacks: $missing"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check \
        --editable "$ROOT${extra:+[$extra]}" ||
        fail "pip could not install the packages, see above." \
            "Check the network, or set HANAYO_VENV to an environment that has them."
    missing=$(missing_modules "$extra")
    [[ -z $missing ]] || fail "pip has run, but $PYTHON still lacks: $missing"
}

# Prints the first Python from 3.12 on: $HANAYO_PYTHON, on PATH, among pyenv's versions.
find_python() {
    local candidate
    for candidate in ${HANAYO_PYTHON:+"$HANAYO_PYTHON"} \
        python3.12 python3.13 python3.14 python3 python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python; do
        # Runs each: a shim of pyenv may stand for a version that is not chosen.
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        [[ $candidate != "${HANAYO_PYTHON:-}" ]] ||
            fail "HANAYO_PYTHON=$HANAYO_PYTHON is no Python from 3.12 on."
    done
    fail "hanayo_megatron needs Python 3.12 or newer. There is none on PATH nor in" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions. Install one (apt-get install python3.12" \
        "python3.12-venv, or pyenv install 3.12), or set HANAYO_PYTHON to its path."
}

# Prints those of the needed modules that the environment does not have.
missing_modules() {
    local modules="torch megatron.core megatron.training psutil matplotlib"
    [[ ${1:-} != test ]] || modules+=" pytest hypothesis ruff"
    "$PYTHON" - $modules <<'PYTHON_CODE'
import sys
from importlib.util import find_spec


def is_there(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package
        return False


print(*(name for name in sys.argv[1:] if not is_there(name)))
PYTHON_CODE
}

note() {
    echo "$*" >&2
}

fail() {
    echo "error: $*" >&2
    exit 1
}
