#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Writes the bash completion of nova-nodb-manage, which etc/bash-completion holds, by what the
# commands of this environment say.
set -euo pipefail
echo "# SPDX-License-Identifier: Apache-2.0"
echo "# bash completion of nova-nodb-manage: made by tools/completion.sh"
python -W ignore -c "
from nova_nodb_scheduler.cmd import manage
manage.main(['complete', '--name', 'nova-nodb-manage'])
" 2>/dev/null
