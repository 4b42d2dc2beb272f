# SPDX-License-Identifier: Apache-2.0
# With their folders, for they link to one another.
nobase_dist_doc_DATA += \
  %D%/algorithms.md \
  %D%/bootstrap.md \
  %D%/comparison.md \
  %D%/design-devices.md \
  %D%/design-host.md \
  %D%/design-network.md \
  %D%/design.md \
  %D%/energy.md \
  %D%/fuzzing.md \
  %D%/gpu-results/README.md \
  %D%/observability.md \
  %D%/performance.md \
  %D%/reliability.md \
  %D%/security.md \
  %D%/pictures/dgx-h100.svg \
  %D%/pictures/gb200-nvl72.svg \
  %D%/pictures/hgx-h100-faults.svg \
  %D%/pictures/mi300x.svg \
  %D%/testing.md \
  %D%/topology.md \
  %D%/tour.md
