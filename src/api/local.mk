# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/api.c %D%/api.h \
  %D%/attention.c \
  %D%/attention_gather.c \
  %D%/attention_run.c %D%/attention_run.h \
  %D%/heads.c \
  %D%/live.c %D%/live.h \
  %D%/operation.c %D%/operation.h \
  %D%/operation_parts.h \
  %D%/operation_run.c \
  %D%/operation_split.c \
  %D%/overlap.c \
  %D%/preset.c
