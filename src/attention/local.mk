# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/attention.c \
  %D%/call.h \
  %D%/check.c \
  %D%/job.c %D%/job.h \
  %D%/many.c \
  %D%/parts_check.c \
  %D%/pruned.c \
  %D%/queries.c %D%/queries.h \
  %D%/queries_check.c \
  %D%/shard.c %D%/shard.h \
  %D%/share.c
