# SPDX-License-Identifier: Apache-2.0
"""The plugin within Nova, in process.

Nova's test modules patch whoever imports them for eventlet, unless told before: the
package's locks and thread-locals were real then, its threads green, and which tests
that hit was a matter of which module a worker imported first.
"""

import os

from nova_nodb_scheduler.cmd import patching

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")
patching.for_threads()
