# SPDX-License-Identifier: Apache-2.0
# Tests of other projects, run by hand on their source trees.
EXTRA_DIST += %D%/run_peers.py %D%/reference_tokens.py
