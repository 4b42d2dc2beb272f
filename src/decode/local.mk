# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/attention.c \
  %D%/attention_check.c \
  %D%/deal.c %D%/deal.h \
  %D%/decode.h \
  %D%/ownership.c \
  %D%/queries.c %D%/queries.h \
  %D%/queries_check.c
