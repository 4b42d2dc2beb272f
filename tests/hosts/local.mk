# SPDX-License-Identifier: Apache-2.0
# Ranks on several nodes, which are network namespaces. hosts makes them, wire is their switch, and hosts_world runs on
# them.
test_scripts += \
  %D%/test_hosts.sh \
  %D%/test_hosts_bed.sh \
  %D%/test_hosts_boot.sh \
  %D%/test_hosts_ring.sh \
  %D%/test_hosts_bytes.sh \
  %D%/test_hosts_devices.sh \
  %D%/test_hosts_slurm.sh \
  %D%/test_net_suites.sh
unit_programs += %D%/hosts_world
check_PROGRAMS += %D%/wire %D%/roce_init
%C%_wire_LDADD =
# The first program in a virtual machine of roce.
%C%_roce_init_LDADD =
EXTRA_DIST += %D%/bed.py %D%/hosts %D%/hosts_prelude.sh %D%/roce %D%/slurm %D%/test_roce.sh
