# SPDX-License-Identifier: Apache-2.0
# Built with the tests, run by hand.
unit_programs += \
  %D%/bench_attention \
  %D%/bench_exchange \
  %D%/bench_grow \
  %D%/bench_record \
  %D%/bench_topo
%C%_bench_exchange_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_grow_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_record_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_topo_LDADD = libbanyan_topo.la libbanyan_launch.la $(LDADD)
