# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/allgather_heads.c \
  %D%/api.h \
  %D%/attention.c \
  %D%/attention_gather.c \
  %D%/combine.c \
  %D%/preset.c
