# SPDX-License-Identifier: Apache-2.0
# Ranks on several nodes, and a fault in each run: faults tries all faults, soak runs for a given time.
test_scripts += %D%/test_soak.sh
check_PROGRAMS += %D%/fault_rank %D%/soak_rank
%C%_fault_rank_LDADD = libbanyan_core.la
%C%_soak_rank_LDADD = libbanyan_core.la
EXTRA_DIST += %D%/faults %D%/soak
