# SPDX-License-Identifier: Apache-2.0
# These programs are built with the tests and run by bench.py, docs/scale.py or hand.
unit_programs += \
  %D%/bench_exchange \
  %D%/bench_grow
%C%_bench_exchange_LDADD = libbanyan_launch.la $(LDADD)
%C%_bench_grow_LDADD = libbanyan_launch.la $(LDADD)
EXTRA_DIST += \
  %D%/bench.py %D%/frame.py %D%/path_of_call \
  %D%/views/attention.py \
  %D%/views/calls.py \
  %D%/views/nodes.py \
  %D%/views/paper.py \
  %D%/views/prune.py
