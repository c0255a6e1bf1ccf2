#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Run the project's checks and tests, on a machine that has nothing yet: tools/test.sh --help.
# All this does is to find a Python for tools/test_runner, which does the rest.

set -u

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
for python in ${NODB_BASE_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" -m tools.test_runner "$@"
    fi
done
echo "No Python 3.11 or newer found; set NODB_BASE_PYTHON." >&2
exit 2
