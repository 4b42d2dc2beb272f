# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/builder.c %D%/builder.h \
  %D%/call.def \
  %D%/compose.c %D%/compose.h \
  %D%/forest.c %D%/forest.h \
  %D%/hash.c \
  %D%/levels.c %D%/levels.h \
  %D%/link_cost.def \
  %D%/measured.c %D%/measured.h \
  %D%/owners.c %D%/owners.h \
  %D%/plan.c %D%/plan.h \
  %D%/print.c \
  %D%/select.c \
  %D%/slice.c %D%/slice.h \
  %D%/spread.c %D%/spread.h
libbanyan_core_la_SOURCES += \
  %D%/algorithms/algorithms.def \
  %D%/algorithms/dissemination.c \
  %D%/algorithms/levels.c \
  %D%/algorithms/levels_allgather.c \
  %D%/algorithms/levels_leaders.c \
  %D%/algorithms/levels_scatter.c \
  %D%/algorithms/oneshot.c \
  %D%/algorithms/recursive_doubling.c \
  %D%/algorithms/recursive_halving.c \
  %D%/algorithms/ring.c \
  %D%/algorithms/tree.c \
  %D%/algorithms/tree_cost.c \
  %D%/algorithms/tree_shape.c %D%/algorithms/tree_shape.h \
  %D%/algorithms/twoshot.c
