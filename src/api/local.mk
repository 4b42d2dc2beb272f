# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/allgather_heads.c \
  %D%/allreduce.c \
  %D%/api.h \
  %D%/attention.c \
  %D%/attention_claims.c \
  %D%/attention_gather.c \
  %D%/attention_select.c \
  %D%/bytes.c \
  %D%/check.c \
  %D%/combine.c \
  %D%/comm.c \
  %D%/comm_split.c \
  %D%/operation.c \
  %D%/preset.c \
  %D%/select.c
