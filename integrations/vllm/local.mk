# SPDX-License-Identifier: Apache-2.0
# Decode context parallelism on CPUs for vLLM, as a separate Python distribution. Its test needs 6 GB of packages.
EXTRA_DIST += %D%
