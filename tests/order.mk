# SPDX-License-Identifier: Apache-2.0
# Tests that bound times from above, measure, or need all processors run two at a time under make -j, once the others
# have ended: those in odd places one after another, and those in even places, which take as long together. Most of them
# wait most of the time. GNU make reads this file, and automake does not. Under sanitizers the bounds are wide, and
# these tests run with the others.
timed_tests = \
  tests/boot/test_boot_jobs \
  tests/boot/test_boot_tcp \
  tests/boot/test_boot \
  tests/boot/test_boot_many \
  tests/comm/test_facts \
  tests/device/test_device_arenas \
  tests/exec/test_flight \
  tests/exec/test_faults \
  tests/device/test_device_calls \
  tests/api/test_mismatch \
  tests/hosts/test_hosts.sh \
  tests/transport/test_net \
  tests/hosts/test_hosts_boot.sh \
  tests/transport/test_net_abort \
  tests/tools/test_launch \
  tests/transport/test_net_half \
  tests/comm/test_shrink \
  tests/base/test_log \
  tests/faults/test_soak.sh \
  tests/topo/test_topo_measure \
  tests/hosts/test_hosts_bed.sh \
  tests/hosts/test_net_suites.sh \
  tests/hosts/test_hosts_ring.sh \
  tests/hosts/test_hosts_bytes.sh \
  tests/hosts/test_hosts_slurm.sh

$(foreach test,$(timed_tests),$(if $(wildcard $(srcdir)/$(test) $(srcdir)/$(test).c),,$(error $(test) of order.mk is no test)))
timed_logs := $(filter $(addsuffix .log,$(timed_tests)),$(TEST_LOGS))
ifeq ($(SANITIZER_CFLAGS),)
$(timed_logs): | $(filter-out $(timed_logs),$(TEST_LOGS))
# Each test waits for the one before the previous one.
bny_previous :=
bny_before :=
$(foreach log,$(timed_logs),$(if $(bny_before),$(eval $(log): | $(bny_before)))$(eval bny_before := $(bny_previous))$(eval bny_previous := $(log)))
endif

# These start other tests.
tests/hosts/test_net_suites.sh.log: $(filter %/test_net %/test_contract %/test_mismatch %/test_faults,$(unit_tests))
tests/gpu/test_gpu_bundle.sh.log: $(filter %/test_allreduce %/test_attend %/test_bytes %/test_combine %/test_heads \
  tests/api/test_select %/test_valid %/test_device_attention %/test_device_user,$(cuda_tests) $(unit_tests))

# Tests start these programs, so .ci/run builds all of them, and other programs only as needed.
print-support:
	@echo $(filter-out $(unit_tests) $(cuda_tests) tests/bench/%,$(check_PROGRAMS))
.PHONY: print-support
