# SPDX-License-Identifier: Apache-2.0
# These programs are built with the tests and run by hand.
unit_programs += \
  %D%/bench_attention \
  %D%/bench_exchange \
  %D%/bench_grow
%C%_bench_attention_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_exchange_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_grow_LDADD = libbanyan_launch.la $(LDADD)
EXTRA_DIST += %D%/bench_record %D%/path_of_call
