# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/attention.c \
  %D%/attention_check.c \
  %D%/bounds.c \
  %D%/decode.h \
  %D%/job.c %D%/job.h \
  %D%/layout.c \
  %D%/ownership.c %D%/ownership.h \
  %D%/prune.c %D%/prune.h \
  %D%/prune_run.c %D%/pruning.h \
  %D%/queries.c %D%/queries.h \
  %D%/queries_check.c \
  %D%/sweep.c \
  %D%/turns.c \
  %D%/weigh.c
