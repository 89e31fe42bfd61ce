#!/usr/bin/env bash
# Installs what the tests need, then checks the code's style and runs the tests.
#
#   tests/run.sh [arguments of pytest]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"

prepare_environment test
cd "$ROOT"
style=0
"$PYTHON" -m ruff check . || style=1
"$PYTHON" -m ruff format --check . || style=1
tests=0
"$PYTHON" -m pytest "$@" </dev/null || tests=$?
exit $((tests ? tests : style))
